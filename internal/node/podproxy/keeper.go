package podproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
)

// Pod with a sidecar.
type Pod struct {
	Key       resource.Key
	Addresses []netip.Addr
	Rules     redirect.Rules
}

// namespace of a Pod, open.
type namespace interface {
	// Addresses of its links.
	Addresses() ([]netip.Addr, error)
	// Do runs f in it.
	Do(f func() error) error
	Close() error
}

// kernel is what the keeper changes; tests have their own.
type kernel struct {
	names  func() ([]string, error)
	open   func(name string) (namespace, error)
	stands func(redirect.Rules) (bool, error)
	put    func(redirect.Rules) error
	// cookie of the network namespace of the calling thread.
	cookie func() (uint64, error)
}

// Config of a Keeper. Dir is required.
type Config struct {
	// Dir has the network namespaces of the node's Pods, a file each, as container runtimes keep them.
	Dir        string
	Registerer prometheus.Registerer // nil: none
	Logger     *slog.Logger          // nil: silence
	// Redirected is told the cookies of the network namespaces of Pods (SO_NETNS_COOKIE), all of them, before the
	// rules of a further one are put there; nil: nobody asks.
	Redirected func(cookies map[uint64]struct{})
}

// Keeper is safe for concurrent use. Make it with New.
type Keeper struct {
	dir    string
	log    *slog.Logger
	kernel kernel
	wake   chan struct{}

	redirected, waiting prometheus.Gauge

	// tellCookies, and what it was told, by Pod: of Run alone.
	tellCookies func(map[uint64]struct{})
	cookies     map[resource.Key]uint64

	mu   sync.Mutex
	pods map[resource.Key]Pod
	// since when a Pod waits for its rules, and whether that was said.
	since map[resource.Key]time.Time
	said  map[resource.Key]string
	// changed is closed when said is another one.
	changed chan struct{}
}

// New makes a keeper; Run starts it.
func New(c Config) *Keeper {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{
		dir: c.Dir, log: c.Logger, tellCookies: c.Redirected, cookies: map[resource.Key]uint64{}, kernel: system(c.Dir), wake: make(chan struct{}, 1), pods: map[resource.Key]Pod{},
		since: map[resource.Key]time.Time{}, said: map[resource.Key]string{}, changed: make(chan struct{}),
		redirected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "proxima_sidecar_redirected_pods", Help: "Pods of this node whose connections are led to their sidecars.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "proxima_sidecar_waiting_pods", Help: "Pods of this node that wait for their connections to be led to their sidecars; they are not ready.",
		}),
	}
	if c.Registerer != nil {
		c.Registerer.MustRegister(k.redirected, k.waiting)
	}
	return k
}

// Set the Pods of this node that have a sidecar, all of them. It does not block.
func (k *Keeper) Set(pods []Pod) {
	next := make(map[resource.Key]Pod, len(pods))
	for _, p := range pods {
		next[p.Key] = p
	}
	k.mu.Lock()
	k.pods = next
	for key := range k.since {
		if _, ok := next[key]; !ok {
			k.forget(key)
		}
	}
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Waiting are the Pods that have been waiting for their rules for some time, and why, in sentences that
// name what to do. changed is closed when the answer is another one. The map is the caller's.
func (k *Keeper) Waiting() (why map[resource.Key]string, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.said), k.changed
}

// forget what a Pod waited for. The lock is held.
func (k *Keeper) forget(key resource.Key) {
	delete(k.since, key)
	if _, said := k.said[key]; said {
		delete(k.said, key)
		k.note()
	}
}

// note that Waiting has another answer. The lock is held.
func (k *Keeper) note() {
	close(k.changed)
	k.changed = make(chan struct{})
}

const (
	// again is how often rules that stand are looked at.
	again = 15 * time.Second
	// patience with a Pod before it is said what it waits for.
	patience = 10 * time.Second
)

// soon spaces attempts while a Pod waits: it cannot start before.
var soon = backoff.Policy{First: 100 * time.Millisecond, Last: 2 * time.Second}

// Run until ctx ends, and return nil then. Rules stay. It must be called once.
func (k *Keeper) Run(ctx context.Context) error {
	pause := backoff.Backoff{Policy: soon}
	for {
		wait := again
		if k.reconcile(time.Now()) > 0 {
			wait = pause.Next()
		} else {
			pause.Reset()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-k.wake:
			pause.Reset()
		case <-timer.C:
		}
		timer.Stop()
	}
}

// reconcile all Pods, and return how many wait.
func (k *Keeper) reconcile(now time.Time) (waiting int) {
	k.mu.Lock()
	left := maps.Clone(k.pods)
	k.mu.Unlock()
	k.forgetCookies(left)
	all, of := len(left), map[netip.Addr]resource.Key{}
	for key, p := range left {
		for _, a := range p.Addresses {
			of[a] = key
		}
	}
	why := map[resource.Key]error{}
	if len(left) > 0 {
		k.visit(of, left, why)
	}
	k.redirected.Set(float64(all - len(left)))
	k.waiting.Set(float64(len(left)))
	k.tell(left, why, now)
	return len(left)
}

