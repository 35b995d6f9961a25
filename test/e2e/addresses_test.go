package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// quietUpstream ends upstream's chatter, once: servers that still run read the
// logger.
var quietUpstream = sync.OnceFunc(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })

// startAPI runs an API server in this process on a store, and returns a client of
// its one write path.
func startAPI(t testing.TB, s store.Store, cidr string, configure ...func(*apiserver.Config)) *apiserver.Client {
	t.Helper()
	quietUpstream()
	ca, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.IssueServer("proxima", []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := apiserver.Config{
		Store: s, Kinds: kind.All(), Listener: listener, CertPEM: pair.Cert, KeyPEM: pair.Key, ClientCAPEM: ca.PEM(),
		// No request uses the network.
		Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil }),
		Authorizer: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionDeny, "", nil
		}),
		Logger: slog.New(slog.DiscardHandler), Version: "0.1.0", ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)},
	}
	for _, f := range configure {
		f(&cfg)
	}
	srv, err := apiserver.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-srv.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("the API server did not start: %v", err)
	}
	return srv.Client("system:test")
}

// dying is a store whose owner dies at one of its calls: that call and all that
// follow fail. The last commit may have been applied before its answer was lost.
type dying struct {
	store.Store
	mu      sync.Mutex
	armed   bool
	left    int  // calls until death
	applied bool // the commit of death takes effect
}

var errDead = errors.New("the process died")

func (d *dying) arm(left int, applied bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed, d.left, d.applied = true, left, applied
}

// heal reports whether the instance died.
func (d *dying) heal() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	died := d.armed && d.left < 0
	d.armed = false
	return died
}

// step counts a call; dead says that it fails, last that it is the first to.
func (d *dying) step() (dead, last bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.armed {
		return false, false
	}
	d.left--
	return d.left < 0, d.left == -1
}

func (d *dying) Get(ctx context.Context, key string, at store.Revision) (store.Record, bool, store.Revision, error) {
	if dead, _ := d.step(); dead {
		return store.Record{}, false, 0, errDead
	}
	return d.Store.Get(ctx, key, at)
}

func (d *dying) List(ctx context.Context, opts store.ListOptions) (store.Page, error) {
	if dead, _ := d.step(); dead {
		return store.Page{}, errDead
	}
	return d.Store.List(ctx, opts)
}

func (d *dying) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	dead, last := d.step()
	if last && d.applied {
		if _, err := d.Store.Commit(ctx, txn); err != nil {
			return 0, err
		}
	}
	if dead {
		return 0, errDead
	}
	return d.Store.Commit(ctx, txn)
}

