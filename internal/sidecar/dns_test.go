package sidecar

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/sidecar/adstest"
	"github.com/proxima-mesh/proxima/internal/sidecar/nameserver"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// sendName as a control plane does.
func (w *world) sendName(resource, version string, h wire.HostName) {
	w.t.Helper()
	w.cp.Set(wire.Names, resource, version, raw(h.Append(nil)))
}

// TestDNS: a workload whose connections are led to the proxy resolves names by the supervisor, as they change,
// and also when everything else is dead; other names are the resolver's.
func TestDNS(t *testing.T) {
	t.Parallel()
	pod, peer := netns.New(t, "pod"), netns.New(t, "peer")
	netns.Connect(pod, peer, [2]string{"198.51.100.2/24", "198.51.100.1/24"})
	w := newWorld(t)
	for _, dir := range []string{w.dir, filepath.Join(w.dir, "bin")} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(w.dir, "bin", "envoy") // for a user that may not read the cache
	if out, err := exec.Command("cp", w.envoy, binary).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.envoy, w.run = binary, pod.Start
	// The resolver of the machine, at the peer.
	var others nameserver.Table
	domain, www := wire.HostName{Names: []string{"example.org"}}, wire.HostName{Names: []string{"www"}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}
	if err := others.Take([]wire.Resource{
		wire.NewResource(wire.Names, wire.NamesDomain, "1", domain.Append(nil)), wire.NewResource(wire.Names, "www", "1", www.Append(nil)),
	}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var on nameserver.Sockets
	if err := peer.Do(func() (err error) { on, err = nameserver.Listen("198.51.100.1:53"); return err }); err != nil {
		t.Fatal(err)
	}
	go func() { done <- nameserver.New(nameserver.Config{Table: &others}).Serve(ctx, on) }()
	t.Cleanup(func() { stop(); <-done })
	resolvConf := filepath.Join(w.dir, "resolv.conf")
	if err := os.WriteFile(resolvConf, []byte("nameserver 198.51.100.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	l, c := adstest.Passthrough(t, "out-virtual", "0.0.0.0:15001", "passthrough")
	w.cp.Set(wire.Cluster, "passthrough", "1", c)
	w.cp.Set(wire.Listener, "out-virtual", "1", l)
	w.sendName(wire.NamesDomain, "1", wire.HostName{Names: []string{"cluster.local"}})
	w.sendName("shop/stock", "1", wire.HostName{Names: []string{"stock.shop.svc"}, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.7")}})
	control, err := peer.Listen("tcp", "198.51.100.1:15010")
	if err != nil {
		t.Fatal(err)
	}
	stopControl := w.cp.Serve(control, w.peerConfig())
	w.args = append(w.args, "--server", "198.51.100.1:15010", "--redirect", "netns", "--dns", "--resolv-conf", resolvConf)
	s := w.start()
	status := s.await("it serves", func(s Status) bool { return s.Ready == "true" && s.Relay.Upstream.Connected })
	// lookup as a program of the workload does, with a resolver that is not there.
	lookup := func(network, name string) string {
		t.Helper()
		var found []string
		err := pod.Do(func() (err error) {
			conn, err := net.DialTimeout(network, "198.51.100.99:53", 3*time.Second)
			if err != nil {
				return err
			}
			r := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			found, err = r.LookupHost(ctx, name)
			return err
		})
		if err != nil {
			return err.Error()
		}
		return strings.Join(found, " ")
	}
	resolves := func(when, name, want string) {
		t.Helper()
		for _, network := range []string{"udp", "tcp"} {
			last := ""
			testkit.Eventually(t, when+": "+name+" is "+want+" by "+network, func() bool {
				last = lookup(network, name)
				return strings.Contains(last, want)
			})
		}
	}
	const stock = "stock.shop.svc.cluster.local."
	resolves("at the start", stock, "10.96.0.7")
	resolves("of others", "www.example.org.", "192.0.2.7")
	resolves("that is not there", "none.shop.svc.cluster.local.", "no such host")
	w.sendName("shop/stock", "2", wire.HostName{Names: []string{"stock.shop.svc"}, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.8")}})
	resolves("after a change", stock, "10.96.0.8")
	testkit.Eventually(t, "names are on disk", func() bool {
		data, err := os.ReadFile(filepath.Join(w.arg("--dir"), "state"))
		return err == nil && strings.Contains(string(data), string([]byte{10, 96, 0, 8}))
	})

	// Control plane, supervisor and Envoy die; the machine's part starts again.
	stopControl()
	s.kill()
	if err := syscall.Kill(status.Envoy.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s = w.start()
	s.await("it serves", func(s Status) bool { return s.Ready == "true" })
	resolves("without a control plane", stock, "10.96.0.8")
	resolves("of others, without a control plane", "www.example.org.", "192.0.2.7")
	s.end()
}
