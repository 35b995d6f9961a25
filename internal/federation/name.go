package federation

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits of names in characters: RFC 1123, as Kubernetes applies it.
const (
	maxLabelName     = validation.DNS1123LabelMaxLength
	maxSubdomainName = validation.DNS1123SubdomainMaxLength
	// hashBytes of SHA-256 are kept. Names are chosen by users, so that collisions
	// must be out of reach for those who look for them: 2^64 attempts.
	hashBytes = 16
)

// nameEncoding has only characters that a DNS label may have.
var nameEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// HashedName is the name of a copy of an object of another control plane. It differs
// wherever mesh, zone, namespace or name differ: it ends with a SHA-256 over the four,
// each preceded by its length. It begins with the name as far as it fits.
//
// With label it is a DNS label of at most 63 characters, otherwise a DNS subdomain
// of at most 253. Mesh, zone and namespace may be empty. Anything that is not a DNS
// name in ASCII is an error.
func HashedName(mesh, zone, namespace, name string, label bool) (string, error) {
	if err := checkName("mesh", mesh, true, true); err != nil {
		return "", err
	}
	if err := checkName("zone", zone, true, true); err != nil {
		return "", err
	}
	if err := checkName("namespace", namespace, true, true); err != nil {
		return "", err
	}
	if err := checkName("name", name, false, false); err != nil {
		return "", err
	}
	hash, limit := digest(mesh, zone, namespace, name), maxSubdomainName
	if label {
		limit = maxLabelName
		name = strings.ReplaceAll(name, ".", "-")
	}
	return readable(name, limit, hash), nil
}

// digest hashes parts, each preceded by its length.
func digest(parts ...string) string {
	h := sha256.New()
	var length [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(p)))
		h.Write(length[:])
		h.Write([]byte(p))
	}
	return nameEncoding.EncodeToString(h.Sum(nil)[:hashBytes])
}

// readable joins as much of the name as fits with a hash.
func readable(name string, limit int, hash string) string {
	if rest := limit - len(hash) - 1; len(name) > rest {
		name = name[:rest]
	}
	// A label must not end in a dash or dot, also before the dash that follows.
	if name = strings.TrimRight(name, "-."); name == "" {
		return hash
	}
	return name + "-" + hash
}

// displayName is a name as the value of a label, which has at most 63 characters.
func displayName(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	return readable(name, validation.LabelValueMaxLength, digest(name))
}

// checkName refuses what is no DNS label, or DNS subdomain.
func checkName(what, value string, empty, label bool) error {
	if value == "" && empty {
		return nil
	}
	check := validation.IsDNS1123Subdomain
	if label {
		check = validation.IsDNS1123Label
	}
	if problems := check(value); len(problems) > 0 {
		return fmt.Errorf("invalid %s %.80q: %s", what, value, problems[0])
	}
	return nil
}