// checkOwners compares Services with their allocations, in the store alone: every
// address and port has one owner, and no allocation lacks one.
func checkOwners(t *testing.T, s store.Store, client resource.Client) {
	t.Helper()
	list := func(d *resource.Descriptor) []resource.Object {
		out, _, err := client.List(t.Context(), d, resource.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	owner, ports := map[string]string{}, map[string]string{}
	for _, obj := range list(kind.Service) {
		svc := obj.(*corev1.Service)
		name := svc.Namespace + "/" + svc.Name
		for _, addr := range svc.Spec.ClusterIPs {
			if addr == corev1.ClusterIPNone {
				continue
			}
			if other := owner[addr]; other != "" {
				t.Errorf("address %s has two owners: %s and %s", addr, other, name)
			}
			owner[addr] = name
		}
		for _, p := range svc.Spec.Ports {
			if p.NodePort != 0 {
				ports[strconv.Itoa(int(p.NodePort))] = name
			}
		}
	}
	for _, obj := range list(kind.IPAddress) {
		ip := obj.(*networkingv1.IPAddress)
		parent := ip.Spec.ParentRef.Namespace + "/" + ip.Spec.ParentRef.Name
		if owner[ip.Name] != parent {
			t.Errorf("IPAddress %s is held for %s, the Service there is %q", ip.Name, parent, owner[ip.Name])
		}
		delete(owner, ip.Name)
	}
	for addr, name := range owner {
		t.Errorf("Service %s has address %s without an IPAddress", name, addr)
	}
	page, err := s.List(t.Context(), store.ListOptions{Prefix: "/proxima/nodeports/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range page.Records {
		port := rec.Key[strings.LastIndexByte(rec.Key, '/')+1:]
		if ports[port] != string(rec.Value) {
			t.Errorf("node port %s is held for %s, the Service there is %q", port, rec.Value, ports[port])
		}
		delete(ports, port)
	}
	for port, name := range ports {
		t.Errorf("Service %s has node port %s without a claim", name, port)
	}
}

func portService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// TestAddressesSurviveACrashAtEveryStep lets the API server die at every call of
// the store that a write of a Service makes, with the last commit lost or
// applied. Another instance on the same store then finds all or nothing.
func TestAddressesSurviveACrashAtEveryStep(t *testing.T) {
	inner := memory.New(memory.Options{})
	defer inner.Close()
	dead := &dying{Store: inner}
	writer := startAPI(t, dead, "10.96.0.0/24")
	witness := startAPI(t, inner, "10.96.0.0/24")

	get := func(name string) *corev1.Service {
		obj, err := witness.Get(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return obj.(*corev1.Service)
	}
	for _, tc := range []struct {
		name    string
		prepare bool
		write   func(name string) error
	}{
		{"create", false, func(name string) error {
			_, err := writer.Create(t.Context(), kind.Service, portService(name))
			return err
		}},
		{"give up address and ports", true, func(name string) error {
			svc := get(name)
			svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
			_, err := writer.Update(t.Context(), kind.Service, svc)
			return err
		}},
		{"take another port", true, func(name string) error {
			svc := get(name)
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "b", Port: 81})
			svc.Spec.Ports[0].Name = "a"
			_, err := writer.Update(t.Context(), kind.Service, svc)
			return err
		}},
		{"delete", true, func(name string) error {
			return writer.Delete(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			deaths := 0
			for _, applied := range []bool{false, true} {
				for step := 0; ; step++ {
					name := fmt.Sprintf("s-%d-%t", step, applied)
					if tc.prepare {
						if _, err := witness.Create(t.Context(), kind.Service, portService(name)); err != nil {
							t.Fatal(err)
						}
					}
					dead.arm(step, applied)
					err := tc.write(name)
					died := dead.heal()
					checkOwners(t, inner, witness)
					if delErr := witness.Delete(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{}); delErr != nil &&
						!apierrors.IsNotFound(delErr) {
						t.Fatal(delErr)
					}
					checkOwners(t, inner, witness)
					if !died {
						if err != nil {
							t.Errorf("step %d: no instance died, but: %v", step, err)
						}
						break
					}
					deaths++
					if step > 100 {
						t.Fatal("the write never ends")
					}
				}
			}
			if deaths < 2 {
				t.Errorf("the process died %d times: nothing was tested", deaths)
			}
		})
	}
}

// TestAddressesHaveOneOwner lets two instances give out a small range at the same
// time until it is empty, and take it back.
func TestAddressesHaveOneOwner(t *testing.T) {
	inner := memory.New(memory.Options{})
	defer inner.Close()
	instances := []*apiserver.Client{startAPI(t, inner, "10.96.0.0/26"), startAPI(t, inner, "10.96.0.0/26")}
	const usable = 62 - 1 // default/kubernetes has one
	for round := range 2 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var names []string
		refusals := map[string]int{}
		for worker := range 8 {
			wg.Go(func() {
				for i := range 10 {
					svc := portService(fmt.Sprintf("r%d-w%d-%d", round, worker, i))
					svc.Spec.Type = corev1.ServiceTypeClusterIP
					_, err := instances[worker%2].Create(t.Context(), kind.Service, svc)
					mu.Lock()
					if err == nil {
						names = append(names, svc.Name)
					} else {
						refusals[err.Error()[strings.LastIndex(err.Error(), ": ")+2:]]++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		checkOwners(t, inner, instances[0])
		if len(names) != usable || len(refusals) != 1 || refusals["range is full"] != 80-usable {
			t.Errorf("round %d: %d Services have an address, want %d; refusals: %v", round, len(names), usable, refusals)
		}
		for i, name := range names {
			if err := instances[i%2].Delete(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{}); err != nil {
				t.Fatal(err)
			}
		}
		checkOwners(t, inner, instances[1])
		// Both instances hear of it by their watches.
		for i, instance := range instances {
			testkit.Eventually(t, "all addresses are free again", func() bool {
				svc := portService("probe-" + strconv.Itoa(i))
				svc.Spec.ClusterIP = "10.96.0.62"
				_, err := instance.Create(t.Context(), kind.Service, svc)
				if err == nil {
					err = instance.Delete(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: svc.Name}, resource.Preconditions{})
				}
				return err == nil
			})
		}
	}
	list, _, err := instances[0].List(t.Context(), kind.IPAddress, resource.ListOptions{})
	if err != nil || len(list) != 1 || !slices.ContainsFunc(list, func(o resource.Object) bool { return o.GetName() == "10.96.0.1" }) {
		t.Errorf("left at the end: %v, %v; want default/kubernetes' alone", list, err)
	}
}
