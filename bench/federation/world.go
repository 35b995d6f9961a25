package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	near, far = "zone-a", "zone-b"
	namespace = metav1.NamespaceDefault
	echoPort  = 9100
	// patience with one change.
	patience = 30 * time.Second
	// patienceEach of the Services that are created before.
	patienceEach = 50 * time.Millisecond
)

// world is a lab with a workload of the benchmark's own in the first zone.
type world struct {
	lab                *lab.Lab
	global, here, away resource.Client
	clientHere         *netns.NS // of the first zone
	clientAway, node   *netns.NS // of the second one
	machine            *netns.NS // that the workload is on
	echo               net.Listener
	// reached is when the first byte of a connection came to the workload, since it was reset.
	reached atomic.Pointer[time.Time]
	// probe is the exported Service that the workload is of; its address here and away.
	probe            resource.Key
	vipHere, vipAway string
	workload         *meshv1alpha1.Dataplane
	trace            *trace // nil: none
}

func newWorld(ctx context.Context, l *lab.Lab, p plan) (_ *world, err error) {
	w := &world{lab: l, probe: resource.Key{Namespace: namespace, Name: "probe"}}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	for _, c := range []struct {
		zone string
		to   *resource.Client
	}{{"", &w.global}, {near, &w.here}, {far, &w.away}} {
		if *c.to, err = l.Client(c.zone); err != nil {
			return nil, err
		}
	}
	for _, n := range []struct {
		place string
		to    **netns.NS
	}{{"client-a", &w.clientHere}, {"client-b", &w.clientAway}, {"b-1", &w.node}, {"a-1", &w.machine}} {
		if *n.to, err = netns.Open(l.Namespace(n.place)); err != nil {
			return nil, err
		}
	}
	if w.echo, err = w.machine.Listen("tcp", fmt.Sprintf("10.200.1.11:%d", echoPort)); err != nil {
		return nil, err
	}
	go w.serve()
	if err := w.others(ctx, p.services); err != nil {
		return nil, err
	}
	return w, w.prepare(ctx)
}

func (w *world) close() {
	w.trace.close()
	if w.echo != nil {
		_ = w.echo.Close()
	}
	for _, n := range []*netns.NS{w.clientHere, w.clientAway, w.node, w.machine} {
		if n != nil {
			_ = n.Close()
		}
	}
}

// serve answers each connection that sends a byte with one.
func (w *world) serve() {
	for {
		c, err := w.echo.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(attempt)); err != nil {
				return
			}
			var first [1]byte
			if _, err := io.ReadFull(c, first[:]); err != nil {
				return
			}
			now := time.Now()
			w.reached.CompareAndSwap(nil, &now)
			_, _ = c.Write(first[:])
		}()
	}
}

// attempt bounds one connection.
const attempt = 200 * time.Millisecond

// exported creates a Service in the first zone, and its export.
func (w *world) exported(ctx context.Context, name string) error {
	_, err := w.here.Create(ctx, kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"bench": name}, Ports: []corev1.ServicePort{{Name: "echo", Port: echoPort}},
		},
	})
	if err == nil {
		_, err = w.here.Create(ctx, kind.ServiceExport, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}
	return err
}

// others creates n exported Services, and waits until the other zone has their imports.
func (w *world) others(ctx context.Context, n int) error {
	const workers = 8
	errs := make(chan error, workers)
	for worker := range workers {
		go func() {
			var err error
			for i := worker; i < n && err == nil; i += workers {
				err = w.exported(ctx, fmt.Sprintf("other-%d", i))
			}
			errs <- err
		}()
	}
	var err error
	for range workers {
		err = errors.Join(err, <-errs)
	}
	if err != nil || n == 0 {
		return err
	}
	late := time.Now().Add(patienceEach*time.Duration(n) + patience)
	for {
		all, _, err := w.away.List(ctx, kind.ServiceImport, resource.ListOptions{Namespace: namespace})
		if err != nil {
			return err
		}
		if len(all) >= n {
			return nil
		}
		if time.Now().After(late) {
			return fmt.Errorf("%d of %d exported Services are imported: %w", len(all), n, errPatience)
		}
		time.Sleep(time.Second)
	}
}

// prepare creates the Service and its workload, which is not ready.
func (w *world) prepare(ctx context.Context) error {
	if err := w.exported(ctx, w.probe.Name); err != nil {
		return err
	}
	made, err := w.here.Create(ctx, kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "probe-1", Labels: map[string]string{"bench": w.probe.Name}},
		Spec: meshv1alpha1.DataplaneSpec{
			NodeName: "a-1", Addresses: []string{"10.200.1.11"}, Ports: []meshv1alpha1.DataplanePort{{Name: "echo", Port: echoPort}},
		},
	})
	if err != nil {
		return err
	}
	w.workload = made.(*meshv1alpha1.Dataplane)
	for _, c := range []struct {
		client resource.Client
		to     *string
	}{{w.here, &w.vipHere}, {w.away, &w.vipAway}} {
		if _, err := until(ctx, func() bool {
			object, err := c.client.Get(ctx, kind.ServiceImport, w.probe)
			if err != nil || len(object.(*mcs.ServiceImport).Spec.IPs) == 0 {
				return false
			}
			*c.to = net.JoinHostPort(object.(*mcs.ServiceImport).Spec.IPs[0], strconv.Itoa(echoPort))
			return true
		}); err != nil {
			return fmt.Errorf("the probe is not imported: %w", err)
		}
	}
	return nil
}

// setReady writes whether the workload is ready.
func (w *world) setReady(ctx context.Context, ready bool) error {
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	w.workload.Status.Conditions = []metav1.Condition{{
		Type: meshv1alpha1.DataplaneReady, Status: status, Reason: "Benchmark", LastTransitionTime: metav1.Now(),
	}}
	written, err := w.here.UpdateStatus(ctx, kind.Dataplane, w.workload)
	if apierrors.IsConflict(err) {
		if written, err = w.here.Get(ctx, kind.Dataplane, resource.KeyOf(w.workload)); err == nil {
			w.workload = written.(*meshv1alpha1.Dataplane)
			return w.setReady(ctx, ready)
		}
	}
	if err == nil {
		w.workload = written.(*meshv1alpha1.Dataplane)
	}
	return err
}

// answers reports whether a connection to an address gets the workload's byte. The client
// sends first, as in HTTP: for protocols in which the server does, a node's tunnel waits
// 10 ms for the client's first bytes before it opens the stream.
func answers(ctx context.Context, from *netns.NS, vip string) bool {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	c, err := from.DialContext(ctx, "tcp", vip)
	if err != nil {
		return false
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(attempt)); err != nil {
		return false
	}
	if _, err := c.Write([]byte(".")); err != nil {
		return false
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err == nil
}

var errPatience = errors.New("not in use after " + patience.String())

// until asks until there, and returns how long that took.
func until(ctx context.Context, there func() bool) (time.Duration, error) {
	begin := time.Now()
	for !there() {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		if time.Since(begin) > patience {
			return 0, errPatience
		}
		time.Sleep(200 * time.Microsecond)
	}
	return time.Since(begin), nil
}
