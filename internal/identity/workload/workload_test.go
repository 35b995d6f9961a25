package workload_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLife: certificates are there at every moment of three days, are renewed at two
// thirds of their life ± 10 %, not all at once, and listeners see it.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		defer p.stop()
		const workloads = 20
		dir := t.TempDir()
		a := p.newAgent(t, dir, "n1", workloads)
		defer a.stop()
		time.Sleep(time.Second)
		synctest.Wait()
		first, _ := subject("n1", 0)
		svid, changed, err := a.Current(first)
		if err != nil || svid.ID.String() != "spiffe://shop.mesh/ns/web/sa/sa-0" || svid.Mesh != "shop" {
			t.Fatalf("%+v %v", svid, err)
		}
		for range 72 * 4 {
			time.Sleep(15 * time.Minute)
			for i := range workloads {
				if left := time.Until(a.certificate(i).NotAfter()); left < 6*time.Hour {
					t.Fatalf("%s left of the certificate of workload %d", left, i)
				}
			}
		}
		select {
		case <-changed:
		default:
			t.Error("the renewal is not visible")
		}
		if now := a.certificate(0); now.Serial() == svid.Serial() || now.Key == svid.Key {
			t.Error("a renewed certificate has the serial or the key of the old one")
		}
		// When each was renewed, as the control plane recorded it.
		p.mu.Lock()
		defer p.mu.Unlock()
		var parts []float64
		last := map[string]time.Time{}
		for _, i := range p.issued {
			if before, ok := last[i.Workload]; ok {
				parts = append(parts, float64(i.NotBefore.Add(5*time.Minute).Sub(before))/float64(24*time.Hour+5*time.Minute))
			}
			last[i.Workload] = i.NotBefore
		}
		slices.Sort(parts)
		low, high := parts[0], parts[len(parts)-1]
		if len(parts) < 4*workloads || low < 0.599 || high > 0.736 || high-low < 0.05 {
			t.Errorf("%d renewals at %.3f to %.3f of the life", len(parts), low, high)
		}
		// On disk: a file each, for the owner only.
		files, err := os.ReadDir(filepath.Join(dir, "n1", "certificates"))
		if err != nil || len(files) != workloads {
			t.Errorf("%d files: %v", len(files), err)
		}
		for _, f := range files {
			if info, _ := f.Info(); info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %s", f.Name(), info.Mode())
			}
		}
	})
}

// TestOutage: without any control plane an agent starts again and serves, until the
// certificates run out; then it fails closed, and recovers with the control plane.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		dir := t.TempDir()
		a, b := p.newAgent(t, dir, "n1", 2), p.newAgent(t, dir, "n2", 2)
		time.Sleep(time.Second)
		serial := a.certificate(0).Serial()
		p.stop()
		a.stop()
		b.stop()
		time.Sleep(8 * time.Hour)
		a, b = p.newAgent(t, dir, "n1", 2), p.newAgent(t, dir, "n2", 2)
		if got := a.certificate(0).Serial(); got != serial {
			t.Errorf("serial %s after the restart, before %s", got, serial)
		}
		if err := errors.Join(a.accepts(b, 1), b.accepts(a, 1)); err != nil {
			t.Errorf("after a restart without a control plane: %v", err)
		}
		time.Sleep(15 * time.Hour) // renewals fail
		if err := errors.Join(a.accepts(b, 1), b.accepts(a, 1)); err != nil {
			t.Errorf("an hour before the end: %v", err)
		}
		time.Sleep(time.Hour + 10*time.Minute)
		s, _ := subject("n1", 0)
		if _, _, err := a.Current(s); !errors.Is(err, workload.ErrExpired) {
			t.Errorf("after the end: %v", err)
		}
		p.serve()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if err := errors.Join(a.accepts(b, 0), b.accepts(a, 0)); err != nil {
			t.Errorf("after the control plane's return: %v", err)
		}
		a.stop()
		b.stop()
		p.stop()
	})
}

