package access

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/controller/nodename"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// defaultLease is the duration of a node's Lease that specifies none, as in
// Kubernetes (node-monitor-grace-period before 1.32).
const defaultLease = 40 * time.Second

// MachineOf reads the machine out of the holder of a node's Lease, NODE/MACHINE;
// "" if it names none, as one of an older agent or one that was released.
func MachineOf(holder string) string {
	_, machine, _ := strings.Cut(holder, "/")
	return machine
}

// Holders keep one node name on one machine: the Lease of a node that another
// machine holds can be taken only when it has run out, or was released. The age of
// a Lease counts from when its last renewal was seen here, since the clocks of two
// machines cannot be compared. Safe for concurrent use.
type Holders struct {
	// Attempts that were refused; those that find it full are dropped.
	Attempts chan nodename.Attempt

	mu    sync.Mutex
	seen  map[string]renewal // by node
	swept time.Time
}

// sweepEvery is how often renewals are dropped that are older than that: a Lease
// that is met again later counts as just renewed.
const sweepEvery = time.Hour

type renewal struct {
	// renewed is the holder's own word; it is only compared for change.
	renewed time.Time
	at      time.Time // by our clock
}

// NewHolders starts without renewals: a Lease seen for the first time counts as just
// renewed.
func NewHolders() *Holders {
	return &Holders{Attempts: make(chan nodename.Attempt, 100), seen: map[string]renewal{}}
}

// AllowWrite is the part of the check of writes that is about node names. It is
// to run for every create (old is nil), update, patch and delete (obj is nil).
func (h *Holders) AllowWrite(kind schema.GroupKind, obj, old resource.Object) error {
	if kind != (schema.GroupKind{Group: coordinationGroup, Kind: "Lease"}) {
		return nil
	}
	next, _ := obj.(*coordinationv1.Lease)
	prev, _ := old.(*coordinationv1.Lease)
	switch {
	case next == nil && prev != nil && prev.Namespace == LeaseNamespace:
		h.forget(prev.Name)
		return nil
	case next == nil || next.Namespace != LeaseNamespace:
		return nil
	}
	return h.judge(next, prev, time.Now())
}

func (h *Holders) forget(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.seen, node)
}

func (h *Holders) judge(next, prev *coordinationv1.Lease, now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.swept) > sweepEvery {
		h.swept = now
		maps.DeleteFunc(h.seen, func(_ string, r renewal) bool { return now.Sub(r.at) > sweepEvery })
	}
	if prev != nil {
		holder, machine := MachineOf(holderOf(prev)), MachineOf(holderOf(next))
		if holder != "" && machine != "" && machine != holder {
			last := h.observe(prev, now)
			if age := now.Sub(last); age < durationOf(prev) {
				h.attempted(nodename.Attempt{Node: prev.Name, Machine: machine, Holder: holder})
				return fmt.Errorf("node name %s is in use by machine %s, last renewal %s ago, and this is machine %s: "+
					"stop the agent on one of them, or give it another --node-name and a token of its own",
					prev.Name, holder, age.Round(time.Second), machine)
			}
		}
	}
	h.seen[next.Name] = renewal{renewed: renewedOf(next), at: now}
	return nil
}

// observe is when the last renewal of a Lease was seen first.
func (h *Holders) observe(l *coordinationv1.Lease, now time.Time) time.Time {
	known, ok := h.seen[l.Name]
	if !ok || !known.renewed.Equal(renewedOf(l)) {
		known = renewal{renewed: renewedOf(l), at: now}
		h.seen[l.Name] = known
	}
	return known.at
}

func (h *Holders) attempted(a nodename.Attempt) {
	select {
	case h.Attempts <- a:
	default: // the next one is seconds away
	}
}

func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func renewedOf(l *coordinationv1.Lease) time.Time {
	if l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

func durationOf(l *coordinationv1.Lease) time.Duration {
	if s := l.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		return time.Duration(*s) * time.Second
	}
	return defaultLease
}
