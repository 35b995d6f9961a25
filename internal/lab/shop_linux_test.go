package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/clientcmd"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// shopService is one of the ten Services of the shop.
type shopService struct {
	name, protocol string // http, grpc or tcp
	port           int32  // of its workloads
	nodes          []string
	sidecar        bool
	// calls: its workloads are gRPC programs without a proxy that call this Service.
	calls string
}

// shopServices: sidecars on half of them, two of gRPC without a proxy.
var shopServices = []shopService{
	{name: "front", protocol: "http", port: 9001, nodes: []string{"a-1", "b-1", "c-1"}, sidecar: true},
	{name: "catalog", protocol: "http", port: 9002, nodes: []string{"a-2", "b-2"}, sidecar: true},
	{name: "cart", protocol: "http", port: 9003, nodes: []string{"a-3", "b-3"}, sidecar: true},
	{name: "stock", protocol: "http", port: 9004, nodes: []string{"c-2"}, sidecar: true},
	{name: "db", protocol: "tcp", port: 9005, nodes: []string{"c-3"}, sidecar: true},
	{name: "price", protocol: "http", port: 9006, nodes: []string{"a-2", "b-2", "c-2"}},
	{name: "review", protocol: "http", port: 9007, nodes: []string{"a-3", "c-3"}},
	{name: "mail", protocol: "tcp", port: 9008, nodes: []string{"a-3", "b-3"}},
	{name: "pay", protocol: "grpc", port: 9009, nodes: []string{"a-2", "c-3"}, calls: "ship"},
	{name: "ship", protocol: "grpc", port: 9010, nodes: []string{"b-2", "c-2"}, calls: "pay"},
}

// shop is a lab with ten Services, which the three fronts call by their sidecars.
type shop struct {
	t     *testing.T
	l     *lab.Lab
	api   resource.Client
	vips  map[string]string
	each  int // requests of each front to each Service, in each step
	total atomic.Int64
}

// outcome of the requests of a step: how many there were to each Service, and what failed.
type outcome struct {
	mu     sync.Mutex
	asked  map[string]int
	failed map[string][]string
	// by are the instances of catalog that answered.
	by map[string]int
}

// TestShop: a shop of ten Services in three zones over everything that a mesh is there for. Each
// step lists the Services of which requests may fail; no other request fails. PROXIMA_SOAK=1: at
// least 50,000 requests, and demand moves a plan, otherwise 6,000.
func TestShop(t *testing.T) {
	if _, err := cgroup.Find(); err != nil {
		t.Skip(err)
	}
	s := openShop(t)
	for _, step := range []struct {
		name  string
		do    func()
		zones string
		// fails is the Service of which requests fail, if there is one; may is how many of one may.
		fails string
		may   map[string]int
		check func(*outcome)
		// soak: it takes minutes.
		soak bool
	}{
		{name: "permissive", do: func() {}, zones: "abc", check: func(*outcome) { s.admits(true) }},
		{name: "strict where both ends have a sidecar", do: s.strict, zones: "abc", check: func(*outcome) { s.admits(false) }},
		{name: "canary", do: s.canary, zones: "abc", check: s.canaryShare},
		{name: "canary ended", do: func() { s.remove(kind.HTTPRoute, "canary") }, zones: "abc"},
		{name: "demand moves the plan", do: s.demandMoves, zones: "abc", soak: true},
		{name: "fault", do: s.fault, zones: "abc", fails: "stock"},
		{name: "retry hides the fault", do: s.retry, zones: "abc"},
		{name: "fault ended", do: func() { s.remove(kind.WorkloadPolicy, "fault") }, zones: "abc"},
		{name: "without a control plane", do: func() { s.must(s.l.Kill(t.Context(), "control")) }, zones: "abc"},
		{name: "with it again", do: func() { s.must(s.l.Heal(t.Context(), "")) }, zones: "abc"},
		// A gRPC program has no second chance for a call on a connection that is silent: one of each.
		{name: "a zone fails", do: s.failZone, zones: "ac", may: map[string]int{"pay by xds": 1, "ship by xds": 2}},
	} {
		if step.soak && os.Getenv("PROXIMA_SOAK") == "" {
			continue
		}
		step.do()
		o := s.round(step.zones)
		asked, failed := 0, 0
		for name, n := range o.asked {
			asked += n
			failed += len(o.failed[name])
			if f := o.failed[name]; len(f) > step.may[name] && name != step.fails {
				t.Errorf("%s: %d of %d requests to %s failed: %.300q", step.name, len(f), n, name, f)
			}
		}
		if step.fails != "" && len(o.failed[step.fails]) == 0 {
			t.Errorf("%s: no request to %s failed", step.name, step.fails)
		}
		t.Logf("%s: %d of %d failed (expected of: %q), catalog by %v", step.name, failed, asked, step.fails, o.by)
		if step.check != nil {
			step.check(o)
		}
		if t.Failed() {
			return
		}
	}
	if n := s.total.Load(); s.each > 100 && n < 50_000 {
		t.Errorf("%d requests, want 50,000", n)
	} else {
		t.Logf("%d requests", n)
	}
}

func openShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{t: t, vips: map[string]string{}, each: 20, l: start(t, lab.Spec{Zones: 3, Nodes: 3, Mode: "nftables", IPv4Only: true})}
	if os.Getenv("PROXIMA_SOAK") != "" {
		s.each = 220 // × 9 Services × 3 fronts × 9 steps
	}
	var err error
	if s.api, err = s.l.Client(""); err != nil {
		t.Fatal(err)
	}
	s.mesh("Permissive")
	for i := range shopServices {
		s.serve(&shopServices[i])
	}
	var starting sync.WaitGroup
	for i := range shopServices {
		for _, node := range shopServices[i].nodes {
			starting.Go(func() { s.run(&shopServices[i], node) })
		}
	}
	starting.Wait()
	s.policy(kind.BackendPolicy, &meshv1alpha1.BackendPolicy{ObjectMeta: named("patience"), Spec: meshv1alpha1.BackendPolicySpec{
		Timeout: &meshv1alpha1.PolicyTimeout{Connect: new(meshv1alpha1.Duration("1s")), PerTry: new(meshv1alpha1.Duration("2s"))},
		Retry:   &meshv1alpha1.BackendRetry{Conditions: []string{"connect-failure", "refused-stream", "reset"}, Codes: []int32{504}},
	}})
	testkit.Eventually(t, "all Services are served to all fronts", func() bool {
		o := s.requests("abc", 1)
		return len(o.failed) == 0
	})
	return s
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name}
}

func (s *shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) policy(d *resource.Descriptor, object resource.Object) {
	s.t.Helper()
	_, err := s.api.Create(s.t.Context(), d, object)
	s.must(err)
}

func (s *shop) remove(d *resource.Descriptor, name string) {
	s.t.Helper()
	s.must(s.api.Delete(s.t.Context(), d, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{}))
	if name == "fault" {
		s.await("no fault any more", func() bool { return s.stockFails() == 0 })
	}
}

func (s *shop) mesh(mode string) {
	s.t.Helper()
	object, err := s.api.Get(s.t.Context(), kind.Mesh, resource.Key{Name: meshv1alpha1.DefaultMesh})
	s.must(err)
	object.(*meshv1alpha1.Mesh).Spec.MTLS = &meshv1alpha1.MeshMTLS{
		EnabledBackend: "ca-1", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "ca-1", Mode: mode}},
	}
	_, err = s.api.Update(s.t.Context(), kind.Mesh, object)
	s.must(err)
}

// serve creates a Service, and its servers on the nodes, which answer with the node's name.
func (s *shop) serve(of *shopService) {
	s.t.Helper()
	made, err := s.api.Create(s.t.Context(), kind.Service, &corev1.Service{
		ObjectMeta: named(of.name),
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": of.name}, Ports: []corev1.ServicePort{
			{Name: "main", Port: 80, TargetPort: intstr.FromInt32(of.port), AppProtocol: &of.protocol},
		}},
	})
	s.must(err)
	s.vips[of.name] = made.(*corev1.Service).Spec.ClusterIP + ":80"
	for _, node := range of.nodes {
		if of.calls != "" {
			continue // it is a process of its own
		}
		machine := inNamespace(s.t, node)
		listener, err := machine.Listen("tcp", "0.0.0.0:"+strconv.Itoa(int(of.port)))
		s.must(err)
		s.must(machine.Close())
		if of.protocol == "http" {
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, node) })}
			go func() { _ = server.Serve(listener) }()
			s.t.Cleanup(func() { _ = server.Close() })
			continue
		}
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
			}
		}()
		s.t.Cleanup(func() { _ = listener.Close() })
	}
}

