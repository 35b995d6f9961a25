package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/event"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	// period in which nodes that are draining are looked at.
	period = time.Second
	// atOnce is how many agents are asked at the same time: one that is silent takes seconds.
	atOnce = 16
)

// component that events are from.
const component = "node-drain"

// Config of a Controller. All fields but Clock and Logger are required.
type Config struct {
	// Client writes Nodes and events.
	Client  resource.Client
	Catalog *catalog.Catalog
	Count   Counter
	// Clock; nil: the real one.
	Clock clock.PassiveClock
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Controller notes on each drained Node since when it is drained, and writes the events of
// drains: Draining, Drained and Undrained. Make it with New.
type Controller struct {
	Config
	// drains that are known, by node.
	drains map[string]*known

	mu      sync.Mutex
	metrics measured
}

// known is what was found out about a drain.
type known struct {
	// node as it was at that time, and of which all follows.
	node *corev1.Node
	at   time.Time
	// began is when the drain did, by the monotonic clock: a step of the calendar's clock neither
	// ends a drain nor holds it up.
	began time.Time
	// done: nothing is in the way of a reboot. cut are the connections that it would break.
	done bool
	cut  int
}

// measured is what metrics show.
type measured struct{ draining, drained, connections int }

// New makes a controller; Run starts it.
func New(cfg Config) *Controller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Controller{Config: cfg}
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	sub := c.Catalog.Subscribe(catalog.Nodes)
	defer sub.Close()
	first := true
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if !first && c.open() {
			wait, cancel = context.WithTimeout(ctx, period)
		}
		_, err := sub.Next(wait)
		cancel()
		if ctx.Err() != nil || errors.Is(err, catalog.ErrClosed) {
			return nil
		}
		c.sweep(ctx, c.Catalog.Snapshot(), first)
		first = false
	}
}

// open reports whether a drain is not done.
func (c *Controller) open() bool {
	for _, k := range c.drains {
		if !k.done {
			return true
		}
	}
	return false
}

// sweep looks at every node, and asks the agents of those that are draining, once in a period
// and when their Node changes. The first sweep of a term learns of drains, whose events an
// earlier term wrote.
func (c *Controller) sweep(ctx context.Context, s *catalog.Snapshot, first bool) {
	before := c.drains
	c.drains = map[string]*known{}
	var looking sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for key, node := range s.Nodes.All() {
		k, was := before[key.Name]
		d := kind.DrainOf(node)
		if d.Taint == nil {
			c.undrained(ctx, node, was)
			continue
		}
		if !was && !first {
			c.tell(ctx, node, "Draining", draining(d))
		}
		if was && k.node == node && (k.done || c.Clock.Since(k.at) < period) {
			c.drains[key.Name] = k
			continue
		}
		k = c.knownOf(k, node, d)
		c.drains[key.Name] = k
		slots <- struct{}{}
		looking.Go(func() {
			defer func() { <-slots }()
			p := c.look(ctx, k, d)
			k.done, k.cut = p.State == Drained, p.Cut
		})
	}
	looking.Wait()
	c.measure()
}

// knownOf a drain that is looked at now; nil: it was not known before.
func (c *Controller) knownOf(before *known, node *corev1.Node, d kind.NodeDrain) *known {
	k := &known{node: node, at: c.Clock.Now()}
	switch {
	case before != nil:
		k.began = before.began
	case d.Since.IsZero():
		k.began = k.at
	default:
		k.began = k.at.Add(-max(0, k.at.Sub(d.Since)))
	}
	return k
}

