package lab

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tryFS has the objects that [Lab.Try] describes.
//
//go:embed try/*.yaml
var tryFS embed.FS

// Try is something to try in a lab with sidecars.
type Try struct {
	// File with the objects to apply.
	File string
	// Effect that they have.
	Effect string
}

// tries in the order in which a reader goes through them.
func tries() []Try {
	return []Try{
		{"strict.yaml", "clients without a sidecar are refused"},
		{"permission.yaml", "shop-a may not call, the other shops may"},
		{"fault.yaml", "the proxies of web answer half of the requests with 503"},
		{"retry.yaml", "the proxies of clients try such requests again: beside fault.yaml, hardly any fails"},
		{"canary.yaml", "one request in ten goes to version v2 (the last node of the last zone)"},
	}
}

// Try is what there is to try. The files are in the lab's folder.
func (l *Lab) Try() []Try {
	if !l.spec.Sidecars {
		return nil
	}
	out := tries()
	for i := range out {
		out[i].File = filepath.Join(dirOf(l.spec.Name), "try", out[i].File)
	}
	return out
}

// writeTries to the lab's folder.
func (l *Lab) writeTries() error {
	if err := os.MkdirAll(filepath.Join(dirOf(l.spec.Name), "try"), 0o700); err != nil {
		return err
	}
	for _, t := range l.Try() {
		data, err := fs.ReadFile(tryFS, "try/"+filepath.Base(t.File))
		if err != nil {
			return err
		}
		if err := os.WriteFile(t.File, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// findEnvoy of sidecars and gateways: they run with another folder and $PATH.
func (s *Spec) findEnvoy() error {
	if !s.Sidecars && !s.EnvoyGateways {
		return nil
	}
	path, err := exec.LookPath(s.Envoy)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return &envoyError{err}
	}
	s.Envoy = path
	return nil
}

// versionOf a node's workload, for a canary: that of the last node is new.
func (s Spec) versionOf(n node) string {
	if all := s.nodes(); n == all[len(all)-1] {
		return "v2"
	}
	return "v1"
}

// sidecarFlags of workloads.
func (s Spec) sidecarFlags() []string {
	if !s.Sidecars {
		return nil
	}
	return []string{"--sidecar", "--envoy", s.Envoy, "--redirect", "cgroup"}
}

// shop is the name of a zone's client with a sidecar.
func (z zone) shop() string { return "shop-" + z.letter() }

// shopping tells whether the workload of a node is the client with a sidecar of its zone. There
// is no other on that node: one workload of a network namespace can have its connections led to
// a sidecar. And no endpoint of the sample service is where the zone's client without a sidecar
// comes by: connections that a node translates to a workload of its own do not pass a sidecar.
func (s Spec) shopping(n node) bool { return s.Sidecars && n == firstOf(n.zone) }

// workloadOf a node.
func (s Spec) workloadOf(n node) string {
	if s.shopping(n) {
		return n.zone.shop()
	}
	return n.workload()
}

// endpoints of the sample service in each family.
func (s Spec) endpoints() int {
	out := 0
	for _, n := range s.nodes() {
		if !s.shopping(n) {
			out++
		}
	}
	return out
}

// awaitShops returns when each shop was served.
func (l *Lab) awaitShops(ctx context.Context) error {
	if err := l.writeTries(); err != nil {
		return err
	}
	for _, z := range l.spec.zones() {
		if err := l.awaitShop(ctx, z); err != nil {
			return err
		}
	}
	l.spec.Progress(fmt.Sprintf("shops: %d served", l.spec.Zones))
	return nil
}

// prepareShop on its node: the command that is its workload, and its labels.
func (l *Lab) prepareShop(z zone) (labels string, command []string, err error) {
	socket := l.shopSocket(z)
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	return "app=shop,shop=" + z.shop(), []string{l.spec.Executable, "demo", "client", "--client-socket", socket}, nil
}

// shopSocket passes HTTP requests on, as the shop of a zone.
func (l *Lab) shopSocket(z zone) string { return filepath.Join(dirOf(l.spec.Name), z.shop()+".sock") }

// ShopSocket is the path of the Unix socket at which the client with a sidecar of a zone passes
// HTTP requests on to the host and port that they are for; empty: there is none.
func (l *Lab) ShopSocket(zoneName string) string {
	p, err := l.spec.find(zoneName)
	if err != nil || p.machine != "" || !l.spec.Sidecars {
		return ""
	}
	return l.shopSocket(p.zone)
}

// askAsShop asks the sample service as the zone's client with a sidecar.
func (l *Lab) askAsShop(ctx context.Context, z zone, vip string) (Answer, error) {
	return get(ctx, vip, unixDial(l.shopSocket(z)))
}

// AskAsShop is Ask by the zone's client with a sidecar.
func (l *Lab) AskAsShop(ctx context.Context, zoneName string) (string, error) {
	p, err := l.spec.find(zoneName)
	if err != nil {
		return "", err
	}
	a, err := l.askAsShop(ctx, p.zone, l.vip(p.zone, 0))
	return a.Name, err
}

// awaitShop waits until the shop of a zone is served.
func (l *Lab) awaitShop(ctx context.Context, z zone) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := l.askAsShop(ctx, z, l.vip(z, 0))
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; see %s", z.shop(), err, filepath.Join(dirOf(l.spec.Name), firstOf(z).name()+"-workload.log"))
		}
	}
}

