package registry

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a control plane's part in registries, on a store in memory, in a bubble of fake time.
type rig struct {
	t         *testing.T
	client    *resourcetest.Client
	writes    atomic.Int32
	registrar *Registrar
	index     *Index
	stop      func()
	running   atomic.Pointer[map[string]bool]
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, client: resourcetest.New(kind.All()...)}
	r.running.Store(&map[string]bool{"cp-1": true})
	r.client.Seed(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	r.client.Intercept(func(c resourcetest.Call) error {
		switch c.Verb {
		case resourcetest.Create, resourcetest.Update, resourcetest.UpdateStatus, resourcetest.Delete:
			r.writes.Add(1)
		}
		return nil
	})
	r.start("cp-1")
	return r
}

// start an instance of the control plane; the one before has ended.
func (r *rig) start(owner string) {
	tables := catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
	r.registrar = NewRegistrar(RegistrarConfig{
		Client: r.client, Catalog: tables, Owner: owner, MachineID: "m-1", Running: func() map[string]bool { return *r.running.Load() }, Grace: time.Minute,
	})
	r.index = NewIndex(IndexConfig{Catalog: tables})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{}, 3)
	for _, run := range []func(context.Context) error{tables.Run, r.registrar.Run, r.index.Run} {
		go func() { _ = run(ctx); done <- struct{}{} }()
	}
	r.stop = func() { cancel(); <-done; <-done; <-done }
	synctest.Wait()
}

// session of a client of one user.
type session struct {
	*Session
	user User
}

func (r *rig) open(p Protocol, user User, ttl time.Duration) *session {
	return &session{r.registrar.Open(p, ttl), user}
}

// Register as the user.
func (s *session) Register(ctx context.Context, in *Instance) error {
	return s.Session.Register(ctx, in, s.user)
}

// Deregister as the user.
func (s *session) Deregister(ctx context.Context, key resource.Key) error {
	return s.Session.Deregister(ctx, key, s.user)
}

func (r *rig) wait(d time.Duration) { time.Sleep(d); synctest.Wait() }

func (r *rig) dataplanes() []*meshv1alpha1.Dataplane {
	r.t.Helper()
	list, _, err := r.client.List(r.t.Context(), kind.Dataplane, resource.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	var out []*meshv1alpha1.Dataplane
	for _, o := range list {
		out = append(out, o.(*meshv1alpha1.Dataplane))
	}
	return out
}

func (r *rig) register(s *session, in *Instance) {
	r.t.Helper()
	if err := s.Register(r.t.Context(), in); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

func orders(port uint16) *Instance {
	return &Instance{
		Service: Service{Namespace: "shop", Name: "orders"}, Address: netip.MustParseAddr("10.1.0.7"), Port: port, Weight: 100,
		Enabled: true, Healthy: true, Ephemeral: true, Protocol: Nacos, Metadata: map[string]string{"version": "v2"},
	}
}

func TestRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		s := r.open(Nacos, User{Name: "shopkeeper"}, 0)
		r.register(s, orders(8080))
		r.register(s, orders(8080))
		if r.writes.Load() != 1 {
			t.Errorf("%d writes for an instance that is registered twice, want 1", r.writes.Load())
		}
		d := r.dataplanes()[0]
		if d.Labels[LabelService] != "orders" || d.Labels[LabelMetadata+"version"] != "v2" || d.Status.Conditions[0].Status != metav1.ConditionTrue {
			t.Errorf("dataplane %+v", d)
		}
		if err := r.open(Nacos, User{Name: "thief"}, 0).Register(t.Context(), orders(8080)); !errors.As(err, new(*ForbiddenError)) {
			t.Errorf("another user takes it over: %v", err)
		}
		s.Close(0)
		r.wait(time.Second)
		if all := r.dataplanes(); len(all) != 0 {
			t.Errorf("the session has ended, and its instance is there: %v", all)
		}
		if err := s.Register(t.Context(), orders(8080)); !errors.Is(err, ErrEnded) {
			t.Errorf("register in a session that has ended: %v", err)
		}
	})
}

// A client whose connection is cut has time to come back; what it then registers writes nothing.
func TestSessionIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		first := r.open(Nacos, User{}, 0)
		r.register(first, orders(8080))
		r.register(first, orders(8081))
		first.Close(10 * time.Second)
		r.wait(5 * time.Second)
		second := r.open(Nacos, User{}, 0)
		r.register(second, orders(8080))
		r.wait(time.Minute)
		if all := r.dataplanes(); len(all) != 1 || all[0].Spec.Ports[0].Port != 8080 || r.writes.Load() != 3 {
			t.Errorf("%d writes, left: %v", r.writes.Load(), all)
		}
	})
}

