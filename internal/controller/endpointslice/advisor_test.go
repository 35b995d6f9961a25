package endpointslice

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/changes"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// advisor hints every endpoint to one zone.
type advisor struct {
	mu                      sync.Mutex
	zone                    string
	asked, done, forgotten  int
	created, changed, ports int
	feed                    changes.Feed[resource.Key]
}

func (a *advisor) Advise(*corev1.Service) (HintFunc, func(context.Context)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	zone := a.zone
	return func(_ *corev1.Service, _ discoveryv1.AddressType, all []HintSlice) {
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, s := range all {
				if s.New {
					a.created++
				}
				if s.Changed {
					a.changed++
				}
				a.ports += len(s.Ports)
				for i := range s.Endpoints {
					s.Hints[i] = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
				}
			}
		}, func(context.Context) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.done++
		}
}

func (a *advisor) Subscribe() *changes.Subscription[resource.Key] { return a.feed.Subscribe() }

func (a *advisor) Forget(resource.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgotten++
}

func (a *advisor) counts() [6]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return [6]int{a.asked, a.done, a.created, a.changed, a.ports, a.forgotten}
}

func TestAdvisorIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		client.Seed(node("n1", "z1"), webService(), webPod("a", "10.0.0.1"))
		cat := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
		a := &advisor{zone: "z7"}
		c := New(Config{Client: client, Catalog: cat, Slices: kindOf("EndpointSlice"), Advisor: a})
		key := resource.Key{Namespace: "ns", Name: "web"}
		a.feed.Publish(key) // before anyone follows: no harm
		ctx, cancel := context.WithCancel(t.Context())
		finished := make(chan struct{}, 2)
		go func() { _ = cat.Run(ctx); finished <- struct{}{} }()
		go func() { _ = c.Run(ctx); finished <- struct{}{} }()
		defer func() { cancel(); <-finished; <-finished }()
		settle()
		r := &rig{t: t, client: client}
		r.want("IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1 hints=[{z7}][]")
		if got := a.counts(); got != [6]int{1, 1, 1, 1, 1, 0} {
			t.Errorf("asked, done, new, changed, ports, forgotten: %v", got)
		}

		// What cannot be written is not done, and asked again.
		a.mu.Lock()
		a.zone = "z8"
		a.mu.Unlock()
		client.Intercept(func(call resourcetest.Call) error {
			if call.Verb == resourcetest.Update {
				return errors.New("disk full")
			}
			return nil
		})
		a.feed.Publish(key)
		synctest.Wait()
		if got := a.counts(); got[0] != 2 || got[1] != 1 {
			t.Errorf("asked, done: %v", got)
		}
		client.Intercept(nil)
		settle()
		r.want("IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1 hints=[{z8}][]")
		r.delete("Service", "ns", "web")
		settle()
		if got := a.counts(); got[1] != 2 || got[5] == 0 {
			t.Errorf("done, forgotten: %v", got)
		}
	})
}