// sidecarOf a workload: "ready", or why it is not.
func (l *Lab) sidecarOf(ctx context.Context, node, workload string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	socket := filepath.Join(l.DataDir(node), "sidecar", metav1.NamespaceDefault+"."+workload, "control.sock")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sidecar/ready", http.NoBody)
	if err != nil {
		return err.Error()
	}
	transport := &http.Transport{DialContext: unixDial(socket), DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "dead"
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return "ready"
	}
	why, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // the status is known
	return strings.TrimSpace(string(why))
}

// unixDial dials a socket, whatever the address.
func unixDial(socket string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
}

// Exec becomes a command in the namespace of a place, with the settings of its control plane's
// administrator: KUBECONFIG, and $PATH with the lab's executable in front; in mode ebpf it is in the cgroup of the place. Unlike "ip
// netns exec" it leaves the mounts as they are. It returns only if that fails.
func (l *Lab) Exec(place string, command []string, exec func(path string, args, env []string) error) error {
	ns := l.ns.open[place]
	if ns == nil {
		return fmt.Errorf("%q is no machine of lab %s: there are %s", place, l.spec.Name, strings.Join(l.Machines(), ", "))
	}
	env := slices.DeleteFunc(cleanEnvironment(), func(v string) bool { return strings.HasPrefix(v, "PATH=") })
	search := filepath.Dir(l.spec.Executable) + string(filepath.ListSeparator) + os.Getenv("PATH")
	path, err := lookIn(search, command[0])
	if err != nil {
		return err
	}
	env = append(env, "PATH="+search, "KUBECONFIG="+l.kubeconfigAt(place))
	if err := l.spec.joinCgroup(ns); err != nil {
		return err
	}
	return ns.Do(func() error {
		return fmt.Errorf("start %s: %w", path, exec(path, command, env))
	})
}

// Machines are the names of the lab's namespaces, clients and routers among them.
func (l *Lab) Machines() []string {
	var out []string
	for name := range l.ns.open {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// kubeconfigAt a place.
func (l *Lab) kubeconfigAt(place string) string {
	for _, z := range l.spec.zones() {
		if place == z.client() || place == z.name() {
			return l.kubeconfig(l.spec.planeOf(z))
		}
	}
	if p, err := l.spec.find(place); err == nil && p.zone >= 0 {
		return l.kubeconfig(l.spec.planeOf(p.zone))
	}
	return l.Kubeconfig()
}

// lookIn finds a program in a list of folders, unless its name has a slash.
func lookIn(search, name string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) {
		return exec.LookPath(name)
	}
	for _, dir := range filepath.SplitList(search) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}
