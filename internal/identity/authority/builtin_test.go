package authority_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newRoot(t testing.TB, meshName string) *authority.Root {
	t.Helper()
	root, err := authority.NewRoot(meshName, domain(t, meshName+".mesh"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// startZone runs a zone's authority. Only inside of a synctest bubble.
func startZone(t *testing.T, l authority.IntermediateIssuer, k authority.Keeper) (z *authority.ZoneSigner, stop func()) {
	t.Helper()
	z, err := authority.NewZoneSigner(t.Context(),
		authority.ZoneConfig{Mesh: "shop", Domain: domain(t, "shop.mesh"), Zone: "east", Issuer: l, Keeper: k})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := z.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
	return z, func() { cancel(); <-done }
}

const day = 24 * time.Hour

// TestZoneLife: 90 days of a zone, with global away for the last third.
func TestZoneLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := newRoot(t, "shop")
		l, k := &link{to: root.ForZone("east", time.Now)}, &keeper{}
		z, stop := startZone(t, l, k)
		sign := func() (mesh.Peer, time.Duration, error) {
			r, _ := request(t, workload(t, "shop.mesh", "web", "front"))
			chain, err := z.Sign(t.Context(), r)
			if err != nil {
				return mesh.Peer{}, 0, err
			}
			peer, err := verify(t, z, chain, time.Now())
			return peer, time.Until(peer.NotAfter), err
		}
		peer, life, err := sign()
		if err != nil || life != day || peer.IssuerZone != "east" || peer.ID.String() != "spiffe://shop.mesh/ns/web/sa/front" {
			t.Fatalf("%+v for %s: %v", peer, life, err)
		}
		if got := time.Until(z.NotAfter()); got != 90*day {
			t.Errorf("the intermediate holds for %s", got)
		}
		time.Sleep(59 * day)
		synctest.Wait()
		if l.count() != 1 {
			t.Errorf("%d requests in 59 days", l.count())
		}
		time.Sleep(day + time.Hour)
		synctest.Wait()
		if got := time.Until(z.NotAfter()); l.count() != 2 || got < 89*day {
			t.Errorf("after 60 days: %d requests, %s left", l.count(), got)
		}
		// Global goes away. The zone signs for 30 days more, over its own restart.
		l.set(true, nil)
		time.Sleep(70 * day)
		stop()
		z, stop = startZone(t, l, k)
		if _, life, err := sign(); err != nil || life != day {
			t.Errorf("without global after a restart: %s %v", life, err)
		}
		// A leaf never outlives the intermediate.
		time.Sleep(time.Until(z.NotAfter()) - time.Hour)
		if _, life, err := sign(); err != nil || life != time.Hour {
			t.Errorf("an hour before the end: %s %v", life, err)
		}
		time.Sleep(time.Hour + time.Second)
		if _, _, err := sign(); !errors.Is(err, authority.ErrCannotSign) {
			t.Errorf("after the end: %v", err)
		}
		// Global returns: within five minutes there is another intermediate.
		l.set(false, nil)
		time.Sleep(5*time.Minute + time.Second)
		synctest.Wait()
		if _, life, err := sign(); err != nil || life != day {
			t.Errorf("after global's return: %s %v", life, err)
		}
		stop()
	})
}

func TestZoneBeforeGlobal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{cut: true, to: newRoot(t, "shop").ForZone("east", time.Now)}
		z, stop := startZone(t, l, &keeper{})
		defer stop()
		r, _ := request(t, workload(t, "shop.mesh", "web", "front"))
		if _, err := z.Sign(t.Context(), r); !errors.Is(err, authority.ErrCannotSign) || z.Roots() != nil || !z.NotAfter().IsZero() {
			t.Errorf("before the first intermediate: %v", err)
		}
		if err := authority.Probe(t.Context(), z, domain(t, "shop.mesh"), time.Now()); !errors.Is(err, authority.ErrCannotSign) {
			t.Errorf("probe: %v", err)
		}
		l.set(false, nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if _, err := z.Sign(t.Context(), r); err != nil {
			t.Error(err)
		}
		if err := authority.Probe(t.Context(), z, domain(t, "shop.mesh"), time.Now()); err != nil {
			t.Error(err)
		}
	})
}

// slow is an issuer that answers when it is told to.
type slow struct {
	*link
	answer chan struct{}
}

func (s slow) IssueIntermediate(ctx context.Context, meshName string, csr []byte) (*authority.Intermediate, error) {
	defer func() { <-s.answer }()
	return s.link.IssueIntermediate(ctx, meshName, csr)
}

// TestZoneEnsure: whoever needs the first intermediate waits for the one that is on its
// way, and asks for no other.
func TestZoneEnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slow{&link{to: newRoot(t, "shop").ForZone("east", time.Now)}, make(chan struct{})}
		z, stop := startZone(t, l, &keeper{})
		defer stop()
		errs := make(chan error, 2)
		go func() { errs <- z.Ensure(t.Context()) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { errs <- z.Ensure(ctx) }()
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it waits longer than it may: %v", err)
		}
		close(l.answer)
		if err := <-errs; err != nil || z.NotAfter().IsZero() {
			t.Errorf("when it is here: %v", err)
		}
		synctest.Wait()
		if l.count() != 1 {
			t.Errorf("%d requests", l.count())
		}
	})
}

