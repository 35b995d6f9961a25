package app

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/kernel/sockdiag"
	"github.com/proxima-mesh/proxima/internal/node/cgroups"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// fakeHierarchy has cgroups by their number.
type fakeHierarchy map[uint64]string

func (h fakeHierarchy) Lookup(path string) (cgroup.ID, error) {
	for number, p := range h {
		if p == path {
			return cgroup.ID{Number: number, Level: strings.Count(p, "/")}, nil
		}
	}
	return cgroup.ID{}, cgroup.ErrNone
}

func (h fakeHierarchy) PathOf(number uint64) (string, error) {
	if p, ok := h[number]; ok {
		return p, nil
	}
	return "", cgroup.ErrNone
}

func (fakeHierarchy) Remove(string) error { return cgroup.ErrInUse }

// TestClientsAtOneAddress: of workloads at one address the one counts whose cgroup the socket
// of a connection was made in; those without a cgroup, and the node, go by the address.
func TestClientsAtOneAddress(t *testing.T) {
	h := fakeHierarchy{1: "/proxima-default.one-1", 2: "/proxima-default.two-2", 11: "/proxima-default.one-1/command", 21: "/proxima-default.two-2/command/deep", 5: "/other", 6: "/"}
	table := cgroups.New(cgroups.Config{Hierarchy: h, File: filepath.Join(t.TempDir(), "cgroups.json")})
	sockets := map[uint16]uint64{1000: 11, 2000: 21, 3000: 5, 4000: 6} // by the client's port
	key := func(name string) resource.Key { return resource.Key{Namespace: "default", Name: name} }
	n := &nodeIdentity{
		manager: workload.New(workload.Config{Dir: t.TempDir(), Node: "n1"}),
		cgroups: table,
		socketsOwn: func(local, remote netip.AddrPort) (uint64, error) {
			if number, ok := sockets[local.Port()]; ok && remote.Port() == 80 {
				return number, nil
			}
			return 0, sockdiag.ErrNoSocket
		},
		dataplanes: map[resource.Key]*meshv1alpha1.Dataplane{
			key("one"): workloadOf("one", "", "192.0.2.1"), key("two"): workloadOf("two", "other", "192.0.2.1"),
			key("pod"): workloadOf("pod", "other", "192.0.2.9"),
		},
	}
	connection := func(port uint16, from string) outbound.Connection {
		return outbound.Connection{Client: netip.AddrPortFrom(netip.MustParseAddr(from), port), Destination: netip.MustParseAddrPort("240.0.0.1:80")}
	}
	check := func(c outbound.Connection, mesh, refusal string) {
		t.Helper()
		err := n.Admits(c, mesh)
		if refusal == "" && err != nil || refusal != "" && (err == nil || !strings.Contains(err.Error(), refusal)) {
			t.Errorf("%s to mesh %s: %v, want %q", c.Client, mesh, err, refusal)
		}
	}
	// Without cgroups nobody can tell.
	check(connection(1000, "192.0.2.1"), "default", "default/two (it has the client's address) is of mesh other")
	for name, path := range map[string]string{"one": h[1], "two": h[2]} {
		if _, err := table.Hold(path, key(name)); err != nil {
			t.Fatal(err)
		}
	}
	check(connection(1000, "192.0.2.1"), "default", "")
	check(connection(1000, "192.0.2.1"), "other", "default/one (the client is in its cgroup) is of mesh default")
	check(connection(2000, "192.0.2.1"), "other", "")
	check(connection(2000, "192.0.2.77"), "other", "") // whatever address the kernel chose
	check(connection(2000, "192.0.2.1"), "default", "default/two")
	for _, program := range []uint16{3000, 4000} { // of the machine
		check(connection(program, "192.0.2.1"), "default", "")
		check(connection(program, "192.0.2.1"), "other", "")
	}
	check(connection(9000, "192.0.2.1"), "default", "cannot be told any more") // its socket is closed
	check(connection(9000, "192.0.2.9"), "default", "default/pod")             // in a namespace of its own
	check(connection(9000, "192.0.2.9"), "other", "")

	// The certificate is the workload's, never the node's or another one's.
	if who, err := n.clientOf(connection(2000, "192.0.2.1")); err != nil || who.workload != key("two") {
		t.Errorf("%+v, %v", who, err)
	}
	delete(n.dataplanes, key("two"))
	if _, err := n.Of(connection(2000, "192.0.2.1"), "other"); err == nil || !strings.Contains(err.Error(), "is not registered") {
		t.Errorf("a workload that has ended: %v", err)
	}
}