// measure what metrics show.
func (c *Controller) measure() {
	var now measured
	for _, k := range c.drains {
		now.connections += k.cut
		if k.done {
			now.drained++
		} else {
			now.draining++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metrics = now
}

func draining(d kind.NodeDrain) string {
	by := ""
	if d.By != "" {
		by = "by " + d.By + ": "
	}
	return fmt.Sprintf("%sits workloads get no new connections (taint %s)", by, d.Taint.ToString())
}

// look at a node that has the taint, and record what is new.
func (c *Controller) look(ctx context.Context, k *known, d kind.NodeDrain) Progress {
	node := k.node
	next := node.DeepCopy()
	record := d.DrainRecord
	if _, recorded := node.Annotations[mesh.AnnotationDrain]; !recorded || d.Since.IsZero() { // a taint without the command
		record.Since, record.Cordoned = d.Since, node.Spec.Unschedulable
		if record.Since.IsZero() {
			record.Since = c.Clock.Now().UTC().Truncate(time.Second)
		}
		kind.SetDrainRecord(next, record)
	}
	if !d.Drained.IsZero() {
		return Progress{State: Drained} // it stays so until it is undrained, whatever runs there
	}
	p := evaluate(ctx, c.Catalog, c.Count, Input{Node: next}, func() time.Time { return record.Since.Add(c.Clock.Since(k.began)) })
	if p.State == Drained {
		record.Drained = c.Clock.Now().UTC().Truncate(time.Second)
		kind.SetDrainRecord(next, record)
	}
	if record == d.DrainRecord && node.Annotations[mesh.AnnotationDrain] != "" {
		return p
	}
	if !c.write(ctx, next) {
		p.State = Draining // it is looked at again
		return p
	}
	if p.State == Drained {
		c.tell(ctx, node, "Drained", p.Summary())
	}
	return p
}

// Summary of a node that is drained.
func (p *Progress) Summary() string {
	text := "its machine can be rebooted: no connection is open"
	switch {
	case p.Uncounted != "":
		text = "its machine can be rebooted: the time of all connections is over; they could not be counted: " + p.Uncounted
	case p.Cut > 0:
		var with []string
		for i := range p.Workloads {
			if w := &p.Workloads[i]; w.Connections != nil && *w.Connections > 0 {
				with = append(with, fmt.Sprintf("%s/%s (%d)", w.Namespace, w.Name, *w.Connections))
			}
		}
		text = fmt.Sprintf("its machine can be rebooted: the time of %s is over, a reboot breaks them: %s",
			plural(p.Cut, "open connection"), strings.Join(with, ", "))
	}
	if len(p.LastEndpoints) > 0 {
		text += fmt.Sprintf("; no other node has an endpoint of Service %s, which fails meanwhile", strings.Join(p.LastEndpoints, ", "))
	}
	return text
}

// undrained removes the record of a drain whose taint is gone.
func (c *Controller) undrained(ctx context.Context, node *corev1.Node, was bool) {
	if _, left := node.Annotations[mesh.AnnotationDrain]; left {
		next := node.DeepCopy()
		kind.SetDrainRecord(next, kind.DrainRecord{})
		if !c.write(ctx, next) {
			return
		}
		was = true
	}
	if was {
		c.tell(ctx, node, "Undrained", "its workloads get connections again")
	}
}

// write a Node, and report whether that succeeded. A conflict is no failure: the other
// write comes with the next delta.
func (c *Controller) write(ctx context.Context, node *corev1.Node) bool {
	_, err := c.Client.Update(ctx, kind.Node, node)
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		c.Logger.Warn("the state of a drain was not noted, it is tried again", "node", node.Name, "error", err)
	}
	return err == nil
}

func (c *Controller) tell(ctx context.Context, node *corev1.Node, reason, text string) {
	c.Logger.Info("drain of a node", "node", node.Name, "state", reason, "message", text)
	about := event.About(corev1.SchemeGroupVersion.WithKind("Node"), node)
	e := event.Normal(about, component, c.Clock.Now(), reason, text)
	if _, err := c.Client.Create(ctx, kind.Event, e); err != nil && ctx.Err() == nil {
		c.Logger.Warn("event could not be written", "node", node.Name, "error", err)
	}
}
