package app

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// TestWhyUseless: a kubeconfig that cannot be written anew is of use if it leads to this
// control plane, as an administrator, for a while.
func TestWhyUseless(t *testing.T) {
	const server = "https://127.0.0.1:6443"
	dir := t.TempDir()
	ca, err := identity.Open(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := identity.Open(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	if whyUseless(path, server, ca, time.Now()) == nil {
		t.Error("a missing file is of use")
	}
	if err := writeKubeconfig(path, server, ca); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		server string
		ca     *identity.Authority
		now    time.Time
		useful bool
	}{
		"the same":          {server, ca, time.Now(), true},
		"another address":   {"https://127.0.0.1:7443", ca, time.Now(), false},
		"another authority": {server, other, time.Now(), false},
		"about to end":      {server, ca, time.Now().Add(adminLife - time.Hour), false},
	} {
		if err := whyUseless(path, c.server, c.ca, c.now); (err == nil) != c.useful {
			t.Errorf("%s: %v", name, err)
		}
	}
}
