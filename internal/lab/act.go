package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Open a lab that is up, also one of another process.
func Open(name string) (*Lab, error) {
	if !namePattern.MatchString(name) {
		return nil, fmt.Errorf("lab name %q: want 1 to 8 lower-case letters and digits", name)
	}
	kept, err := readState(name)
	if err != nil {
		return nil, err
	}
	l := &Lab{spec: kept.spec(), kept: kept}
	if l.ns, err = openAll(l.spec); err != nil {
		return nil, err
	}
	return l, nil
}

// Close gives up the handles of a lab, and leaves the lab as it is.
func (l *Lab) Close() {
	for _, c := range l.clients {
		c.transport.CloseIdleConnections()
	}
	l.ns.close()
}

// Down ends a lab: all processes in its namespaces, then these, then its files.
// It needs nothing but the name, and reports whether there was anything. A lab
// that is not there is no error.
func Down(ctx context.Context, name string) (found bool, err error) {
	if !namePattern.MatchString(name) {
		return false, fmt.Errorf("lab name %q: want 1 to 8 lower-case letters and digits", name)
	}
	names, err := netns.List(namespacePrefix(name))
	if err != nil {
		return false, err
	}
	if !exists(dirOf(name), names) {
		return false, nil
	}
	var errs []error
	for _, n := range names {
		errs = append(errs, clearNamespace(ctx, n))
	}
	if err := errors.Join(errs...); err != nil {
		return true, fmt.Errorf("take down lab %s: %w", name, err)
	}
	// Last, so that an interrupted Down finds its way back.
	if err := os.RemoveAll(dirOf(name)); err != nil {
		return true, err
	}
	_ = os.Remove(root) // if this was the last lab; it is not empty otherwise
	if h, err := cgroup.Find(); err == nil {
		h.Sweep() // of workloads that were killed with their agents
	}
	return true, nil
}

// clearNamespace ends what is in a namespace, and the namespace. One of which only the
// name is left has nothing in it.
func clearNamespace(ctx context.Context, name string) error {
	ns, err := netns.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return netns.Remove(name)
	case err != nil:
		return err
	}
	if err = ns.Kill(ctx); err == nil {
		err = clearLayer(ctx, ns)
	}
	_ = ns.Close()
	if err != nil {
		return err
	}
	return netns.Remove(name)
}

