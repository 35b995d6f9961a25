package membership

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/identity/access"
	objects "github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

const renewEvery = LeaseDuration / renewals

func newMember(client objects.Client, change func(*Config)) *Member {
	cfg := Config{Client: client, Name: "n1", MachineID: "a", Zone: "zone-a", Logger: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}}
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}

func getNode(t *testing.T, c objects.Client) *corev1.Node {
	t.Helper()
	obj, err := c.Get(context.Background(), kind.Node, objects.Key{Name: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*corev1.Node)
}

func getLease(t *testing.T, c objects.Client) *coordinationv1.Lease {
	t.Helper()
	obj, err := c.Get(context.Background(), kind.Lease, objects.Key{Namespace: "kube-node-lease", Name: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*coordinationv1.Lease)
}

func TestBeatMakesNodeAndLease(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	var heard *corev1.Node
	m := newMember(client, func(c *Config) { c.ControlPlane = true; c.OnNode = func(n *corev1.Node) { heard = n } })
	if err := m.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	node := getNode(t, client)
	for key, want := range map[string]string{
		corev1.LabelHostname: "n1", corev1.LabelTopologyZone: "zone-a", roleControlPlane: "", corev1.LabelArchStable: runtime.GOARCH,
	} {
		if got, ok := node.Labels[key]; !ok || got != want {
			t.Errorf("label %s = %q, %t; want %q", key, got, ok, want)
		}
	}
	if got := node.Status.Allocatable.Cpu().Value(); got != int64(runtime.NumCPU()) {
		t.Errorf("allocatable cpu = %d, want %d", got, runtime.NumCPU())
	}
	if c := node.Status.Conditions; len(c) != 1 || c[0].Type != corev1.NodeReady || c[0].Status != corev1.ConditionTrue {
		t.Errorf("conditions = %+v, want Ready alone", c)
	}
	if heard == nil || heard.Labels[corev1.LabelTopologyZone] != "zone-a" {
		t.Errorf("OnNode heard %v, want the node", heard)
	}
	lease := getLease(t, client)
	if *lease.Spec.LeaseDurationSeconds != 40 || *lease.Spec.HolderIdentity != "n1/a" || node.Status.NodeInfo.MachineID != "a" {
		t.Errorf("lease = %+v", lease.Spec)
	}
}

// A beat of a settled node writes the lease and nothing else.
func TestSettledNodeIsNotWritten(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	m := newMember(client, nil)
	if err := m.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := getNode(t, client).ResourceVersion
	if err := m.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := getNode(t, client).ResourceVersion; after != before {
		t.Errorf("node was written again: %s then %s", before, after)
	}
}

// What others set is kept; what is the agent's is mended.
func TestForeignEdits(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	client.Seed(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"rack": "7", corev1.LabelTopologyZone: "zone-b"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse},
			{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "LeaseExpired"},
		}},
	})
	if err := newMember(client, func(c *Config) { c.Zone = "" }).beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	node := getNode(t, client)
	if node.Labels["rack"] != "7" || node.Labels[corev1.LabelTopologyZone] != "zone-b" {
		t.Errorf("foreign labels are gone: %v", node.Labels)
	}
	if c := node.Status.Conditions; len(c) != 2 || c[1].Status != corev1.ConditionTrue {
		t.Errorf("conditions = %+v, want Ready true again and the other kept", c)
	}
	if err := newMember(client, nil).beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if zone := getNode(t, client).Labels[corev1.LabelTopologyZone]; zone != "zone-a" {
		t.Errorf("zone = %s, want the agent's own, zone-a", zone)
	}
}

// An API that is away for an hour is asked again and again, and the node is back
// soon after.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.All()...)
		var away atomic.Bool
		var asked atomic.Int64
		away.Store(true)
		client.Intercept(func(resourcetest.Call) error {
			asked.Add(1)
			if away.Load() {
				return errors.New("away")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := newMember(client, nil).Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(time.Hour) // the bubble's clock
		synctest.Wait()
		if n := asked.Load(); n < 300 || n > 600 {
			t.Errorf("asked %d times in an hour, want about every 10 s", n)
		}
		away.Store(false)
		time.Sleep(renewEvery)
		synctest.Wait()
		for range 60 {
			time.Sleep(renewEvery / 3)
			synctest.Wait()
			if age := time.Since(getLease(t, client).Spec.RenewTime.Time); age > renewEvery {
				t.Errorf("the lease is %s old, want at most %s", age, renewEvery)
			}
		}
		cancel()
		<-done
	})
}

// guarded is a client whose server keeps the name on one machine.
func guarded() objects.Client {
	client, holders := resourcetest.New(kind.All()...), access.NewHolders()
	var before *coordinationv1.Lease
	client.Intercept(func(c resourcetest.Call) error {
		lease, ok := c.Object.(*coordinationv1.Lease)
		if !ok {
			return nil
		}
		if err := holders.AllowWrite(kind.Lease.GVK.GroupKind(), lease, orNil(before)); err != nil {
			return apierrors.NewForbidden(kind.Lease.GroupResource(), lease.Name, err)
		}
		before = lease.DeepCopy()
		return nil
	})
	return client
}

func orNil(l *coordinationv1.Lease) objects.Object {
	if l == nil {
		return nil
	}
	return l
}

// A second machine of the same name touches nothing, says why, and takes over when
// the first one has ended: at once after a clean end, else when its lease ran out.
func TestSecondMachine(t *testing.T) {
	for name, clean := range map[string]bool{"clean end": true, "dies": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := guarded()
				run := func(m *Member) (stop func()) {
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() { done <- m.Run(ctx) }()
					return func() {
						cancel()
						if err := <-done; err != nil {
							t.Error(err)
						}
					}
				}
				first := newMember(client, nil)
				stopFirst := func() {}
				if clean {
					stopFirst = run(first)
				} else if err := first.beat(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				second := newMember(client, func(c *Config) { c.MachineID, c.Zone = "b", "zone-b" })
				defer run(second)()
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if p := second.Status().Problem; !strings.Contains(p, "in use by machine a") {
					t.Errorf("second machine's problem: %q", p)
				}
				if zone := getNode(t, client).Labels[corev1.LabelTopologyZone]; zone != "zone-a" {
					t.Errorf("the second machine changed the zone to %s", zone)
				}
				stopFirst()
				synctest.Wait()
				if c := getNode(t, client).Status.Conditions[0]; c.Status != corev1.ConditionTrue {
					t.Errorf("a clean end made the node %s", c.Status)
				}
				wait := LeaseDuration + LeaseDuration/renewals
				if clean {
					wait = LeaseDuration / renewals
				}
				time.Sleep(wait)
				synctest.Wait()
				if got := *getLease(t, client).Spec.HolderIdentity; got != "n1/b" {
					t.Errorf("holder %s, want the second machine after %s", got, wait)
				}
				if p := second.Status().Problem; p != "" {
					t.Errorf("problem %q", p)
				}
			})
		})
	}
}

// A machine that may not be this node ends with the reason, instead of trying for
// ever.
func TestForbiddenNodeEnds(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	client.Intercept(func(c resourcetest.Call) error {
		if _, ok := c.Object.(*corev1.Node); ok {
			return apierrors.NewForbidden(kind.Node.GroupResource(), "n1", errors.New("node other may write the Node of its own name only"))
		}
		return nil
	})
	var refused *RefusedError
	if err := newMember(client, nil).Run(t.Context()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "own name only") {
		t.Errorf("error %v", err)
	}
}