func (s *shop) file(name string) string { return filepath.Join("/run/proxima/lab", labName(), name) }

// run a workload, until the test ends.
func (s *shop) run(of *shopService, node string) {
	name := of.name + "-" + node
	args := []string{
		"run", "--data-dir", s.l.DataDir(node), "--kubeconfig", s.l.Kubeconfig(), "--node-name", node, "--name", name,
		"--labels", fmt.Sprintf("app=%s,sidecar=%v,on=%s", of.name, of.sidecar, node), "--port", fmt.Sprintf("main:%d", of.port),
	}
	if of.sidecar {
		args = append(args, "--sidecar", "--envoy", envoytest.Binary(s.t), "--redirect", "cgroup")
	}
	cmd := exec.Command(testkit.Binary(s.t), append(args, "--", "sleep", "100000")...)
	env := append(testkit.CleanEnv(), "PATH="+filepath.Dir(testkit.Sidecar(s.t))+":"+os.Getenv("PATH"))
	switch {
	case of.name == "front":
		cmd.Args[len(cmd.Args)-2] = os.Args[0]
		env = append(env, dialerSocket+"="+s.file(name+".sock"))
	case of.calls != "":
		cmd.Args[len(cmd.Args)-2] = os.Args[0]
		env = append(env, s.proxyless(of, node, name)...)
	}
	cmd.Env = env
	log, err := os.Create(s.file(name + ".txt"))
	if err != nil {
		s.t.Error(err)
		return
	}
	cmd.Stdout, cmd.Stderr = log, log
	machine := inNamespace(s.t, node)
	err = machine.Start(cmd)
	_ = machine.Close()
	if err != nil {
		s.t.Error(err)
		return
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); s.t.Failed() && err == nil {
			s.t.Logf("--- %s:\n%s\n…\n%s", name, text[:min(2000, len(text))], text[max(0, len(text)-2000):])
		}
		_ = log.Close()
	})
	testkit.Eventually(s.t, name+" is ready", func() bool {
		d, err := s.api.Get(s.t.Context(), kind.Dataplane, resource.Key{Namespace: "default", Name: name})
		return err == nil && meta.IsStatusConditionTrue(d.(*meshv1alpha1.Dataplane).Status.Conditions, meshv1alpha1.DataplaneReady)
	})
}

// proxyless is the environment of a gRPC program without a proxy: its bootstrap is that of
// "proxima proxy bootstrap --grpc".
func (s *shop) proxyless(of *shopService, node, name string) []string {
	dir := s.file(name)
	cfg, err := clientcmd.BuildConfigFromFlags("", s.l.Kubeconfig())
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "ca.crt"), cfg.CAData, 0o600)
	}
	var text []byte
	if err == nil {
		text, err = exec.CommandContext(s.t.Context(), testkit.Binary(s.t), "proxy", "bootstrap", "default/"+name, "--grpc", "--xds-server", "10.200.0.2:15010",
			"--certificate-file", filepath.Join(dir, "svid.crt"), "--key-file", filepath.Join(dir, "svid.key"), "--xds-server-ca-file", filepath.Join(dir, "ca.crt")).Output()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "xds.json"), text, 0o600)
	}
	if err != nil {
		s.t.Error(err)
	}
	return []string{
		"GRPC_XDS_BOOTSTRAP=" + filepath.Join(dir, "xds.json"), grpcAddress + "=0.0.0.0:" + strconv.Itoa(int(of.port)),
		grpcTarget + "=xds:///" + of.calls + ".default:80", grpcSocket + "=" + s.file(name+".sock"), grpcIdentity + "=" + dir,
	}
}

// round is a step's requests.
func (s *shop) round(zones string) *outcome {
	o := s.requests(zones, s.each)
	for _, n := range o.asked {
		s.total.Add(int64(n))
	}
	return o
}

