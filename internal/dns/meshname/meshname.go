// Package meshname forms the names below the domain "mesh", and reads them.
//
// Enter at OfService, OfTag and Forms. A hostname is a name without ".mesh". The package is
// pure: which names there are, and their addresses, is decided by controller/virtualip.
package meshname

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// Domain of the names, without dots at its ends.
const Domain = "mesh"

// Limits of a DNS name (RFC 1035, 2.3.4): of a label, and of a name as text with ".mesh".
const (
	maxLabel    = 63
	maxHostname = 253 - len(Domain) - 1
)

// separator of the parts of a Service's hostname. Names of Services and namespaces are DNS
// labels, which have none, so hostnames of different Services differ.
const separator = "_"

// OfService is the hostname of a port of a Service: SVC_NS_svc_PORT. Where that is longer
// than 63 characters it is its beginning and a hash.
func OfService(namespace, service string, port uint16) string {
	whole := strings.Join([]string{service, namespace, "svc", strconv.Itoa(int(port))}, separator)
	if len(whole) <= maxLabel {
		return whole
	}
	return shortened(whole, "service", service, namespace, strconv.Itoa(int(port)))
}

// OfTag is the hostname of a service tag (kuma.io/service): the tag itself. Labels longer
// than 63 characters become their beginning and a hash. A tag that is no DNS name in lower
// case, or is too long, has no hostname: that is an error, as two tags must never share one.
func OfTag(tag string) (string, error) {
	labels := strings.Split(tag, ".")
	for i, label := range labels {
		if !isLabel(label) {
			return "", fmt.Errorf("service tag %q: %q is not of lower case letters, digits, '-' and '_'", tag, label)
		}
		if len(label) > maxLabel {
			labels[i] = shortened(label, "tag", label)
		}
	}
	out := strings.Join(labels, ".")
	if len(out) > maxHostname {
		return "", fmt.Errorf("service tag %q: a name of %d characters, the limit is %d", tag, len(out), maxHostname)
	}
	return out, nil
}

// Valid reports whether a text can be a hostname: DNS labels of lower case letters, digits,
// '-' and '_'.
func Valid(hostname string) bool {
	if len(hostname) > maxHostname {
		return false
	}
	for label := range strings.SplitSeq(hostname, ".") {
		if !isLabel(label) || len(label) > maxLabel {
			return false
		}
	}
	return true
}

func isLabel(s string) bool {
	if s == "" || !isAlphanumeric(s[0]) || !isAlphanumeric(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// Parse reads the hostname of a Service's port, in either form: SVC_NS_svc_PORT or
// SVC.NS.svc.PORT. ok is false for all others, those that end in a hash among them.
func Parse(hostname string) (namespace, service string, port uint16, ok bool) {
	parts := strings.Split(hostname, separator)
	if len(parts) != 4 {
		parts = strings.Split(hostname, ".")
	}
	if len(parts) != 4 || parts[2] != "svc" || !isDNSLabel(parts[0]) || !isDNSLabel(parts[1]) {
		return "", "", 0, false
	}
	n, err := strconv.ParseUint(parts[3], 10, 16)
	if err != nil || n == 0 || parts[3] != strconv.FormatUint(n, 10) {
		return "", "", 0, false
	}
	return parts[1], parts[0], uint16(n), true
}

func isDNSLabel(s string) bool {
	return isLabel(s) && len(s) <= maxLabel && !strings.ContainsAny(s, "_.")
}

// Forms are the hostnames that a name below the domain may stand for, the likeliest first.
// Some clients refuse underscores, as host names have none (RFC 1123), so a Service's name
// may be written with dots. labels are in lower case.
func Forms(labels []string) []string {
	hostname := strings.Join(labels, ".")
	if len(labels) == 4 && labels[2] == "svc" {
		return []string{hostname, strings.Join(labels, separator)}
	}
	return []string{hostname}
}

// ObjectName is the name of the object that holds a hostname of a mesh: a DNS label of what
// is readable of it, and a hash.
func ObjectName(mesh, hostname string) string {
	return Hashed(hostname, "virtual ip", mesh, hostname)
}

// Hashed is a DNS label: the beginning of a readable text of letters, digits, '-', '_' and
// '.', and a hash of parts.
func Hashed(readable string, parts ...string) string {
	readable = strings.Map(func(r rune) rune {
		if r == '_' || r == '.' {
			return '-'
		}
		return r
	}, readable)
	hash := hashOf(parts...)
	if limit := maxLabel - len(hash) - 1; len(readable) > limit {
		readable = strings.TrimRight(readable[:limit], "-")
	}
	return readable + "-" + hash
}

// shortened is the beginning of a label, and a hash of its parts.
func shortened(label string, parts ...string) string {
	hash := hashOf(parts...)
	return strings.TrimRight(label[:maxLabel-len(hash)-1], "-_") + separator + hash
}

// hashOf parts: 64 bits of SHA-256. Lengths are part of it, so that other parts never make
// the same input.
func hashOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	encoding := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	return encoding.EncodeToString(h.Sum(nil)[:8])
}