// sweep takes down labs whose owner died.
func sweep(ctx context.Context) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, e := range entries {
		k, err := readState(e.Name())
		if err != nil || !k.orphaned() {
			continue // also a lab that is half made: its starter is at it
		}
		if _, err := Down(ctx, e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// Down ends this lab, and returns when nothing of it is left. The Lab is closed.
func (l *Lab) Down(ctx context.Context) error {
	l.Close()
	_, err := Down(ctx, l.spec.Name)
	if err == nil {
		l.reaped()
	}
	return err
}

// reaped waits until the processes that this one started are no longer its
// children.
func (l *Lab) reaped() {
	for _, p := range l.started {
		<-p.done
	}
	l.started = nil
}

// PowerOff cuts the link of a node, or of a zone, and then kills every process, so that
// none of them can sign off.
func (l *Lab) PowerOff(ctx context.Context, name string) error {
	if err := l.Cut(name); err != nil {
		return err
	}
	return l.eachMachine(name, func(ns *netns.NS) error { return ns.Kill(ctx) })
}

// Stop every process of a node, or of all nodes of a zone, as SIGSTOP does: the kernel of the
// machine goes on, nothing else does. Heal lets them go on.
func (l *Lab) Stop(name string) error {
	return l.eachMachine(name, func(ns *netns.NS) error { return ns.Signal(suspend) })
}

func (l *Lab) eachMachine(name string, do func(*netns.NS) error) error {
	p, err := l.spec.find(name)
	if err != nil {
		return err
	}
	var errs []error
	for _, machine := range l.spec.machinesAt(p) {
		if ns := l.ns.open[machine]; ns != nil {
			errs = append(errs, do(ns))
		}
	}
	return errors.Join(errs...)
}

// Heal plugs the cable of a zone or machine in again, lets what was stopped go on, and starts
// what died on its machines. An empty name heals the whole lab, its control plane or global
// included, and every link between two places. It returns when what it started serves.
func (l *Lab) Heal(ctx context.Context, name string) error {
	if name != "" {
		return l.healOne(ctx, name)
	}
	if err := l.unblockAll(); err != nil {
		return err
	}
	if err := l.healLinks(ctx); err != nil {
		return err
	}
	if err := l.healMachine(ctx, control); err != nil {
		return err
	}
	for _, z := range l.spec.zones() {
		if err := l.healOne(ctx, z.name()); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) healOne(ctx context.Context, name string) error {
	p, err := l.spec.find(name)
	if err != nil {
		return err
	}
	if err := l.setLink(name, true); err != nil {
		return err
	}
	// The control plane comes before the nodes that join it.
	for _, machine := range l.spec.machinesAt(p) {
		if machine == p.zone.plane() {
			if err := l.healMachine(ctx, machine); err != nil {
				return err
			}
		}
	}
	for _, machine := range l.spec.machinesAt(p) {
		if err := l.healMachine(ctx, machine); err != nil {
			return err
		}
	}
	return nil
}

// healMachine plugs a machine in, and starts what died on it.
func (l *Lab) healMachine(ctx context.Context, machine string) error {
	if machine != control {
		if err := l.setLink(machine, true); err != nil {
			return err
		}
	}
	ns := l.ns.open[machine]
	if ns != nil {
		if err := ns.Signal(resume); err != nil {
			return err
		}
	}
	for _, p := range append(l.spec.planes(), l.spec.central()) {
		if p.place == machine {
			return l.revive(p.process(), ns, func() error { return l.startPlane(ctx, p) })
		}
	}
	for _, z := range l.spec.zones() {
		if z.gateway() == machine || z.egress() == machine {
			return l.revive(machine, ns, func() error { return l.startGateway(ctx, z, machine) })
		}
	}
	for _, n := range l.spec.nodes() {
		if n.name() == machine {
			return l.healNode(ctx, n)
		}
	}
	return nil
}

func (l *Lab) healNode(ctx context.Context, n node) error {
	ns := l.ns.open[n.name()]
	if err := l.revive(n.name()+"-agent", ns, func() error {
		agent, err := l.startAgent(ctx, n)
		if err != nil {
			return err
		}
		return agent.ready(ctx)
	}); err != nil {
		return err
	}
	return l.revive(n.name()+"-workload", ns, func() error { return l.restartWorkload(ctx, n) })
}

// restartWorkload that died without deregistering: its name is taken, and it is ready, until
// its lease runs out, but here it is known to be dead.
func (l *Lab) restartWorkload(ctx context.Context, n node) error {
	client, err := l.clientOf(l.spec.planeOf(n.zone))
	if err != nil {
		return err
	}
	key := resource.Key{Namespace: metav1.NamespaceDefault, Name: l.spec.workloadOf(n)}
	obj, err := client.Get(ctx, kind.Dataplane, key)
	if err == nil {
		dp := obj.(*meshv1alpha1.Dataplane)
		dp.Status.Lease = nil
		meta.SetStatusCondition(&dp.Status.Conditions, metav1.Condition{
			Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionFalse, Reason: "Restarted", Message: "its machine was switched on again",
		})
		_, err = client.UpdateStatus(ctx, kind.Dataplane, dp)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("end the lease of the old workload of node %s: %w", n.name(), err)
	}
	return l.startWorkload(n)
}

// revive starts what does not run.
func (l *Lab) revive(what string, in *netns.NS, start func() error) error {
	if in == nil {
		return fmt.Errorf("the namespace of %s is gone: take the lab down and up again", what)
	}
	if in.Holds(l.kept.process(what)) {
		return nil
	}
	return start()
}

// Kill the hard way: a node's agent, whose data path stays as its mode leaves it, a control
// plane or a gateway.
func (l *Lab) Kill(ctx context.Context, name string) error {
	p, err := l.spec.find(name)
	if err != nil {
		return err
	}
	place, what := name, name
	switch {
	case p.node != nil:
		what = name + "-agent"
	case p.machine == control:
		place, what = control, l.spec.central().process()
	case p.machine == "":
		return fmt.Errorf("%s is a zone: name a machine, of which the agent, control plane or gateway is to be killed", name)
	}
	ns := l.ns.open[place]
	pid := l.kept.process(what)
	if ns == nil || !ns.Holds(pid) {
		return fmt.Errorf("there is no process to kill: that of %s does not run", name)
	}
	return ns.KillProcess(ctx, pid)
}
