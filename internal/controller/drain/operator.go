package drain

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Counter asks the agent of a node for the open connections at the endpoints of its
// workloads. It blocks for some seconds at most.
type Counter func(ctx context.Context, node string) (map[netip.AddrPort]int, error)

// Operator starts and ends drains, and reports on them. Safe for concurrent use.
type Operator struct {
	// Client writes Nodes.
	Client resource.Client
	// Catalog follows Nodes, Dataplanes, Pods, Services and EndpointSlices.
	Catalog *catalog.Catalog
	Count   Counter
	// Clock; nil: the real one.
	Clock clock.PassiveClock
}

// attempts to write a Node that others write at the same time.
const attempts = 5

func (o *Operator) now() time.Time {
	if o.Clock == nil {
		return time.Now()
	}
	return o.Clock.Now()
}

// Progress of a node. Errors are those of the API: NotFound, if there is no such node.
func (o *Operator) Progress(ctx context.Context, name string) (Progress, error) {
	node, err := o.node(ctx, name)
	if err != nil {
		return Progress{}, err
	}
	return o.evaluate(ctx, node, nil), nil
}

// Start drains a node, or goes on with a drain that was started. The error is a conflict if
// that would leave a Service without a ready endpoint, unless force; endpoints on other nodes
// that are being drained do not count. dryRun: nothing is written, and what would be refused is
// in LastEndpoints of the result.
func (o *Operator) Start(ctx context.Context, name, by string, force, dryRun bool) (Progress, error) {
	for attempt := 1; ; attempt++ {
		node, err := o.node(ctx, name)
		if err != nil {
			return Progress{}, err
		}
		nodes, err := o.nodes(ctx)
		if err != nil {
			return Progress{}, err
		}
		p, goesOn := o.evaluate(ctx, node, nodes), started(node)
		if dryRun {
			return p, nil
		}
		if len(p.LastEndpoints) > 0 && !force && !goesOn {
			return p, o.refuse(p)
		}
		node = node.DeepCopy()
		if !kind.StartDrain(node, by, force, o.now()) {
			return p, nil
		}
		written, err := o.Client.Update(ctx, kind.Node, node)
		if apierrors.IsConflict(err) && attempt < attempts {
			continue
		}
		if err != nil {
			return Progress{}, fmt.Errorf("drain node %s: %w", name, err)
		}
		if force || goesOn {
			return o.evaluate(ctx, written.(*corev1.Node), nodes), nil
		}
		return o.confirm(ctx, written.(*corev1.Node))
	}
}

// confirm a drain that has just begun. Of two nodes that are drained at the same moment, by
// whichever instances, each may have had the last other endpoint of a Service when that was
// checked. So it is checked again with the taint in the store: at least one of the two sees
// the other's, and is put back into use.
func (o *Operator) confirm(ctx context.Context, node *corev1.Node) (Progress, error) {
	nodes, err := o.nodes(ctx)
	if err != nil {
		return Progress{}, err
	}
	p := o.evaluate(ctx, node, nodes)
	if len(p.LastEndpoints) == 0 {
		return p, nil
	}
	if _, _, err := o.End(ctx, node.Name); err != nil {
		return Progress{}, err
	}
	return p, o.refuse(p)
}

// nodes by name, as they are now.
func (o *Operator) nodes(ctx context.Context) (map[string]*corev1.Node, error) {
	list, _, err := o.Client.List(ctx, kind.Node, resource.ListOptions{Shared: true})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	out := make(map[string]*corev1.Node, len(list))
	for _, obj := range list {
		out[obj.GetName()] = obj.(*corev1.Node)
	}
	return out, nil
}

// started reports whether the node is drained already, so that there is nothing to refuse.
func started(n *corev1.Node) bool { return kind.DrainOf(n).Taint != nil }

func (o *Operator) refuse(p Progress) error {
	return apierrors.NewConflict(kind.Node.GroupResource(), p.Node, fmt.Errorf(
		"to drain it would leave no endpoint for Service %s on a node that is not drained: start another instance of it on another node, or use --force",
		strings.Join(p.LastEndpoints, ", ")))
}

// End puts a node back into use: the one that Start drained, as it was before. changed is
// false if there was nothing to do. A taint of another program stays, and Progress names it.
func (o *Operator) End(ctx context.Context, name string) (p Progress, changed bool, err error) {
	for attempt := 1; ; attempt++ {
		node, err := o.node(ctx, name)
		if err != nil {
			return Progress{}, false, err
		}
		node = node.DeepCopy()
		if !kind.EndDrain(node) {
			return o.evaluate(ctx, node, nil), false, nil
		}
		written, err := o.Client.Update(ctx, kind.Node, node)
		if apierrors.IsConflict(err) && attempt < attempts {
			continue
		}
		if err != nil {
			return Progress{}, false, fmt.Errorf("undrain node %s: %w", name, err)
		}
		return o.evaluate(ctx, written.(*corev1.Node), nil), true, nil
	}
}

func (o *Operator) node(ctx context.Context, name string) (*corev1.Node, error) {
	obj, err := o.Client.Get(ctx, kind.Node, resource.Key{Name: name})
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(kind.Node.GroupResource(), name) // which names the kind for users
	}
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Node), nil
}

// evaluate reports a node drained once that is noted on it, so that everything that reads the
// Node agrees. nodes are as in Input.
func (o *Operator) evaluate(ctx context.Context, node *corev1.Node, nodes map[string]*corev1.Node) Progress {
	p := evaluate(ctx, o.Catalog, o.Count, Input{Node: node, Nodes: nodes}, o.now)
	if p.State == Drained && kind.DrainOf(node).Drained.IsZero() {
		p.State, p.Waiting = Draining, []string{"the control plane has not noted on the Node yet that it is drained"}
	}
	return p
}

// evaluate completes the input, and asks the node's agent if there is something to ask for.
func evaluate(ctx context.Context, tables *catalog.Catalog, count Counter, in Input, now func() time.Time) Progress {
	in.Snapshot, in.Open = tables.Snapshot(), map[netip.AddrPort]int{}
	if len(Endpoints(in.Snapshot, in.Node)) > 0 {
		open, err := count(ctx, in.Node.Name)
		if err != nil {
			in.Uncounted = err.Error()
		}
		in.Open = open
	}
	in.Now = now()
	return Evaluate(in)
}
