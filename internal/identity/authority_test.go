package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
)

func TestOpenTwice(t *testing.T) {
	dir := t.TempDir()
	first, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if first.Pin() != second.Pin() || !bytes.Equal(first.PEM(), second.PEM()) {
		t.Error("the second open gave another authority")
	}
	if life := time.Until(first.cert.NotAfter); life < authorityLife-time.Hour || life > authorityLife {
		t.Errorf("life %s", life)
	}
	if runtime.GOOS != "windows" {
		info, err := os.Stat(filepath.Join(dir, authorityDir, authorityKey))
		if err != nil || info.Mode().Perm() != secretMode {
			t.Errorf("mode %v %v", info.Mode(), err)
		}
	}
}

func TestOpenAtOnce(t *testing.T) {
	dir := t.TempDir()
	pins := make([]Pin, 8)
	var wg sync.WaitGroup
	for i := range pins {
		wg.Go(func() {
			a, err := Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			pins[i] = a.Pin()
		})
	}
	wg.Wait()
	for _, p := range pins {
		if p != pins[0] {
			t.Fatal("two authorities were made")
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left over: %v %v", left, err)
	}
}

// Open reports everything that is wrong with the files, and changes nothing.
func TestOpenDamaged(t *testing.T) {
	other, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := certpem.EncodeKey(other.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := other.IssueClient(Subject{User: "x"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		corrupt func(t *testing.T, cert, key string)
		want    string
	}{
		"no key":             {func(t *testing.T, _, key string) { remove(t, key) }, "ca.key"},
		"no certificate":     {func(t *testing.T, cert, _ string) { remove(t, cert) }, "ca.crt"},
		"neither":            {func(t *testing.T, cert, key string) { remove(t, cert); remove(t, key) }, "ca.crt"},
		"empty certificate":  {func(t *testing.T, cert, _ string) { overwrite(t, cert, nil) }, "no certificate in it"},
		"cut certificate":    {func(t *testing.T, cert, _ string) { cut(t, cert) }, "not a sequence of PEM certificates"},
		"cut key":            {func(t *testing.T, _, key string) { cut(t, key) }, "not one PEM block"},
		"key of another":     {func(t *testing.T, _, key string) { overwrite(t, key, otherKey) }, "does not belong to the first certificate"},
		"a leaf as well":     {func(t *testing.T, cert, _ string) { appendTo(t, cert, leaf.Cert) }, "is not one of an authority"},
		"readable by others": {func(t *testing.T, _, key string) { chmod(t, key, 0o644) }, "can be read by others"},
		"flipped bit":        {func(t *testing.T, cert, _ string) { flip(t, cert) }, "damaged certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			if runtime.GOOS == "windows" && name == "readable by others" {
				t.Skip("windows has no mode bits")
			}
			dir := t.TempDir()
			if _, err := Open(dir); err != nil {
				t.Fatal(err)
			}
			cert, key := filepath.Join(dir, authorityDir, authorityCert), filepath.Join(dir, authorityDir, authorityKey)
			tc.corrupt(t, cert, key)
			before := snapshot(t, dir)
			_, err := Open(dir)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "backup") {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if after := snapshot(t, dir); after != before {
				t.Error("the directory was changed")
			}
		})
	}
}

func TestTrustedBundle(t *testing.T) {
	dir, nextDir := t.TempDir(), t.TempDir()
	old, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	next, err := Open(nextDir)
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, filepath.Join(dir, authorityDir, authorityCert), next.PEM())
	both, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if both.Pin() != old.Pin() {
		t.Error("the pin is not that of the signing certificate")
	}
	pair, err := next.IssueClient(Subject{User: "x"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf := parseOne(t, pair.Cert)
	opts := x509.VerifyOptions{Roots: both.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := leaf.Verify(opts); err != nil {
		t.Errorf("a certificate of the next authority: %v", err)
	}
}

func TestIssueServer(t *testing.T) {
	a, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := a.IssueServer("cp", []string{"localhost", "kubernetes.default.svc"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback})
	if err != nil {
		t.Fatal(err)
	}
	chain, err := certpem.ParseCertificates(pair.Cert)
	if err != nil || len(chain) != 2 || pinOf(chain[1]) != a.Pin() {
		t.Fatalf("chain of %d, %v: joining needs the authority in it", len(chain), err)
	}
	for _, host := range []string{"localhost", "kubernetes.default.svc", "127.0.0.1", "::1"} {
		if _, err := chain[0].Verify(x509.VerifyOptions{Roots: a.Pool(), DNSName: host}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("a server's certificate passes for a client's")
	}
	if chain[0].IsCA {
		t.Error("a leaf may sign")
	}
}

func TestLeafNeverOutlivesAuthority(t *testing.T) {
	a, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := a.IssueClient(Subject{User: "x"}, 2*authorityLife)
	if err != nil {
		t.Fatal(err)
	}
	if leaf := parseOne(t, pair.Cert); !leaf.NotAfter.Equal(a.cert.NotAfter) {
		t.Errorf("leaf until %s, authority until %s", leaf.NotAfter, a.cert.NotAfter)
	}
}

func parseOne(t *testing.T, data []byte) *x509.Certificate {
	t.Helper()
	certs, err := certpem.ParseCertificates(data)
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string)                  { must(t, os.Remove(path)) }
func overwrite(t *testing.T, path string, data []byte)  { must(t, os.WriteFile(path, data, secretMode)) }
func chmod(t *testing.T, path string, mode os.FileMode) { must(t, os.Chmod(path, mode)) }
func read(t *testing.T, path string) []byte             { b, err := os.ReadFile(path); must(t, err); return b }
func appendTo(t *testing.T, path string, data []byte) {
	overwrite(t, path, append(read(t, path), data...))
}
func cut(t *testing.T, path string) { b := read(t, path); overwrite(t, path, b[:len(b)/2]) }
func flip(t *testing.T, path string) {
	block, _ := pem.Decode(read(t, path))
	block.Bytes[0] ^= 1
	overwrite(t, path, pem.EncodeToMemory(block))
}

func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b.WriteString(path + "\n" + string(read(t, path)))
		}
		return err
	}))
	return b.String()
}