// requests of the fronts of zones to all other Services, and of gRPC programs to each other.
func (s *shop) requests(zones string, each int) *outcome {
	o := &outcome{asked: map[string]int{}, failed: map[string][]string{}, by: map[string]int{}}
	var asking sync.WaitGroup
	for _, z := range zones {
		front := s.file("front-" + string(z) + "-1.sock")
		for i := range shopServices[1:] {
			of := &shopServices[i+1]
			asking.Go(func() {
				for range each {
					o.note(of.name, "front-"+string(z), func() (string, error) { return s.ask(front, of) })
				}
			})
		}
	}
	for i := range shopServices {
		of := &shopServices[i]
		for _, node := range of.nodes {
			if of.calls == "" || !strings.Contains(zones, node[:1]) {
				continue
			}
			asking.Go(func() {
				for range each {
					o.note(of.calls+" by xds", node, func() (string, error) { return "", s.call(s.file(of.name + "-" + node + ".sock")) })
				}
			})
		}
	}
	asking.Wait()
	return o
}

func (o *outcome) note(name, from string, ask func() (string, error)) {
	begin := time.Now()
	by, err := ask()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked[name]++
	if err != nil {
		o.failed[name] = append(o.failed[name], fmt.Sprintf("%s after %s: %v", from, time.Since(begin).Round(time.Millisecond), err))
	} else if name == "catalog" {
		o.by[by]++
	}
}

// through dials the address of a Service as the workload of a socket.
func through(ctx context.Context, socket, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, address+"\n"); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// ask a Service once, by a connection of its own.
func (s *shop) ask(front string, of *shopService) (by string, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 15*time.Second)
	defer cancel()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return through(ctx, front, s.vips[of.name]) }
	switch of.protocol {
	case "http":
		return getBody(ctx, "http://"+s.vips[of.name]+"/", dial)
	case "grpc":
		conn, err := grpc.NewClient("passthrough:///"+s.vips[of.name], grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, "", "") }))
		if err != nil {
			return "", err
		}
		defer conn.Close()
		return "", checkHealth(ctx, conn)
	}
	c, err := dial(ctx, "", "")
	if err != nil {
		return "", err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return "", err
	}
	const text = "a letter"
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, []byte(text)) {
		return "", fmt.Errorf("%q: %w", got, errors.Join(err, errors.New("it is not what was sent")))
	}
	return "", nil
}

func getBody(ctx context.Context, url string, dial func(context.Context, string, string) (net.Conn, error)) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Transport{DialContext: dial, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return string(text), err
}

// call of a gRPC program without a proxy.
func (s *shop) call(socket string) error {
	c, err := net.DialTimeout("unix", socket, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	if err == nil && string(text) != "<nil>" {
		err = errors.New(string(text))
	}
	return err
}

func (s *shop) await(what string, holds func() bool) {
	s.t.Helper()
	testkit.Eventually(s.t, what, holds)
}

// plain asks catalog from a client without a sidecar.
func (s *shop) plain() error {
	ns := inNamespace(s.t, "client-c")
	defer ns.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	_, err := getBody(ctx, "http://"+s.vips["catalog"]+"/", ns.DialContext)
	return err
}

func (s *shop) admits(plain bool) {
	s.t.Helper()
	if err := s.plain(); (err == nil) != plain {
		s.t.Errorf("a client without a sidecar: %v; admitted: want %v", err, plain)
	}
}

// strict for all workloads with a sidecar; those without are reached as before.
func (s *shop) strict() {
	s.t.Helper()
	s.policy(kind.WorkloadPolicy, &meshv1alpha1.WorkloadPolicy{ObjectMeta: named("strict"), Spec: meshv1alpha1.WorkloadPolicySpec{
		PolicyTarget: meshv1alpha1.PolicyTarget{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"sidecar": "true"}}},
		TLS:          &meshv1alpha1.WorkloadTLS{Mode: "Strict"},
	}})
	s.await("a client without a sidecar is refused", func() bool { return s.plain() != nil })
}