// rotate takes steps until a rotation ends, while all agents accept each other.
func rotate(t *testing.T, p *plane, agents []*agent, atMost time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(atMost); ; {
		s, progress, err := p.driver.Reconcile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Phase == rotation.Stable {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("in phase %s for %s, waiting for %q, blocked: %v", s.Phase, atMost, progress.Waiting, progress.Blocked)
		}
		for range 10 {
			for _, server := range agents {
				for _, client := range agents {
					if err := server.accepts(client, 0); err != nil {
						t.Fatalf("phase %s: %s refuses %s: %v", s.Phase, server.name, client.name, err)
					}
				}
			}
			time.Sleep(300 * time.Millisecond)
		}
	}
}

func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		dir := t.TempDir()
		agents := []*agent{p.newAgent(t, dir, "n1", 3), p.newAgent(t, dir, "n2", 3), p.newAgent(t, dir, "n3", 3)}
		time.Sleep(time.Second)
		before := agents[0].certificate(0)
		next := p.newAuthority()
		if _, err := p.driver.Start(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		rotate(t, p, agents, 5*time.Minute)
		if trust, _ := agents[1].Trust(); len(trust.ClientDomains("shop")) != 1 {
			t.Error("domains")
		} else if _, err := trust.Client("shop", before.Chain, time.Now()); err == nil {
			t.Error("a certificate of the old authority is accepted after the rotation")
		}
		// A node that is cut off, and still carries traffic, is waited for: also by a
		// control plane that was restarted.
		agents[2].stop()
		p.stop()
		p.restart()
		p.serve()
		if _, err := p.driver.Ensure(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		if _, err := p.driver.Start(t.Context(), p.newAuthority()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for range 3 {
			s, progress, err := p.driver.Reconcile(t.Context())
			if err != nil || s.Phase != rotation.Trusting || !slices.Equal(progress.Waiting, []string{"node/n3"}) {
				t.Fatalf("%s, waiting for %q: %v", s.Phase, progress.Waiting, err)
			}
		}
		agents[2] = p.newAgent(t, dir, "n3", 3)
		rotate(t, p, agents, 5*time.Minute)
		for _, a := range agents {
			a.stop()
		}
		p.stop()
	})
}

// TestAnswerCrossesChange: a certificate that was signed before a change of issuer, and
// arrives after this agent has acknowledged the change, is not used.
func TestAnswerCrossesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		defer p.stop()
		a := p.newAgent(t, t.TempDir(), "n1", 0)
		defer a.stop()
		time.Sleep(time.Second)
		p.mu.Lock()
		p.hold = make(chan struct{})
		p.mu.Unlock()
		a.Add(subject("n1", 0)) // its answer is held back
		time.Sleep(time.Second)
		next := p.newAuthority()
		if _, err := p.driver.Start(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		for range 2 { // to Issuing, and its acknowledgement
			time.Sleep(time.Second)
			if _, _, err := p.driver.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		p.mu.Lock()
		close(p.hold)
		p.hold = nil
		p.mu.Unlock()
		synctest.Wait() // the answer has come
		s, _ := subject("n1", 0)
		if svid, _, err := a.Current(s); err == nil &&
			string(svid.Chain[1].AuthorityKeyId) != string(p.roots[next.ID].Certificate().SubjectKeyId) {
			t.Error("the agent uses a certificate of the old authority after it has acknowledged the new one")
		}
		time.Sleep(time.Minute)
		a.certificate(0)
	})
}

// TestPlain: turning mTLS off drops certificates, and turning it on brings them back.
func TestPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		defer p.stop()
		dir := t.TempDir()
		a := p.newAgent(t, dir, "n1", 1)
		defer a.stop()
		time.Sleep(time.Second)
		a.certificate(0)
		change := func(to rotation.Authority) {
			t.Helper()
			if _, err := p.driver.Start(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			rotate(t, p, nil, 5*time.Minute)
			time.Sleep(time.Minute)
		}
		change(rotation.Authority{})
		s, _ := subject("n1", 0)
		if _, _, err := a.Current(s); !errors.Is(err, workload.ErrNone) || !a.AcceptsPlain("shop") {
			t.Errorf("without mTLS: %v", err)
		}
		if files, _ := os.ReadDir(filepath.Join(dir, "n1", "certificates")); len(files) != 0 {
			t.Errorf("%d certificates are left on disk", len(files))
		}
		change(p.newAuthority())
		if a.certificate(0); a.AcceptsPlain("shop") || a.AcceptsPlain("other") {
			t.Error("plain text is accepted")
		}
	})
}

