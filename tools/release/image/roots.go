package image

import (
	"bytes"
	"encoding/pem"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// certificates of the authorities that Mozilla trusts, as PEM. Their source is a Go module,
// whose contents go.sum pins. Authorities that are trusted for some names only are left out:
// a file of certificates cannot say so.
func certificates() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // never fails
		}
	}
	return out.Bytes()
}
