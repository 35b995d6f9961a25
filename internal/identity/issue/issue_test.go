package issue_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"net/url"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type noKeeper struct{}

func (noKeeper) Load(context.Context) ([]byte, error) { return nil, nil }
func (noKeeper) Save(context.Context, []byte) error   { return nil }

// world is what the control plane has in its records.
type world struct {
	workloads map[string]issue.Workload
	nodes     map[string]bool // "NODE/MESH"
	gateways  map[string]bool // that are ingresses
	fail      error
}

func (w *world) Workload(_ context.Context, namespace, name string) (issue.Workload, bool, error) {
	found, ok := w.workloads[namespace+"/"+name]
	return found, ok, w.fail
}

func (w *world) NodeInMesh(_ context.Context, node, meshName string) (bool, error) {
	return w.nodes[node+"/"+meshName], w.fail
}

func (w *world) Gateway(_ context.Context, node string, kind mesh.Kind) (bool, error) {
	return kind == mesh.IngressID && w.gateways[node], w.fail
}

func shop(t testing.TB) mesh.Domain {
	t.Helper()
	d, err := mesh.ParseDomain("shop.mesh")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newSigner(t testing.TB) *authority.ZoneSigner {
	t.Helper()
	root, err := authority.NewRoot("shop", shop(t), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	z, err := authority.NewZoneSigner(t.Context(), authority.ZoneConfig{
		Mesh: "shop", Domain: shop(t), Zone: "east", Issuer: root.ForZone("east", time.Now), Keeper: noKeeper{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = z.Run(ctx) }()
	for deadline := time.Now().Add(10 * time.Second); z.NotAfter().IsZero() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	return z
}

// csr with URI names, of a new key.
func csr(t testing.TB, uris ...string) []byte {
	t.Helper()
	key, err := authority.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func forWorkload(request []byte, namespace, name string) *identityv1.IssueRequest {
	return &identityv1.IssueRequest{Request: request,
		Subject: &identityv1.IssueRequest_Workload{Workload: &identityv1.Workload{Namespace: namespace, Name: name}}}
}

func forNode(request []byte, meshName string) *identityv1.IssueRequest {
	return &identityv1.IssueRequest{Request: request, Subject: &identityv1.IssueRequest_Node{Node: &identityv1.Node{Mesh: meshName}}}
}

const (
	front = "spiffe://shop.mesh/ns/web/sa/front"
	node1 = "spiffe://shop.mesh/zone/east/node/n1"
)

func TestIssue(t *testing.T) {
	w := &world{
		workloads: map[string]issue.Workload{
			"web/front-1": {Mesh: "shop", Namespace: "web", ServiceAccount: "front", Node: "n1"},
			"web/front-2": {Mesh: "shop", Namespace: "web", ServiceAccount: "front", Node: "n2"},
			"web/plain":   {Mesh: "plain", Namespace: "web", ServiceAccount: "front", Node: "n1"},
			"web/adrift":  {Mesh: "shop", Namespace: "web", ServiceAccount: "front"},
			"web/odd":     {Mesh: "shop", Namespace: "web", ServiceAccount: "Front", Node: "n1"},
		},
		nodes: map[string]bool{"n1/shop": true, "n1/plain": true},
	}
	var recorded []issue.Issued
	var recordErr, callerErr error
	node, signer := "n1", authority.Signer(newSigner(t))
	board := issue.NewBoard(nil)
	s := issue.NewServer(issue.Config{
		Zone: "east", Workloads: w, Board: board,
		Caller: func(context.Context) (string, error) { return node, callerErr },
		Mesh: func(name string) (issue.Mesh, bool) {
			return issue.Mesh{Name: "shop", Domain: shop(t), Issuer: "a", Signer: signer}, name == "shop"
		},
		Record: func(_ context.Context, i issue.Issued) error {
			recorded = append(recorded, i)
			return recordErr
		},
	})
	good := csr(t, front)
	tampered := append([]byte(nil), good...)
	tampered[len(tampered)-1] ^= 1
	for what, tc := range map[string]struct {
		request *identityv1.IssueRequest
		want    codes.Code
	}{
		"a workload of the node":       {forWorkload(good, "web", "front-1"), codes.OK},
		"the node":                     {forNode(csr(t, node1), "shop"), codes.OK},
		"a workload of another node":   {forWorkload(good, "web", "front-2"), codes.PermissionDenied},
		"a workload of no node":        {forWorkload(good, "web", "adrift"), codes.PermissionDenied},
		"no such workload":             {forWorkload(good, "web", "none"), codes.NotFound},
		"a mesh without mTLS":          {forWorkload(good, "web", "plain"), codes.NotFound},
		"a service account's odd name": {forWorkload(good, "web", "odd"), codes.FailedPrecondition},
		"a mesh of other nodes":        {forNode(csr(t, node1), "other"), codes.PermissionDenied},
		"the node in a plain mesh":     {forNode(csr(t, node1), "plain"), codes.PermissionDenied},
		"another node":                 {forNode(csr(t, "spiffe://shop.mesh/zone/east/node/n2"), "shop"), codes.InvalidArgument},
		"another zone":                 {forNode(csr(t, "spiffe://shop.mesh/zone/west/node/n1"), "shop"), codes.InvalidArgument},
		"another account":              {forWorkload(csr(t, "spiffe://shop.mesh/ns/web/sa/admin"), "web", "front-1"), codes.InvalidArgument},
		"a second name": {forWorkload(csr(t, front, "spiffe://shop.mesh/ns/web/sa/admin"), "web", "front-1"),
			codes.InvalidArgument},
		"no name":               {forWorkload(csr(t), "web", "front-1"), codes.InvalidArgument},
		"nothing":               {&identityv1.IssueRequest{}, codes.InvalidArgument},
		"no subject":            {&identityv1.IssueRequest{Request: good}, codes.InvalidArgument},
		"an empty workload":     {&identityv1.IssueRequest{Request: good, Subject: &identityv1.IssueRequest_Workload{}}, codes.NotFound},
		"no request":            {forWorkload(nil, "web", "front-1"), codes.InvalidArgument},
		"a long request":        {forWorkload(make([]byte, issue.MaxRequest+1), "web", "front-1"), codes.InvalidArgument},
		"not signed by its key": {forWorkload(tampered, "web", "front-1"), codes.InvalidArgument},
	} {
		recorded = nil
		answer, err := s.Issue(t.Context(), tc.request)
		if status.Code(err) != tc.want || (answer != nil) != (tc.want == codes.OK) || (len(recorded) == 1) != (tc.want == codes.OK) {
			t.Errorf("%s: %v, %d records", what, err, len(recorded))
			continue
		}
		if err != nil {
			continue
		}
		leaf, err := x509.ParseCertificate(answer.Chain[0])
		if err != nil || len(answer.Chain) != 2 || answer.Mesh != "shop" || answer.Issuer != "a" {
			t.Errorf("%s: %+v %v", what, answer, err)
			continue
		}
		r := recorded[0]
		if r.ID.String() != leaf.URIs[0].String() || r.Serial != mesh.SerialOf(leaf) || !r.NotAfter.Equal(leaf.NotAfter) || r.Node != "n1" ||
			r.Issuer != "a" {
			t.Errorf("%s: recorded %+v", what, r)
		}
		if p := board.Peers("shop"); len(p) != 1 || !p[0].HoldsUntil.Equal(leaf.NotAfter) || p[0].Connected {
			t.Errorf("%s: peers %+v", what, p)
		}
	}
	request := forWorkload(good, "web", "front-1")
	refused := func(what string, want codes.Code) {
		t.Helper()
		if answer, err := s.Issue(t.Context(), request); status.Code(err) != want || answer != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	recordErr = errors.New("disk full")
	refused("no record", codes.Unavailable)
	recordErr = nil
	w.fail = errors.New("store away")
	refused("no records to read", codes.Unavailable)
	w.fail = nil
	callerErr = status.Error(codes.Unauthenticated, "no certificate")
	refused("no caller", codes.Unauthenticated)
	callerErr = nil
	signer = failing{errors.New("no intermediate")}
	refused("an authority that cannot sign", codes.Unavailable)
	signer = failing{&authority.DeniedError{Signer: "example.com/x", Reason: "Policy"}}
	refused("an authority that refuses", codes.PermissionDenied)
}

type failing struct{ err error }

func (f failing) Sign(context.Context, authority.Request) ([]*x509.Certificate, error) {
	return nil, f.err
}
func (f failing) Roots() []*x509.Certificate { return nil }

// TestLimits: a node that requests too often is refused, and another one is not.
func TestLimits(t *testing.T) {
	now := time.Now()
	node := "n1"
	s := issue.NewServer(issue.Config{
		Workloads: &world{}, Board: issue.NewBoard(nil), Limits: issue.Limits{Rate: 2, Burst: 5},
		Caller: func(context.Context) (string, error) { return node, nil }, Now: func() time.Time { return now },
	})
	refused := func(calls int) (n int) {
		for range calls {
			if _, err := s.Issue(t.Context(), &identityv1.IssueRequest{}); status.Code(err) == codes.ResourceExhausted {
				n++
			}
		}
		return n
	}
	if n := refused(8); n != 3 {
		t.Errorf("%d of 8 are refused, with a burst of 5", n)
	}
	node = "n2"
	if n := refused(5); n != 0 {
		t.Errorf("%d of another node are refused", n)
	}
	node, now = "n1", now.Add(time.Second)
	if n := refused(4); n != 2 {
		t.Errorf("%d of 4 are refused a second later", n)
	}
}

func FuzzIssue(f *testing.F) {
	w := &world{workloads: map[string]issue.Workload{"web/front-1": {Mesh: "shop", Namespace: "web", ServiceAccount: "front", Node: "n1"}}}
	signer := newSigner(f)
	domain := shop(f)
	s := issue.NewServer(issue.Config{
		Zone: "east", Workloads: w, Board: issue.NewBoard(nil), Limits: issue.Limits{Rate: 1e9, Burst: 1e9},
		Caller: func(context.Context) (string, error) { return "n1", nil },
		Mesh: func(string) (issue.Mesh, bool) {
			return issue.Mesh{Name: "shop", Domain: domain, Issuer: "a", Signer: signer}, true
		},
		Record: func(_ context.Context, i issue.Issued) error {
			if i.ID.String() != front {
				return errors.New("another identity: " + i.ID.String())
			}
			return nil
		},
	})
	f.Add(csr(f, front))
	f.Add(csr(f, front, front))
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, request []byte) {
		answer, err := s.Issue(t.Context(), forWorkload(request, "web", "front-1"))
		if err != nil {
			return
		}
		leaf, err := x509.ParseCertificate(answer.Chain[0])
		if err != nil || len(leaf.URIs) != 1 || leaf.URIs[0].String() != front || len(leaf.DNSNames) > 0 || leaf.IsCA {
			t.Fatalf("%+v %v", leaf, err)
		}
	})
}

// TestBoard: agents' reports count only within what was published and for as long as
// their stream is the newest.
func TestBoard(t *testing.T) {
	acks := 0
	b := issue.NewBoard(func() { acks++ })
	if err := b.Publish(issue.Published{State: rotation.New("shop", rotation.Authority{ID: "a", Roots: []byte("x")}, time.Now()),
		Domain: shop(t)}); err == nil {
		t.Error("roots that are no certificates are published")
	}
	if trust, err := b.Trust(); err != nil || len(trust.Meshes()) != 0 {
		t.Errorf("%v %v", trust, err)
	}
	b.Restore([]issue.Issued{{Node: "n1", Mesh: "shop", NotAfter: time.Unix(100, 0)}, {Node: "n1", Mesh: "shop", NotAfter: time.Unix(50, 0)}})
	if p := b.Peers("shop"); len(p) != 1 || p[0].Name != "node/n1" || !p[0].HoldsUntil.Equal(time.Unix(100, 0)) {
		t.Errorf("%+v", p)
	}
	b.Forget("n1")
	if p := b.Peers("shop"); len(p) != 0 || acks != 1 {
		t.Errorf("%+v, %d acknowledgements", p, acks)
	}
}