// TestSubjects: identities that change, go, and are forgotten.
func TestSubjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		defer p.stop()
		dir := t.TempDir()
		a := p.newAgent(t, dir, "n1", 2)
		time.Sleep(time.Second)
		serial := a.certificate(0).Serial()
		a.Add(subject("n1", 0))
		if a.certificate(0).Serial() != serial {
			t.Error("adding a subject again replaces its certificate")
		}
		// Another account: the control plane refuses it, and the old certificate is gone.
		s0, _ := subject("n1", 0)
		s1, id1 := subject("n1", 1)
		_, changed, _ := a.Current(s0)
		a.Add(s0, id1)
		select {
		case <-changed:
		default:
			t.Error("the end of the certificate is not visible")
		}
		time.Sleep(time.Minute)
		if _, _, err := a.Current(s0); !errors.Is(err, workload.ErrNone) || !strings.Contains(err.Error(), "sa-0") {
			t.Errorf("with another account: %v", err)
		}
		a.Remove(s1)
		a.Remove(s1)
		if _, _, err := a.Current(s1); !errors.Is(err, workload.ErrNone) {
			t.Errorf("after its removal: %v", err)
		}
		// A workload of another node, the node itself, and a mesh that is not there.
		other, otherID := subject("n2", 0)
		a.Add(other, otherID)
		node := workload.Subject{Mesh: "shop"}
		nodeID, err := nodeIn("east", "n1")
		if err != nil {
			t.Fatal(err)
		}
		a.Add(node, nodeID)
		time.Sleep(time.Minute)
		if _, _, err := a.Current(other); err == nil || !strings.Contains(err.Error(), "not one of node n1") {
			t.Errorf("another node's workload: %v", err)
		}
		if svid, _, err := a.Current(node); err != nil || svid.ID != nodeID {
			t.Errorf("the node's own: %v", err)
		}
		a.stop()
		// What was deleted while the agent was away is removed once its workloads are known.
		a = p.newAgent(t, dir, "n1", 0)
		a.Add(node, nodeID)
		if err := a.Prune(); err != nil {
			t.Error(err)
		}
		if files, _ := os.ReadDir(filepath.Join(dir, "n1", "certificates")); len(files) != 1 {
			t.Errorf("%d files after Prune", len(files))
		}
		a.stop()
	})
}

// TestDamagedFiles: nothing on disk keeps an agent from its start.
func TestDamagedFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		defer p.stop()
		dir := t.TempDir()
		a := p.newAgent(t, dir, "n1", 1)
		time.Sleep(time.Second)
		a.stop()
		certificates := filepath.Join(dir, "n1", "certificates")
		files, err := os.ReadDir(certificates)
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		cert, trust := filepath.Join(certificates, files[0].Name()), filepath.Join(dir, "n1", "trust.json")
		for _, corrupt := range []func() error{
			func() error { return os.WriteFile(cert, []byte("{"), 0o600) },
			func() error { return os.Chmod(cert, 0o644) },
			func() error { return os.WriteFile(trust, []byte(`{"version":1,"bundles":[null]}`), 0o600) },
			func() error { return os.WriteFile(trust, []byte(`{"version":1,"bundles":[{"mesh":"shop"}]}`), 0o600) },
			func() error { return os.Remove(trust) },
		} {
			if err := corrupt(); err != nil {
				t.Fatal(err)
			}
			a = p.newAgent(t, dir, "n1", 1)
			time.Sleep(time.Minute)
			a.certificate(0)
			a.stop()
			if err := os.Chmod(cert, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestDirectoryComesLater: what cannot be stored stops no agent. Certificates come once
// they can be.
func TestDirectoryComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		defer p.stop()
		dir := t.TempDir()
		inTheWay := filepath.Join(dir, "n1")
		if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		a := p.newAgent(t, dir, "n1", 1)
		defer a.stop()
		time.Sleep(time.Minute)
		s, _ := subject("n1", 0)
		if _, _, err := a.Current(s); !errors.Is(err, workload.ErrNone) {
			t.Errorf("a certificate that is not on disk: %v", err)
		}
		if err := os.Remove(inTheWay); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		a.certificate(0)
	})
}

