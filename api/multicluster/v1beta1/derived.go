package v1beta1

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// maxLabel is the length of a DNS label (RFC 1123).
const maxLabel = 63

// ServiceDomain is what follows NAME.NAMESPACE in the names of imports (KEP-1645, "DNS").
const ServiceDomain = "svc.clusterset.local"

// DerivedServiceName is the name of the Service, in the same namespace, that has the virtual
// IP of a ServiceImport: the name of the import as far as it fits, and 64 bits of a SHA-256
// over namespace and name. It is a DNS label if the name of the import is a DNS name.
func DerivedServiceName(namespace, name string) string {
	sum := sha256.Sum256([]byte("service import\x00" + namespace + "\x00" + name))
	hash := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding).EncodeToString(sum[:8])
	prefix := strings.ReplaceAll(name, ".", "-")
	if limit := maxLabel - len(hash) - 1; len(prefix) > limit {
		prefix = strings.TrimRight(prefix[:limit], "-")
	}
	return prefix + "-" + hash
}
