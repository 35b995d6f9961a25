package lab_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// market is a lab of three zones whose Services this process offers and uses: endpoints on
// the nodes, and clients in the zones. Only the agents between them are Proxima's.
type market struct {
	t      *testing.T
	l      *lab.Lab
	api    resource.Client
	places []*place

	mu     sync.Mutex
	failed []string
	// scaled is how many bytes of the Service that is scaled went between zones.
	scaled int
}

// place is a zone: its client and its node.
type place struct {
	zone, node      string
	client, machine *netns.NS
	last            netip.Addr // address of the last endpoint
}

func openMarket(t *testing.T, mode string) *market {
	t.Helper()
	m := &market{t: t, l: start(t, lab.Spec{Zones: 3, Nodes: 1, Mode: mode, IPv4Only: true})}
	var err error
	if m.api, err = m.l.Client(""); err != nil {
		t.Fatal(err)
	}
	for i, letter := range []string{"a", "b", "c"} {
		p := &place{
			zone: "zone-" + letter, node: letter + "-1", client: inNamespace(t, "client-"+letter), machine: inNamespace(t, letter+"-1"),
			last: netip.AddrFrom4([4]byte{10, 200, byte(i) + 1, 100}),
		}
		t.Cleanup(func() { _, _ = p.client.Close(), p.machine.Close() })
		m.places = append(m.places, p)
	}
	return m
}

// proxima runs the command as an administrator, with JSON as its output.
func (m *market) proxima(t *testing.T, into any, args ...string) {
	t.Helper()
	ns := inNamespace(t, "control")
	defer ns.Close()
	out, err := ns.Output(t.Context(), testkit.Binary(t), append(args, "-o", "json", "--kubeconfig", kubeconfig())...)
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		t.Fatalf("proxima %s: %v", strings.Join(args, " "), err)
	}
}

// stall is a Service of the market.
type stall struct {
	*market
	name, vip string

	// age of endpoints that are added: for so long they have been ready. ready is since when the
	// last one is, as precisely as objects say it.
	age   time.Duration
	ready time.Time

	mu sync.Mutex
	// bytes that clients of a zone exchanged with endpoints of another, both ways.
	bytes [3][3]int
	// asked is the number of requests.
	asked int
	// answered are the requests of clients of a zone by the zone of the endpoint, since the Service is there.
	answered [3][3]int
}

func (m *market) open(name string, annotations map[string]string) *stall {
	m.t.Helper()
	made, err := m.api.Create(m.t.Context(), kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(9000)}}},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return &stall{market: m, name: name, vip: net.JoinHostPort(made.(*corev1.Service).Spec.ClusterIP, "80")}
}