// TestEmptyPlane: a control plane that comes back empty does not take away what traffic
// needs.
func TestEmptyPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		dir := t.TempDir()
		a := p.newAgent(t, dir, "n1", 1)
		defer a.stop()
		time.Sleep(time.Second)
		p.board.Remove("shop")
		time.Sleep(time.Second)
		if err := a.accepts(a, 0); err != nil {
			t.Errorf("with no mesh at the control plane: %v", err)
		}
		other, err := authority.NewRoot("other", mustDomain(t, "other.mesh"), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		publish(t, p, "other", other)
		time.Sleep(time.Second)
		if err := a.accepts(a, 0); err != nil {
			t.Errorf("with another mesh at the control plane: %v", err)
		}
		if trust, _ := a.Trust(); len(trust.Meshes()) != 2 {
			t.Errorf("meshes %q", trust.Meshes())
		}
		s, _ := subject("n1", 0)
		a.Remove(s)
		publish(t, p, "other", other)
		time.Sleep(time.Second)
		if trust, _ := a.Trust(); len(trust.Meshes()) != 1 {
			t.Errorf("meshes %q after the last workload went", trust.Meshes())
		}
		p.stop()
	})
}

// TestMemberBeforeItsSubject: who asks for a member's certificate before the Manager has its
// subject is told when it has.
func TestMemberBeforeItsSubject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		defer p.stop()
		a := p.newAgent(t, t.TempDir(), "n1", 0)
		defer a.stop()
		time.Sleep(time.Second)
		var members []workload.Member
		for i := 0; ; i++ {
			s, _ := subject("n1", i)
			members = append(members, workload.Member{Namespace: s.Namespace, Name: s.Name, Mesh: "shop", ServiceAccount: fmt.Sprintf("sa-%d", i)})
			a.SetMembers(members)
			_, _, told := a.HasMember(s.Namespace, s.Name)
			if _, changed, _ := a.Current(s); changed != nil {
				continue // the subject was there already: try another one
			}
			synctest.Wait()
			select {
			case <-told:
			default:
				t.Error("who waits for the member is not told that its subject is there")
			}
			break
		}
		time.Sleep(time.Second)
		for i := range members {
			a.certificate(i)
		}
	})
}

// TestWire: the same over gRPC, in real time.
func TestWire(t *testing.T) {
	p := newPlane(t)
	defer p.stop()
	l := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	p.server.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "node", "n1"))
	m := workload.New(workload.Config{Dir: t.TempDir(), Client: identityv1.NewIdentityClient(conn)})
	s, id := subject("n1", 0)
	m.Add(s, id)
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	_, changed, _ := m.Current(s)
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Error("no certificate")
	}
	if svid, _, err := m.Current(s); err != nil || svid.ID != id {
		t.Errorf("%v %v", svid, err)
	}
	acked := func() bool {
		peers := p.board.Peers("shop")
		return len(peers) == 1 && peers[0].Connected && peers[0].Acked == 1 && time.Until(peers[0].HoldsUntil) > 23*time.Hour
	}
	for deadline := time.Now().Add(20 * time.Second); !acked(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not acknowledged: %+v", p.board.Peers("shop"))
		}
	}
	cancel()
	if err := errors.Join(<-done, conn.Close()); err != nil {
		t.Error(err)
	}
	server.Stop()
	<-served
	for deadline := time.Now().Add(20 * time.Second); p.board.Peers("shop")[0].Connected; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the stream's end is not noticed")
		}
	}
}