// canary sends a quarter of the requests for catalog to the one on b-2.
func (s *shop) canary() {
	s.t.Helper()
	var to []gateway.HTTPBackendRef
	for i, node := range []string{"a-2", "b-2"} {
		_, err := s.api.Create(s.t.Context(), kind.Service, &corev1.Service{
			ObjectMeta: named("catalog-" + node),
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "catalog", "on": node}, Ports: []corev1.ServicePort{
				{Name: "main", Port: 80, TargetPort: intstr.FromInt32(9002), AppProtocol: new("http")},
			}},
		})
		s.must(err)
		s.must(lab.AwaitEndpoints(s.t.Context(), s.api, "catalog-"+node, 1))
		to = append(to, gateway.HTTPBackendRef{BackendRef: gateway.BackendRef{
			BackendObjectReference: gateway.BackendObjectReference{Name: gateway.ObjectName("catalog-" + node), Port: new(gateway.PortNumber(80))},
			Weight:                 new([]int32{3, 1}[i]),
		}})
	}
	s.policy(kind.HTTPRoute, &gateway.HTTPRoute{ObjectMeta: named("canary"), Spec: gateway.HTTPRouteSpec{
		CommonRouteSpec: gateway.CommonRouteSpec{ParentRefs: []gateway.ParentReference{
			{Group: new(gateway.Group("")), Kind: new(gateway.Kind("Service")), Name: "catalog", Port: new(gateway.PortNumber(80))},
		}},
		Rules: []gateway.HTTPRouteRule{{BackendRefs: to}},
	}})
	s.await("fronts of all zones use both", func() bool {
		for _, z := range "abc" {
			seen := map[string]bool{}
			for range 20 {
				by, err := s.ask(s.file("front-"+string(z)+"-1.sock"), &shopServices[1])
				if err != nil {
					s.t.Errorf("while the route comes into effect: %v", err)
				}
				seen[by] = true
			}
			if len(seen) != 2 {
				return false
			}
		}
		return true
	})
}

// canaryShare: a quarter, within five standard deviations.
func (s *shop) canaryShare(o *outcome) {
	all, got := float64(o.asked["catalog"]), float64(o.by["b-2"])
	if d := got - all/4; d*d > 25*all*3/16 {
		s.t.Errorf("%v of %v requests went to the canary, want a quarter", got, all)
	}
}

func (s *shop) stockFails() (failed int) {
	for range 20 {
		if _, err := s.ask(s.file("front-a-1.sock"), &shopServices[3]); err != nil {
			failed++
		}
	}
	return failed
}

func (s *shop) fault() {
	s.t.Helper()
	s.policy(kind.WorkloadPolicy, &meshv1alpha1.WorkloadPolicy{ObjectMeta: named("fault"), Spec: meshv1alpha1.WorkloadPolicySpec{
		PolicyTarget: meshv1alpha1.PolicyTarget{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "stock"}}},
		Faults:       []meshv1alpha1.Fault{{Percent: new(30.0), Abort: &meshv1alpha1.FaultAbort{HTTPStatus: new(int32(503))}}},
	}})
	s.await("the fault is seen", func() bool { return s.stockFails() > 0 })
}

// retry often enough that one in 3¹⁵ requests fails by chance.
func (s *shop) retry() {
	s.t.Helper()
	ms := meshv1alpha1.Duration("1ms")
	s.policy(kind.BackendPolicy, &meshv1alpha1.BackendPolicy{ObjectMeta: named("retry"), Spec: meshv1alpha1.BackendPolicySpec{
		PolicyTarget: meshv1alpha1.PolicyTarget{TargetRefs: []meshv1alpha1.PolicyTargetReference{{Kind: "Service", Name: "stock"}}},
		Retry: &meshv1alpha1.BackendRetry{
			Attempts: new(int32(15)), Codes: []int32{503}, Backoff: &meshv1alpha1.RetryBackoff{Base: &ms, Max: new(meshv1alpha1.Duration("5ms"))},
			Budget: &meshv1alpha1.RetryBudget{Percent: new(int32(100)), MinRetryRate: &meshv1alpha1.RequestRate{Count: new(int32(1000))}},
		},
	}})
	s.await("the retry is in effect in all zones", func() bool { return s.stockFails()+s.stockFails() == 0 })
}

// failZone takes the power from zone-b; what is there already suffices for the others.
// failZone once each node has answered a probe of the restarted control plane: it takes silence for a
// failure of those nodes alone, and waits for the leases of others.
func (s *shop) failZone() {
	s.t.Helper()
	read := controlMetrics(s.t)
	testkit.Eventually(s.t, "each node has answered a probe", func() bool {
		_, after, _ := strings.Cut(read(), `proxima_health_probes_total{outcome="answered"} `)
		line, _, _ := strings.Cut(after, "\n")
		n, err := strconv.Atoi(line)
		return err == nil && n >= 9
	})
	s.must(s.l.PowerOff(s.t.Context(), "zone-b"))
}
