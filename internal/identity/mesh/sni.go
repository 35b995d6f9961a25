package mesh

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Service is a port of a service of a mesh, as the server name of a connection has it.
// Comparable.
type Service struct {
	Mesh, Namespace, Name string
	// Port is the port's number or name, as the Service has it.
	Port string
}

func (s Service) String() string {
	return s.Mesh + "/" + s.Namespace + "/" + s.Name + ":" + s.Port
}

const (
	sniSuffix = "proxima"
	// sniHash is 16 hexadecimal digits: 64 bits of a SHA-256.
	sniHash = 16
	// maxLabel and maxPort of labels in a server name. With them the longest name has
	// 16+1+15+3×(1+63)+1+7 = 232 characters, of 253 that DNS allows (RFC 1035, 2.3.4).
	maxLabel = 63
	maxPort  = 15 // of a port's name (RFC 6335, 5.1)
	// maxPart of a name in bytes: an object's name has at most 253.
	maxPart = 253
)

// SNI is the server name of a connection to a service, HASH.PORT.SVC.NS.MESH.proxima.
// HASH stands for the exact parts; the labels are for people, and are cut and cleaned
// where a part is no DNS label. Parts that are empty, longer than 253 bytes, not UTF-8
// or have control characters are refused.
func SNI(s Service) (string, error) {
	parts := []string{s.Port, s.Name, s.Namespace, s.Mesh}
	labels := make([]string, 0, len(parts)+2)
	labels = append(labels, "")
	sum := sha256.New()
	for i, part := range parts {
		if err := checkPart(part); err != nil {
			return "", fmt.Errorf("server name of service %q: %w", s, err)
		}
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		sum.Write(length[:])
		sum.Write([]byte(part))
		limit := maxLabel
		if i == 0 {
			limit = maxPort
		}
		labels = append(labels, readable(part, limit))
	}
	labels[0] = hex.EncodeToString(sum.Sum(nil))[:sniHash]
	return strings.Join(append(labels, sniSuffix), "."), nil
}

func checkPart(part string) error {
	switch {
	case part == "":
		return errors.New("port, name, namespace and mesh must not be empty")
	case len(part) > maxPart:
		return fmt.Errorf("a part has %d bytes, at most %d are possible", len(part), maxPart)
	case !utf8.ValidString(part):
		return errors.New("a part is not UTF-8")
	case strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("a part has control characters")
	}
	return nil
}

// readable makes a DNS label of a part.
func readable(part string, limit int) string {
	label := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, part)
	label = strings.Trim(label[:min(len(label), limit)], "-")
	if label == "" {
		return "x"
	}
	return label
}

// IsSNI reports whether a name has the form of SNI's results. The labels alone do not
// identify a service: that takes an Index.
func IsSNI(name string) bool {
	labels := strings.Split(name, ".")
	if len(labels) != 6 || labels[5] != sniSuffix || len(labels[0]) != sniHash {
		return false
	}
	for _, c := range []byte(labels[0]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	for i, label := range labels[1:5] {
		limit := maxLabel
		if i == 0 {
			limit = maxPort
		}
		if label == "" || label != readable(label, limit) {
			return false
		}
	}
	return true
}

// Index finds services by server name. Immutable; the zero value finds none.
type Index struct{ services map[string]Service }

// NewIndex indexes services. A server name that two of them have is in conflicts, and
// finds neither: no traffic is better than another service's. A service without a
// valid name is left out, and in the error.
func NewIndex(services []Service) (x Index, conflicts []string, err error) {
	x.services = make(map[string]Service, len(services))
	var failures []error
	taken := map[string]bool{}
	for _, s := range services {
		name, err := SNI(s)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		conflicts = x.add(name, s, taken, conflicts)
	}
	return x, conflicts, errors.Join(failures...)
}

// add a service; conflicting names stay in taken.
func (x *Index) add(name string, s Service, taken map[string]bool, conflicts []string) []string {
	switch old, ok := x.services[name]; {
	case taken[name], ok && old == s:
	case ok:
		delete(x.services, name)
		taken[name] = true
		return append(conflicts, name)
	default:
		x.services[name] = s
	}
	return conflicts
}

// Find a service by the server name of a connection. Case does not matter, as in DNS.
func (x Index) Find(serverName string) (Service, bool) {
	s, ok := x.services[asciiLower(serverName)]
	return s, ok
}

// asciiLower does not fold other letters: the Kelvin sign is not a k.
func asciiLower(s string) string {
	for i := range len(s) {
		if s[i] >= 'A' && s[i] <= 'Z' {
			b := []byte(s)
			for ; i < len(b); i++ {
				if b[i] >= 'A' && b[i] <= 'Z' {
					b[i] += 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}