func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		s := r.open(Eureka, User{}, 90*time.Second)
		r.register(s, orders(8080))
		for range 5 {
			r.wait(80 * time.Second)
			if err := s.Renew(); err != nil {
				t.Fatal(err)
			}
		}
		if r.writes.Load() != 1 || len(r.dataplanes()) != 1 {
			t.Errorf("%d writes, %d instances", r.writes.Load(), len(r.dataplanes()))
		}
		r.wait(92 * time.Second)
		if len(r.dataplanes()) != 0 {
			t.Error("the lease has run out, and the instance is there")
		}
		if err := s.Renew(); !errors.Is(err, ErrEnded) {
			t.Errorf("renewed after the end: %v", err)
		}
	})
}

// A control plane that is restarted keeps the instances until their clients had time to come back.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.open(Nacos, User{}, 0)
		r.register(s, orders(8080))
		r.register(s, orders(8081))
		before := r.index.Position()
		r.stop()
		r.start("cp-1")
		defer func() { r.stop() }()
		if got := r.index.Position(); got < before {
			t.Errorf("position %d after a restart, %d before", got, before)
		}
		r.register(r.open(Nacos, User{}, 0), orders(8081))
		r.wait(50 * time.Second)
		if len(r.dataplanes()) != 2 || r.writes.Load() != 2 {
			t.Errorf("in the grace: %d instances, %d writes", len(r.dataplanes()), r.writes.Load())
		}
		r.wait(20 * time.Second)
		if all := r.dataplanes(); len(all) != 1 || all[0].Spec.Ports[0].Port != 8081 {
			t.Errorf("after the grace: %v", all)
		}
	})
}

// What an instance of the control plane left that is gone for good is removed by the leader; what
// was registered at another one stays.
func TestOwnerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.register(r.open(Nacos, User{}, 0), orders(8080))
		r.register(r.open(Nacos, User{}, 0), orders(8081))
		r.stop()
		r.start("cp-2")
		defer func() { r.stop() }()
		r.wait(5 * time.Minute)
		if len(r.dataplanes()) != 2 {
			t.Fatal("instances of an owner that runs are removed")
		}
		r.register(r.open(Nacos, User{}, 0), orders(8081))
		r.running.Store(&map[string]bool{"cp-2": true})
		r.wait(30 * time.Second)
		if len(r.dataplanes()) != 2 {
			t.Error("instances of an owner that is gone are removed before its clients had time")
		}
		r.wait(time.Minute)
		if all := r.dataplanes(); len(all) != 1 || all[0].Annotations[AnnotationOwner] != "cp-2" {
			t.Errorf("left: %v", all)
		}
	})
}

// What a protocol remembers of a session whose owner is gone is durable before its instance is deleted, however often that has to be tried,
// and not before its client had the grace to come back.
func TestBeforeEndOfOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		in := orders(8080)
		in.Protocol = ZooKeeper
		r.register(r.open(ZooKeeper, User{}, 0), in)
		r.register(r.open(Nacos, User{}, 0), orders(8081))
		r.stop()
		r.start("cp-2")
		defer func() { r.stop() }()
		var calls atomic.Int32
		r.registrar.BeforeEnd(ZooKeeper, func(_ context.Context, in *Instance) (bool, error) {
			if d, err := r.client.Get(t.Context(), kind.Dataplane, in.Key()); err != nil || in.Port != 8080 {
				t.Errorf("called for %v: %v, %v", in.Key(), d, err)
			}
			if calls.Add(1) < 3 {
				return false, errors.New("the store is away")
			}
			return true, nil
		})
		r.running.Store(&map[string]bool{"cp-2": true})
		r.wait(time.Minute - time.Second)
		if len(r.dataplanes()) != 2 || calls.Load() != 0 {
			t.Errorf("in the grace: %d instances, %d calls", len(r.dataplanes()), calls.Load())
		}
		r.wait(3 * time.Second) // a sweep sees that the owner is gone, another that the grace is over; the second attempt is after 50 ms
		if len(r.dataplanes()) != 0 || calls.Load() != 3 {
			t.Errorf("after the grace: %d instances, %d calls", len(r.dataplanes()), calls.Load())
		}
	})
}

