package app

import "os"

// systemRoots are the authorities of this machine in PEM, from where crypto/x509 looks for them on
// Linux (root_linux.go) and on the BSDs; nil: there are none.
func systemRoots() []byte {
	files := []string{
		os.Getenv("SSL_CERT_FILE"),
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	}
	for _, file := range files {
		if file == "" {
			continue
		}
		if data, err := os.ReadFile(file); err == nil && len(data) > 0 {
			return data
		}
	}
	return nil
}
