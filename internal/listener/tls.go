package listener

import (
	"crypto/tls"
	"strings"
)

// CipherSuites are those of TLS 1.2 that servers offer: Go's own selection without CBC, whose
// padding has been attacked again and again (RFC 9325, section 4.2). TLS 1.3 has none of them.
func CipherSuites() []uint16 {
	var ids []uint16
	for _, suite := range tls.CipherSuites() {
		if !strings.Contains(suite.Name, "_CBC_") {
			ids = append(ids, suite.ID)
		}
	}
	return ids
}