// annotate the Service.
func (s *stall) annotate(t *testing.T, key, value string) {
	t.Helper()
	object, err := s.api.Get(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: s.name})
	if err == nil {
		object.GetAnnotations()[key] = value
		_, err = s.api.Update(t.Context(), kind.Service, object)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// add an endpoint in a zone, which takes some time for each request. It returns the name of
// its Dataplane.
func (s *stall) add(t *testing.T, zone int, weight int32, takes time.Duration) string {
	t.Helper()
	s.market.mu.Lock()
	p := s.places[zone]
	p.last = p.last.Next()
	addr := p.last
	s.market.mu.Unlock()
	if err := p.machine.AddAddr("eth0", netip.PrefixFrom(addr, 32)); err != nil {
		t.Fatal(err)
	}
	l, err := p.machine.Listen("tcp", netip.AddrPortFrom(addr, 9000).String())
	if err != nil {
		t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveStall(c, byte(zone), addr, takes)
		}
	}()
	object, err := s.api.Create(t.Context(), kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%s-%d", s.name, p.node, addr.As4()[3]), Labels: map[string]string{"app": s.name}},
		Spec: meshv1alpha1.DataplaneSpec{
			NodeName: p.node, Addresses: []string{addr.String()}, Ports: []meshv1alpha1.DataplanePort{{Port: 9000}}, Weight: &weight, DrainSeconds: new(int32(1)),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	dp := object.(*meshv1alpha1.Dataplane)
	s.ready = time.Now().Add(-s.age).Truncate(time.Second)
	dp.Status.Conditions = []metav1.Condition{{
		Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.NewTime(s.ready),
	}}
	if _, err := s.api.UpdateStatus(t.Context(), kind.Dataplane, dp); err != nil {
		t.Fatal(err)
	}
	return dp.Name
}

// remove an endpoint, which goes on serving.
func (s *stall) remove(t *testing.T, name string) {
	t.Helper()
	if err := s.api.Delete(t.Context(), kind.Dataplane, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
}

// serveStall answers each number with so many bytes: its zone, the last byte of its address,
// and zeros.
func serveStall(c net.Conn, zone byte, at netip.Addr, takes time.Duration) {
	defer c.Close()
	var size uint32
	for binary.Read(c, binary.BigEndian, &size) == nil {
		if takes > 0 {
			time.Sleep(takes) // the work of the endpoint
		}
		body := make([]byte, max(size, 2))
		body[0], body[1] = zone, at.As4()[3]
		if _, err := c.Write(body[:max(size, 1)]); err != nil {
			return
		}
	}
}

// request on a connection of a zone's client.
func (s *stall) request(c net.Conn, from, size int) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if err := binary.Write(c, binary.BigEndian, uint32(size)); err != nil {
		return err
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c, body); err != nil {
		return err
	}
	if body[0] > 2 {
		return fmt.Errorf("answered by zone %d", body[0])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes[from][body[0]] += size + 4
	s.asked++
	s.answered[from][body[0]]++
	return nil
}

func (s *stall) dial(ctx context.Context, from int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.places[from].client.DialContext(ctx, "tcp", s.vip)
}

// fail notes a request that failed.
func (s *stall) fail(from int, err error) {
	s.market.mu.Lock()
	defer s.market.mu.Unlock()
	s.failed = append(s.failed, fmt.Sprintf("%s from %s: %v", s.name, s.places[from].zone, err))
}

// exchanged is what was since it was last called: all bytes, those between zones, and the
// number of requests.
func (s *stall) exchanged() (all, between, asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, row := range s.bytes {
		for k, n := range row {
			all += n
			if i != k {
				between += n
			}
		}
	}
	asked = s.asked
	s.bytes, s.asked = [3][3]int{}, 0
	return all, between, asked
}

// visit the Service from a zone by new connections, rate a second, until stop; the sizes of
// answers follow in turn.
func (s *stall) visit(from int, rate float64, sizes []int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			running.Go(func() {
				c, err := s.dial(context.WithoutCancel(ctx), from)
				if err == nil {
					err = s.request(c, from, sizes[i%len(sizes)])
					_ = c.Close()
				}
				if err != nil {
					s.fail(from, err)
				}
			})
		}
	})
	return func() { cancel(); running.Wait() }
}

// stay at the Service with connections that remain open, each with a request at every
// interval, until stop; again has all of them made anew. They are tried until the Service is
// reached for the first time: a connection that ends would count against their length.
func (s *stall) stay(from, connections int, every time.Duration, size int) (again, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var mu sync.Mutex
	round := make(chan struct{})
	for range connections {
		running.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for reached := false; ctx.Err() == nil; {
				mu.Lock()
				end := round
				mu.Unlock()
				c, err := s.dial(ctx, from)
				if err != nil && !reached {
					<-tick.C
					continue
				}
				reached = true
				for err == nil {
					select {
					case <-ctx.Done():
						err = ctx.Err()
						continue
					case <-end:
						err = errAgain
						continue
					case <-tick.C:
					}
					err = s.request(c, from, size)
				}
				if c != nil {
					_ = c.Close()
				}
				if ctx.Err() == nil && !errors.Is(err, errAgain) {
					s.fail(from, err)
				}
			}
		})
	}
	again = func() {
		mu.Lock()
		defer mu.Unlock()
		close(round)
		round = make(chan struct{})
	}
	return again, func() { cancel(); running.Wait() }
}

var errAgain = errors.New("the connection is made anew")

// crossed is how many bytes the links between the zones have carried, as the kernel counts them.
func (m *market) crossed(t *testing.T) int {
	t.Helper()
	core := inNamespace(t, "core")
	defer core.Close()
	out, err := core.Output(t.Context(), "ip", "-s", "-j", "link", "show")
	var links []struct {
		Name  string                               `json:"ifname"`
		Stats struct{ RX, TX struct{ Bytes int } } `json:"stats64"`
	}
	if err == nil {
		err = json.Unmarshal(out, &links)
	}
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, l := range links {
		switch {
		case strings.HasPrefix(l.Name, "zone-"):
			sum += l.Stats.RX.Bytes
		case l.Name == "control":
			sum -= l.Stats.TX.Bytes
		}
	}
	return sum
}
