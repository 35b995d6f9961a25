package podproxy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// A test binary that is started with this variable is an agent for one Pod, in the folder that it names, prints what the Pod
// waits for, and ends.
const agentVariable = "PODPROXY_TEST_AGENT"

const podAddress = "198.51.100.2"

func TestMain(m *testing.M) {
	if dir := os.Getenv(agentVariable); dir != "" {
		fmt.Print(waitsFor(keeperOf(dir), time.Now()))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func keeperOf(dir string) *Keeper {
	k := New(Config{Dir: dir})
	p := pod("web", podAddress)
	p.Rules.Inbound = []uint16{8080}
	k.Set([]Pod{p})
	return k
}

// waitsFor is what the Pod waits for after patience with it; "": its rules stand.
func waitsFor(k *Keeper, now time.Time) string {
	k.reconcile(now)
	k.reconcile(now.Add(patience))
	why, _ := k.Waiting()
	return why[resource.Key{Namespace: "shop", Name: "web"}]
}

// node is a folder with the network namespace of a Pod.
func node(t *testing.T) (dir string, ns *netns.NS) {
	t.Helper()
	ns = netns.New(t, "pod")
	netns.Connect(ns, netns.New(t, "node"), [2]string{podAddress + "/24", "198.51.100.1/24"})
	dir = t.TempDir()
	path := filepath.Join(dir, "cni-1")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	l, err := ns.Listen("tcp", fmt.Sprint("127.0.0.1:", redirect.HealthPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "sidecar") // a client that has gone does not matter
			_ = c.Close()
		}
	}()
	return dir, ns
}

// led reports whether the sidecar sees the rules: by that its Pod becomes ready.
func led(t *testing.T, ns *netns.NS) bool {
	t.Helper()
	led := false
	_ = ns.Do(func() error { // an error is that of a connection that is refused
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), redirect.BeaconPort).String(), time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		answer, err := io.ReadAll(conn)
		led = string(answer) == "sidecar"
		return err
	})
	return led
}

// TestRefusedByTheKernel: where the kernel refuses the rules of a Pod, its connections are not led to its sidecar, which so is not
// ready; the reason names what to do; and the rules are there once that was done.
func TestRefusedByTheKernel(t *testing.T) {
	if why := netns.Available(); why != "" {
		t.Skip(why)
	}
	dir, ns := node(t)
	wantRefused := func(what, why string, want ...string) {
		t.Helper()
		for _, text := range want {
			if !strings.Contains(why, text) {
				t.Errorf("%s: the Pod waits for %q, want %q in it", what, why, text)
			}
		}
		if len(why) > 512 { // of an Event's message, with what stands before it
			t.Errorf("%s: the reason has %d bytes", what, len(why))
		}
		if led(t, ns) {
			t.Errorf("%s: connections are led to the sidecar", what)
		}
	}
	for capability, want := range map[string]string{"net_admin": "capability NET_ADMIN", "sys_admin": "capability SYS_ADMIN"} {
		cmd := exec.CommandContext(t.Context(), lookPath(t, "setpriv"), "--bounding-set=-"+capability, "--inh-caps=-"+capability, os.Args[0])
		cmd.Env = append(os.Environ(), agentVariable+"="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("an agent without %s: %v: %s", capability, err, out)
		}
		wantRefused("an agent without "+capability, string(out), want, "operation not permitted")
	}

	k, now := keeperOf(dir), time.Now()
	// The table is another program's until that ends.
	owner := exec.CommandContext(t.Context(), lookPath(t, "nft"), "--interactive")
	in, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Start(owner); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(in, "add table inet %s { flags owner; }\n", redirect.TableName); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the table is there", func() bool { return strings.Contains(ns.Run("nft", "list", "tables"), redirect.TableName) })
	wantRefused("a table of another program", waitsFor(k, now), "delete the Pod, or the table inet "+redirect.TableName)
	_ = in.Close()
	_ = owner.Wait()

	// So is that of another workload, which stays.
	other := pod("other", podAddress)
	if err := ns.Do(func() error { return redirect.Install(other.Rules) }); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	if why := waitsFor(k, now); !strings.Contains(why, "delete the Pod") {
		t.Errorf("the rules of another workload: the Pod waits for %q", why)
	}
	ns.Run("nft", "delete", "table", "inet", redirect.TableName)

	if why := waitsFor(k, now.Add(time.Minute)); why != "" || !led(t, ns) {
		t.Errorf("when nothing is in the way the Pod waits for %q", why)
	}
}

func lookPath(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}
