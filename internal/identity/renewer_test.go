package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
)

// issuer answers requests as the control plane does.
func issuer(t *testing.T, a *Authority, life time.Duration) func(context.Context, []byte) (CertificateAnswer, error) {
	subject, err := SubjectFor(Node, "n1")
	if err != nil {
		t.Fatal(err)
	}
	return func(_ context.Context, request []byte) (CertificateAnswer, error) {
		csr, err := ParseRequest(request)
		if err != nil {
			return CertificateAnswer{}, err
		}
		cert, notAfter, err := a.SignClient(subject, life, csr)
		return CertificateAnswer{Certificate: string(cert), CA: string(a.PEM()), NotAfter: notAfter}, err
	}
}

// joined leaves in a directory what Enroll does.
func joined(t *testing.T, a *Authority) string {
	t.Helper()
	dir := t.TempDir()
	key, request, err := newRequest()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := issuer(t, a, ClientLife)(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := answered("cp:6443", dir, key, answer, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

// renewerOf what joined left.
func renewerOf(t *testing.T, dir string) *Renewer {
	t.Helper()
	r := NewRenewer(RenewerConfig{Dir: dir, Server: "cp:6443", Logger: slog.New(slog.DiscardHandler)})
	if err := r.Problem(); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRenewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		dir := joined(t, a)
		r := renewerOf(t, dir)
		var calls atomic.Int32
		var down atomic.Bool
		issue := issuer(t, a, ClientLife)
		r.exchange = func(ctx context.Context, request []byte) (CertificateAnswer, error) {
			calls.Add(1)
			if down.Load() {
				return CertificateAnswer{}, errors.New("connection refused")
			}
			return issue(ctx, request)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()

		first := r.Credentials()
		before, err := r.TLSConfig("cp").GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Hour)
		synctest.Wait()
		if calls.Load() != 0 {
			t.Fatal("renewed before two thirds of the life")
		}
		time.Sleep(90 * time.Minute)
		synctest.Wait()
		second := r.Credentials()
		after, err := r.TLSConfig("cp").GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if calls.Load() != 1 || !second.NotAfter.After(first.NotAfter) || certpem.SamePublicKey(before.Leaf.PublicKey, after.Leaf.PublicKey) {
			t.Fatalf("after two thirds: %d calls, until %s, was %s", calls.Load(), second.NotAfter, first.NotAfter)
		}
		if onDisk, err := LoadCredentials(dir); err != nil || !onDisk.NotAfter.Equal(second.NotAfter) {
			t.Errorf("on disk: %v %v", onDisk, err)
		}

		// The server is away for three hours: tried again, ever more slowly.
		down.Store(true)
		time.Sleep(16 * time.Hour)
		calls.Store(0)
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if n := calls.Load(); n < 25 || n > 60 {
			t.Errorf("%d attempts in 3 hours", n)
		}
		down.Store(false)
		time.Sleep(retryMax * 2)
		synctest.Wait()
		if !r.Credentials().NotAfter.After(second.NotAfter) {
			t.Error("not renewed after the server came back")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A server that issues nearly expired certificates is not contacted all the time.
func TestRenewerShortLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		r := renewerOf(t, joined(t, a))
		calls := 0
		issue := issuer(t, a, time.Minute)
		r.exchange = func(ctx context.Context, request []byte) (CertificateAnswer, error) {
			calls++
			return issue(ctx, request)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Hour)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if calls == 0 || calls > 60 {
			t.Errorf("%d calls in four hours", calls)
		}
	})
}

func TestRenewerHearsOfNewAuthority(t *testing.T) {
	old, err := Open(t.TempDir())
	must(t, err)
	next, err := Open(t.TempDir())
	must(t, err)
	r := renewerOf(t, joined(t, old))
	issue := issuer(t, old, ClientLife)
	r.exchange = func(ctx context.Context, request []byte) (CertificateAnswer, error) {
		answer, err := issue(ctx, request)
		answer.CA += string(next.PEM())
		return answer, err
	}
	must(t, r.renew(t.Context()))
	pair, err := next.IssueServer("cp", []string{"cp"}, nil)
	must(t, err)
	if _, err := parseOne(t, pair.Cert).Verify(x509.VerifyOptions{Roots: r.Credentials().trusted, DNSName: "cp"}); err != nil {
		t.Error(err)
	}
}

func TestLoadCredentialsDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := Open(t.TempDir())
		must(t, err)
		other, err := Open(t.TempDir())
		must(t, err)
		otherDir := joined(t, other)
		otherFile := string(read(t, filepath.Join(otherDir, credentialsFile)))
		field := func(file, name string) string {
			_, rest, _ := strings.Cut(file, `"`+name+`": "`)
			value, _, _ := strings.Cut(rest, `"`)
			return value
		}
		for name, tc := range map[string]struct {
			corrupt func(path string)
			want    string
		}{
			"cut":     {func(path string) { cut(t, path) }, "damaged"},
			"empty":   {func(path string) { overwrite(t, path, nil) }, "damaged"},
			"nothing": {func(path string) { overwrite(t, path, []byte("{}")) }, "key: "},
			"key of another": {func(path string) {
				mine := string(read(t, path))
				overwrite(t, path, []byte(strings.Replace(mine, field(mine, "key"), field(otherFile, "key"), 1)))
			}, "does not belong to the certificate"},
			"authority of another": {func(path string) {
				mine := string(read(t, path))
				overwrite(t, path, []byte(strings.Replace(mine, field(mine, "ca"), field(otherFile, "ca"), 1)))
			}, "not of this authority"},
			"readable by others": {func(path string) { chmod(t, path, 0o640) }, "can be read by others"},
		} {
			if runtime.GOOS == "windows" && name == "readable by others" {
				continue
			}
			dir := joined(t, a)
			tc.corrupt(filepath.Join(dir, credentialsFile))
			if _, err := LoadCredentials(dir); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: error %v, want %q", name, err, tc.want)
			}
		}
		if _, err := LoadCredentials(t.TempDir()); !errors.Is(err, ErrNotJoined) {
			t.Errorf("empty directory: %v", err)
		}
		dir := joined(t, a)
		time.Sleep(ClientLife + time.Second)
		if c, err := LoadCredentials(dir); err != nil || !time.Now().After(c.NotAfter) {
			t.Errorf("a day later: %v %v", c, err)
		}
	})
}