// visit the namespaces, and take the Pods whose rules stand out of left.
func (k *Keeper) visit(of map[netip.Addr]resource.Key, left map[resource.Key]Pod, why map[resource.Key]error) {
	names, err := k.kernel.names()
	if err != nil {
		for key := range left {
			why[key] = err
		}
		return
	}
	var barred error // whose namespace it is, is not known
	for _, name := range names {
		if len(left) == 0 {
			return
		}
		key, err := k.enter(name, of, left)
		switch {
		case err == nil && key != (resource.Key{}):
			delete(left, key)
		case err != nil && key != (resource.Key{}):
			why[key] = explain(err)
		case err != nil:
			k.log.Debug("a network namespace is passed over", "name", name, "error", err)
			if errors.Is(err, fs.ErrPermission) {
				barred = fmt.Errorf("the agent may not enter network namespaces (%w): its container needs the capability SYS_ADMIN, which the chart gives it with sidecar.enabled", err)
			}
		}
	}
	for key := range left {
		if why[key] == nil && barred != nil {
			why[key] = barred
		}
	}
}

// explain names what to do about an error of the kernel.
func explain(err error) error {
	switch {
	case errors.Is(err, redirect.ErrTaken):
		return fmt.Errorf("%w: delete the Pod, or the table inet %s in its network namespace (nft delete table; one with the flag owner goes with its program)", err, redirect.TableName)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the agent may not use nftables in the Pod's network namespace (%w): its container needs the capability NET_ADMIN", err)
	}
	return err
}

// enter one namespace: whose it is, if it is that of a Pod of left.
func (k *Keeper) enter(name string, of map[netip.Addr]resource.Key, left map[resource.Key]Pod) (key resource.Key, err error) {
	ns, err := k.kernel.open(name)
	if err != nil {
		return key, err
	}
	defer ns.Close()
	addresses, err := ns.Addresses()
	if err != nil {
		return key, err
	}
	for _, a := range addresses {
		of, known := of[a]
		p, waits := left[of]
		if !known || !waits {
			continue
		}
		return of, ns.Do(func() error { return k.ensure(p) })
	}
	return key, nil
}

// ensure the rules of a Pod in the namespace of this thread.
func (k *Keeper) ensure(p Pod) error {
	if err := k.learnCookie(p.Key); err != nil {
		return err
	}
	if stands, err := k.kernel.stands(p.Rules); err != nil || stands {
		return err
	}
	if err := k.kernel.put(p.Rules); err != nil {
		return err
	}
	k.log.Info("connections of a pod are led to its sidecar", "pod", p.Key.String(), "inbound", p.Rules.Inbound)
	return nil
}

// learnCookie of the namespace of this thread.
func (k *Keeper) learnCookie(key resource.Key) error {
	if k.tellCookies == nil {
		return nil
	}
	cookie, err := k.kernel.cookie()
	if err != nil {
		return fmt.Errorf("the network namespace has no cookie: mode ebpf with sidecars needs Linux 5.14: %w", err)
	}
	if k.cookies[key] != cookie {
		k.cookies[key] = cookie
		k.tellCookies(k.allCookies())
	}
	return nil
}

// forgetCookies of Pods that are not there any more.
func (k *Keeper) forgetCookies(there map[resource.Key]Pod) {
	n := len(k.cookies)
	maps.DeleteFunc(k.cookies, func(key resource.Key, _ uint64) bool { _, stays := there[key]; return !stays })
	if len(k.cookies) != n {
		k.tellCookies(k.allCookies())
	}
}

func (k *Keeper) allCookies() map[uint64]struct{} {
	out := make(map[uint64]struct{}, len(k.cookies))
	for _, c := range k.cookies {
		out[c] = struct{}{}
	}
	return out
}

// tell once what a Pod waits for.
func (k *Keeper) tell(left map[resource.Key]Pod, why map[resource.Key]error, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.since {
		if _, waits := left[key]; !waits {
			k.forget(key)
		}
	}
	for key, p := range left {
		if _, current := k.pods[key]; !current {
			continue
		}
		if k.since[key].IsZero() {
			k.since[key] = now
		}
		text := fmt.Sprintf("no network namespace in %s has one of its addresses %v: is it the folder of this node's container runtime (chart: agent.netnsDir)?", k.dir, p.Addresses)
		if err := why[key]; err != nil {
			text = err.Error()
		}
		if now.Sub(k.since[key]) >= patience && k.said[key] != text {
			k.said[key] = text
			k.note()
			k.log.Warn("a pod waits for its connections to be led to its sidecar", "pod", key.String(), "reason", text)
		}
	}
}