// What changes between the read of an instance and its deletion decides: an instance that another instance of the control plane has taken
// over stays; one whose health was set goes.
func TestRemovedMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(d *meshv1alpha1.Dataplane)
		left   int
	}{
		{"taken over", func(d *meshv1alpha1.Dataplane) { d.Annotations[AnnotationOwner] = "cp-2" }, 1},
		{"another annotation", func(d *meshv1alpha1.Dataplane) { d.Annotations["example.com/note"] = "x" }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				defer r.stop()
				s := r.open(Nacos, User{}, 0)
				in := orders(8080)
				r.register(s, in)
				once := false
				r.client.Intercept(func(call resourcetest.Call) error {
					if call.Verb != resourcetest.Delete || once {
						return nil
					}
					once = true
					d := r.dataplanes()[0].DeepCopy()
					c.change(d)
					_, err := r.client.Update(t.Context(), kind.Dataplane, d)
					return err
				})
				if err := s.Deregister(t.Context(), in.Key()); err != nil {
					t.Fatal(err)
				}
				if all := r.dataplanes(); !once || len(all) != c.left {
					t.Errorf("left: %v", all)
				}
			})
		})
	}
}

// What an operator sets at run time outlives the client's next registration, unless it wants
// something else than before.
func TestOperatorsWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		s := r.open(Nacos, User{Name: "a"}, 0)
		in := orders(8080)
		r.register(s, in)
		if err := r.registrar.Edit(t.Context(), in.Key(), User{Name: "b"}, func(i *Instance) error { i.Weight = 7; return nil }); !errors.As(err, new(*ForbiddenError)) {
			t.Errorf("another client changes it: %v", err)
		}
		if err := r.registrar.Edit(t.Context(), in.Key(), User{Name: "root", Admin: true}, func(i *Instance) error {
			i.Weight, i.Enabled = 7, false
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.register(s, in)
		if d := r.dataplanes()[0]; *d.Spec.Weight != 7 || *d.Spec.Enabled {
			t.Errorf("weight %d, enabled %t, want what the operator set", *d.Spec.Weight, *d.Spec.Enabled)
		}
		in.Weight = 300
		r.register(s, in)
		if d := r.dataplanes()[0]; *d.Spec.Weight != 300 || *d.Spec.Enabled {
			t.Errorf("weight %d, enabled %t, want the client's new weight", *d.Spec.Weight, *d.Spec.Enabled)
		}
	})
}

// A client that registers anew right after it has deregistered is not taken for registered.
func TestRegisterAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		s := r.open(Nacos, User{}, 0)
		in := orders(8080)
		r.register(s, in)
		for range 3 { // before the tables have caught up
			if err := s.Deregister(t.Context(), in.Key()); err != nil {
				t.Fatal(err)
			}
			if err := s.Register(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(r.dataplanes()) != 1 {
			t.Error("it is not registered")
		}
		if err := s.Deregister(t.Context(), orders(9).Key()); !errors.Is(err, ErrNotFound) {
			t.Errorf("deregister what is not there: %v", err)
		}
	})
}

// A store that refuses for a while does not keep what has ended.
func TestRemovalIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		s := r.open(Nacos, User{}, 0)
		r.register(s, orders(8080))
		var failing atomic.Bool
		failing.Store(true)
		r.client.Intercept(func(c resourcetest.Call) error {
			if c.Verb == resourcetest.Delete && failing.Load() {
				return errors.New("the disk is full")
			}
			return nil
		})
		s.Close(0)
		r.wait(10 * time.Second)
		failing.Store(false)
		r.wait(10 * time.Second)
		if len(r.dataplanes()) != 0 {
			t.Error("it is there")
		}
	})
}

// A loopback address is of the machine that its client is on.
func TestLoopback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		in := orders(8080)
		in.Address = netip.MustParseAddr("127.0.0.1")
		if err := r.open(Nacos, User{}, 0).Register(t.Context(), in); !errors.As(err, new(*ForbiddenError)) {
			t.Errorf("registered from elsewhere: %v", err)
		}
		r.register(r.open(Nacos, User{Local: true}, 0), in)
		if d := r.dataplanes(); len(d) != 1 || d[0].Annotations[meshv1alpha1.AnnotationMachineID] != "m-1" {
			t.Errorf("dataplanes %v", d)
		}
	})
}

func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		s := r.open(Nacos, User{Name: "a", Namespaces: []string{"shop"}}, 0)
		for what, change := range map[string]func(*Instance){
			"namespace office":       func(i *Instance) { i.Service.Namespace = "office" },
			"is empty":               func(i *Instance) { i.Service.Name = "" },
			"address is missing":     func(i *Instance) { i.Address = netip.Addr{} },
			"is not from 0 to 1000":  func(i *Instance) { i.Weight = 1001 },
			"at most 131072 are all": func(i *Instance) { i.Metadata = map[string]string{"a": strings.Repeat("x", maxRecord)} },
		} {
			in := orders(8080)
			change(in)
			if err := s.Register(t.Context(), in); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("error %v, want one that says %q", err, what)
			}
		}
		if r.writes.Load() != 0 || len(s.Keys()) != 0 {
			t.Errorf("%d writes, %d claims", r.writes.Load(), len(s.Keys()))
		}
	})
}
