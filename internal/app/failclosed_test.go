package app

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// fetchTimeout of a call that is to be left without an answer.
const fetchTimeout = 500 * time.Millisecond

// TestFailsClosed: with the control plane away, a workload has its certificate until it runs
// out, over a restart of the agent, too. Then nobody gets it any more: not the workload from
// the Workload API, not the tunnel for its connections; and peers refuse whoever kept it.
func TestFailsClosed(t *testing.T) {
	needsWorkloadAPI(t)
	p := startMeshPlane(t)
	if err := p.mesh(builtin("ca-1", "ca-1")); err != nil {
		t.Fatal(err)
	}
	p.awaitStable("ca-1")
	var ahead atomic.Int64 // of the agent's clock
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	p.node.now = now
	stopAgent := p.startAgent()
	p.register()
	kept, err := p.source().GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	end := kept.Certificates[0].NotAfter
	p.stop()
	fetch := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), fetchTimeout)
		defer cancel()
		_, err := workloadapi.FetchX509SVID(ctx, workloadapi.WithAddr("unix://"+p.node.SpiffeSocket))
		return err
	}

	ahead.Store(int64(time.Until(end) - time.Hour))
	stopAgent()
	stopAgent = p.startAgent()
	if again, err := p.source().GetX509SVID(); err != nil || again.Certificates[0].SerialNumber.Cmp(kept.Certificates[0].SerialNumber) != 0 {
		t.Errorf("an hour before the end, after a restart of the agent: %v, %v", again, err)
	}
	ahead.Store(int64(time.Until(end) + time.Second))
	if err := fetch(); err == nil {
		t.Error("the Workload API hands out a certificate that has run out")
	}
	stopAgent()
	p.startAgent()
	if err := fetch(); err == nil {
		t.Error("after a restart, the agent hands out a certificate that has run out")
	}

	// What the tunnel asks, with the certificates that the agent has on disk.
	at := netip.MustParseAddr("10.0.0.1")
	web := workloadOf("web-1", "", at.String())
	n := &nodeIdentity{
		manager: workload.New(workload.Config{
			Dir: filepath.Join((&agent{cfg: p.node}).dir(), "identities"), Node: "n1", Now: now,
		}),
		dataplanes: map[resource.Key]*meshv1alpha1.Dataplane{{Namespace: "default", Name: "web-1"}: web},
	}
	if svid, err := n.Of(outbound.Connection{Client: netip.AddrPortFrom(at, 40000)}, meshv1alpha1.DefaultMesh); !errors.Is(err, workload.ErrExpired) {
		t.Errorf("the tunnel gets %v, %v for the workload, want that it has run out", svid, err)
	}
	ahead.Store(0)
	svid, err := n.Of(outbound.Connection{Client: netip.AddrPortFrom(at, 40000)}, meshv1alpha1.DefaultMesh)
	if err != nil || svid.Serial() != mesh.SerialOf(kept.Certificates[0]) {
		t.Errorf("before the end, the tunnel gets %v, %v", svid, err)
	}

	// Peers, by their own clocks.
	for _, verify := range []func(time.Time) error{
		func(at time.Time) error {
			_, err := n.Trust().Client(meshv1alpha1.DefaultMesh, kept.Certificates, at)
			return err
		},
		func(at time.Time) error { // as of a server, whose identity a client demands
			_, err := n.Trust().Server(mesh.Exactly(svid.ID), kept.Certificates, at)
			return err
		},
	} {
		if err := verify(end.Add(-time.Second)); err != nil {
			t.Errorf("a second before the end: %v", err)
		}
		if err := verify(end.Add(time.Second)); err == nil {
			t.Error("a certificate that has run out is accepted")
		}
	}
}