// TestZoneReplace: after a change of the root, the zone gets an intermediate of the new
// one at once; an intermediate that is not on disk is never used.
func TestZoneReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k := &link{to: newRoot(t, "shop").ForZone("east", time.Now)}, &keeper{}
		z, stop := startZone(t, l, k)
		defer stop()
		before := authority.ID(z.Roots()[0])
		k.fail = errors.New("disk full")
		l.set(false, newRoot(t, "shop").ForZone("east", time.Now))
		z.Replace()
		synctest.Wait()
		if authority.ID(z.Roots()[0]) != before {
			t.Error("an intermediate is used that was not kept")
		}
		k.mu.Lock()
		k.fail = nil
		k.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if authority.ID(z.Roots()[0]) == before {
			t.Error("the new root's intermediate is not used")
		}
	})
}

// bad answers of global.
type badIssuer struct {
	answer func(csr []byte) *authority.Intermediate
}

func (b badIssuer) IssueIntermediate(_ context.Context, _ string, csr []byte) (*authority.Intermediate, error) {
	return b.answer(csr), nil
}

func TestZoneRefusesWrongIntermediates(t *testing.T) {
	root, other := newRoot(t, "shop"), newRoot(t, "other")
	sign := func(r *authority.Root, zone string, csr []byte) *authority.Intermediate {
		i, err := r.ForZone(zone, time.Now).IssueIntermediate(context.Background(), r.Mesh(), csr)
		if err != nil {
			t.Error(err)
			return &authority.Intermediate{}
		}
		return i
	}
	for what, answer := range map[string]func([]byte) *authority.Intermediate{
		"nothing":        func([]byte) *authority.Intermediate { return &authority.Intermediate{} },
		"another zone's": func(csr []byte) *authority.Intermediate { return sign(root, "west", csr) },
		"another mesh's": func(csr []byte) *authority.Intermediate { return sign(other, "east", csr) },
		"other roots with it": func(csr []byte) *authority.Intermediate {
			i := sign(root, "east", csr)
			i.Roots = []*x509.Certificate{other.Certificate()}
			return i
		},
		"the root itself": func([]byte) *authority.Intermediate {
			return &authority.Intermediate{Chain: []*x509.Certificate{root.Certificate()}, Roots: []*x509.Certificate{root.Certificate()}}
		},
		"another key's": func([]byte) *authority.Intermediate {
			r, _ := request(t, workload(t, "shop.mesh", "a", "b"))
			return sign(root, "east", r.CSR.Raw)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			z, stop := startZone(t, badIssuer{answer}, &keeper{})
			if z.Roots() != nil {
				t.Errorf("%s: taken", what)
			}
			stop()
		})
	}
}

// TestLimitsOfIntermediates: what a zone's key can be misused for.
func TestLimitsOfIntermediates(t *testing.T) {
	root := newRoot(t, "shop")
	if c := root.Certificate(); c.MaxPathLen != 1 || len(c.PermittedURIDomains) != 1 || !c.PermittedDNSDomainsCritical {
		t.Errorf("root: path length %d, URI domains %q", c.MaxPathLen, c.PermittedURIDomains)
	}
	key, _ := authority.NewKey()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"evil.example"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, _ := x509.ParseCertificateRequest(csr)
	cert, err := root.SignIntermediate("east", parsed, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if len(cert.DNSNames) > 0 || cert.MaxPathLen != 0 || !cert.MaxPathLenZero || time.Until(cert.NotAfter) > 90*day {
		t.Errorf("%+v", cert)
	}
	zone := &catest.CA{Cert: cert, Key: key}
	roots := x509.NewCertPool()
	roots.AddCert(root.Certificate())
	check := func(chain ...*x509.Certificate) error {
		opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
		for _, c := range chain[1:] {
			opts.Intermediates.AddCert(c)
		}
		_, err := chain[0].Verify(opts)
		return err
	}
	leaf := func(parent *catest.CA, uri string) *x509.Certificate {
		u, _ := url.Parse(uri)
		return catest.New(t, "leaf", parent, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage, c.URIs = false, x509.KeyUsageDigitalSignature, []*url.URL{u}
			c.NotBefore = time.Now().Add(-time.Minute)
		}).Cert
	}
	if err := check(leaf(zone, "spiffe://shop.mesh/ns/a/sa/b"), cert); err != nil {
		t.Error(err)
	}
	if err := check(leaf(zone, "spiffe://other.mesh/ns/a/sa/b"), cert); err == nil {
		t.Error("an identity of another domain is verified")
	}
	below := catest.New(t, "below", zone, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(-time.Minute) })
	if err := check(leaf(below, "spiffe://shop.mesh/ns/a/sa/b"), below.Cert, cert); err == nil {
		t.Error("an authority below the zone's is verified")
	}
	if _, err := root.SignIntermediate("", parsed, time.Now()); err == nil {
		t.Error("an intermediate of no zone")
	}
	parsed.Signature[0] ^= 1
	if _, err := root.SignIntermediate("east", parsed, time.Now()); err == nil {
		t.Error("a request that its key did not sign")
	}
}

func TestSignRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z, stop := startZone(t, newRoot(t, "shop").ForZone("east", time.Now), &keeper{})
		defer stop()
		id := workload(t, "shop.mesh", "web", "front")
		key, _ := authority.NewKey()
		csr := func(edit func(*x509.CertificateRequest)) *x509.CertificateRequest {
			template := &x509.CertificateRequest{URIs: []*url.URL{id.URL()}}
			edit(template)
			der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
			if err != nil {
				t.Fatal(err)
			}
			out, err := x509.ParseCertificateRequest(der)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		plain := csr(func(*x509.CertificateRequest) {})
		node, _ := mesh.Node(domain(t, "shop.mesh"), "west", "n1")
		nodeRequest, _ := request(t, node)
		for what, r := range map[string]authority.Request{
			"no identity":      {CSR: plain},
			"no request":       {ID: id},
			"another identity": {ID: workload(t, "shop.mesh", "web", "back"), CSR: plain},
			"another domain":   {ID: workload(t, "other.mesh", "web", "front"), CSR: plain},
			"two URIs": {ID: id, CSR: csr(func(c *x509.CertificateRequest) {
				c.URIs = append(c.URIs, workload(t, "shop.mesh", "web", "admin").URL())
			})},
			"a DNS name":          {ID: id, CSR: csr(func(c *x509.CertificateRequest) { c.DNSNames = []string{"web"} })},
			"an address":          {ID: id, CSR: csr(func(c *x509.CertificateRequest) { c.IPAddresses = []net.IP{{127, 0, 0, 1}} })},
			"a negative life":     {ID: id, CSR: plain, Life: -1},
			"another zone's node": nodeRequest,
		} {
			if _, err := z.Sign(t.Context(), r); err == nil {
				t.Errorf("%s: signed", what)
			}
		}
		if _, err := z.Sign(t.Context(), authority.Request{ID: id, CSR: plain}); err != nil {
			t.Error(err)
		}
	})
}

// TestRecords: what is kept is read again, what was tampered with is not, and no error
// or text has a key in it.
func TestRecords(t *testing.T) {
	root := newRoot(t, "shop")
	record, err := root.Record()
	if err != nil {
		t.Fatal(err)
	}
	again, err := authority.LoadRoot(record)
	if err != nil || !again.Certificate().Equal(root.Certificate()) || again.Mesh() != "shop" || again.Domain() != root.Domain() {
		t.Errorf("%v %v", again, err)
	}
	for _, s := range []string{fmt.Sprint(root), fmt.Sprintf("%#v", root), fmt.Sprintf("%+v", root)} {
		if strings.Contains(s, "Key") || strings.Contains(s, "0x") {
			t.Errorf("a root prints %q", s)
		}
	}
	other, err := newRoot(t, "other").Record()
	if err != nil {
		t.Fatal(err)
	}
	for what, data := range map[string][]byte{
		"nothing":         nil,
		"no JSON":         []byte("x"),
		"another domain":  bytes.Replace(record, []byte(`"shop.mesh"`), []byte(`"else.mesh"`), 1),
		"a newer version": bytes.Replace(record, []byte(`"version":1`), []byte(`"version":2`), 1),
		"another's key":   append(bytes.Clone(record[:bytes.Index(record, []byte(`"key"`))]), other[bytes.Index(other, []byte(`"key"`)):]...),
		"a damaged key":   bytes.Replace(record, []byte("PRIVATE KEY-----\\nM"), []byte("PRIVATE KEY-----\\nN"), 1),
	} {
		if _, err := authority.LoadRoot(data); err == nil {
			t.Errorf("%s: loaded", what)
		} else if strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: the error quotes the record: %v", what, err)
		}
	}
	// A damaged record of an intermediate is replaced; it is not an error.
	synctest.Test(t, func(t *testing.T) {
		k := &keeper{record: []byte("damaged")}
		z, stop := startZone(t, newRoot(t, "shop").ForZone("east", time.Now), k)
		defer stop()
		if z.Roots() == nil || bytes.Equal(k.record, []byte("damaged")) {
			t.Error("no intermediate")
		}
	})
}

func FuzzLoadRoot(f *testing.F) {
	record, err := newRoot(f, "shop").Record()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(record)
	f.Add([]byte(`{"version":1,"mesh":"m","domain":"m.mesh"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := authority.LoadRoot(data); err == nil && (r.Mesh() == "" || r.Certificate() == nil) {
			t.Fatal("a root of nothing")
		}
	})
}
