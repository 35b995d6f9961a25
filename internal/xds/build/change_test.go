package build

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TestOneEndpoint: a change of one endpoint makes the resources of its Service alone, and wakes the
// proxies that hold them alone, however many Services there are.
func TestOneEndpoint(t *testing.T) {
	for _, n := range []int{100, 10_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { changesOne(t, n) })
	}
}

func changesOne(t *testing.T, n int) {
	const proxies, holders = 20, 3
	name := func(i int) string { return fmt.Sprintf("s%05d", i) }
	objects := make([]resource.Object, 0, n+proxies)
	for i := range n {
		objects = append(objects, testService(name(i), fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)))
	}
	for i := range proxies {
		uses := name(20 + i)
		if i < holders {
			uses += ", " + name(7)
		}
		objects = append(objects, testDataplane(fmt.Sprint("p", i), fmt.Sprint("10.0.0.", i+1), map[string]string{AnnotationBackends: uses}))
	}
	w := newWorld(t, objects...)
	sessions := make([]*delta.Layered, proxies)
	for i := range sessions {
		c := w.connect(fmt.Sprint("p", i), Sidecar)
		defer c.Close(nil)
		sessions[i] = delta.NewLayered(c.Config)
		defer sessions[i].Close()
		asks := []delta.Request{
			{Type: ClusterType, Subscribe: []string{"*"}}, {Type: ListenerType, Subscribe: []string{"*"}},
			{Type: EndpointType, Subscribe: []string{"shop/" + name(20+i) + ":80"}},
		}
		if i < holders {
			asks[2].Subscribe = append(asks[2].Subscribe, "shop/"+name(7)+":80")
		}
		for _, r := range asks {
			if err := sessions[i].Step(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	woken := func() (count int) {
		for _, s := range sessions {
			for f, _ := s.Next(time.Unix(0, 0)); f != nil; f, _ = s.Next(time.Unix(0, 0)) {
			}
			select {
			case <-s.Wake():
				count++
			default:
			}
		}
		return count
	}
	woken() // by what came while they connected
	cost := func(what string, service, wakes int, makes uint64, last int) {
		t.Helper()
		before := w.builder.remade
		w.seed(testSlice(name(service), fmt.Sprint("10.1.0.", last)))
		if made := w.builder.remade - before; made != makes {
			t.Errorf("%s: %d resources are made, want %d", what, made, makes)
		}
		if got := woken(); got != wakes {
			t.Errorf("%s: %d proxies are woken, want %d", what, got, wakes)
		}
	}
	// A cluster, its endpoints, and the listener of its address.
	cost("an endpoint that three hold", 7, holders, 3, 1)
	cost("another one", 7, holders, 3, 2)
	cost("an endpoint that nobody holds", 50, 0, 0, 3)
	cost("an endpoint that one holds", 20+proxies-1, 1, 3, 4)
	before := w.builder.remade
	w.seed(testService("new", "10.97.0.1"))
	if made, wakes := w.builder.remade-before, woken(); made != 0 || wakes != 0 {
		t.Errorf("a new Service: %d resources are made and %d proxies woken", made, wakes)
	}
}

func testSlice(service, address string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
	}
}