func TestUselessAnswers(t *testing.T) {
	a, err := Open(t.TempDir())
	must(t, err)
	dir := joined(t, a)
	r := renewerOf(t, dir)
	before := string(read(t, filepath.Join(dir, credentialsFile)))
	_, foreign, err := newRequest() // a certificate for another key
	must(t, err)
	for name, bad := range map[string]func(context.Context, []byte) (CertificateAnswer, error){
		"empty": func(context.Context, []byte) (CertificateAnswer, error) { return CertificateAnswer{}, nil },
		"foreign key": func(ctx context.Context, _ []byte) (CertificateAnswer, error) {
			return issuer(t, a, ClientLife)(ctx, foreign)
		},
		"run out": func(ctx context.Context, q []byte) (CertificateAnswer, error) {
			return issuer(t, a, -time.Minute)(ctx, q)
		},
	} {
		r.exchange = bad
		if err := r.renew(t.Context()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if after := string(read(t, filepath.Join(dir, credentialsFile))); after != before {
		t.Error("a useless answer replaced good credentials")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left over: %v %v", left, err)
	}
}

func TestParseRequest(t *testing.T) {
	csr := func(key any) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "system:admin", Organization: []string{GroupAdmins}}}, key)
		must(t, err)
		return pem.EncodeToMemory(&pem.Block{Type: certpem.TypeRequest, Bytes: der})
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	must(t, err)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	t.Setenv("GODEBUG", "rsa1024min=0")
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	must(t, err)
	good := csr(p256)
	tampered, _ := pem.Decode(good)
	tampered.Bytes[len(tampered.Bytes)-1] ^= 1
	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"good":       {good, ""},
		"ed25519":    {csr(ed), ""},
		"P-224":      {csr(p224), "too weak"},
		"RSA 1024":   {csr(weak), "too weak"},
		"tampered":   {pem.EncodeToMemory(tampered), "request"},
		"two":        {append(append([]byte{}, good...), good...), "one PEM block"},
		"other type": {certpem.EncodeDER([]byte{0x30, 0}), "one PEM block"},
		"empty":      {nil, "one PEM block"},
	} {
		_, err := ParseRequest(tc.data)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
	// The server sets the subject, whatever the request contains.
	a, err := Open(t.TempDir())
	must(t, err)
	request, err := ParseRequest(good)
	must(t, err)
	subject, err := SubjectFor(Node, "n1")
	must(t, err)
	cert, _, err := a.SignClient(subject, ClientLife, request)
	must(t, err)
	if got := SubjectOf(parseOne(t, cert)); got.User != "system:node:n1" || len(got.Groups) != 1 || got.Groups[0] != GroupNodes {
		t.Errorf("subject %+v", got)
	}
}

func FuzzParseRequest(f *testing.F) {
	_, good, err := newRequest()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := ParseRequest(data); err == nil && r.CheckSignature() != nil {
			t.Error("accepted a request that its key did not sign")
		}
	})
}
