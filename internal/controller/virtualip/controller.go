package virtualip

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/addresspool"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Keep is how long the addresses of a name are kept after its service has gone. Clients may
// have kept them; they never lead to another service meanwhile.
const Keep = time.Hour

// Config of a Controller. Client and Catalog are required.
type Config struct {
	Client  resource.Client
	Catalog *catalog.Catalog
	// Ranges of the addresses, at most one per family, where none are stored yet; from then
	// on those of the ServiceCIDR RangeName hold. Empty: there are no names.
	Ranges []netip.Prefix
	// Window as in loop.Config.
	Window time.Duration
	Clock  clock.WithTicker // nil: the real one
	Logger *slog.Logger     // nil: discard
}

// Controller keeps the VirtualIPs of a zone. Make it with New.
type Controller struct {
	Config
	loop *loop.Loop
	pool *addresspool.Pool

	mu sync.Mutex
	// claims by service name, and the services that claim a name.
	claims    map[resource.Key][]Claim
	claimants map[resource.Key]map[resource.Key]Claim
}

// New makes the controller; Run starts it.
func New(c Config) *Controller {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	v := &Controller{Config: c, claims: map[resource.Key][]Claim{}, claimants: map[resource.Key]map[resource.Key]Claim{}}
	v.loop = loop.New(loop.Config{What: "name", Sync: v.sync, Window: c.Window, Clock: c.Clock, Logger: c.Logger})
	return v
}

// startRetry is the pause after the objects could not be read at the start.
const startRetry = time.Second

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	for {
		err := c.start(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		c.Logger.Warn("virtual IPs of names not read; it is tried again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-c.Clock.After(startRetry):
		}
	}
	return c.loop.Run(ctx, c.Catalog, c.dispatch, catalog.Services, catalog.Namespaces, catalog.VirtualIPs)
}

// start learns the ranges and which addresses are taken. It reads the store rather than the
// tables, which may not show yet what the leader before wrote last.
func (c *Controller) start(ctx context.Context) error {
	ranges, err := c.ranges(ctx)
	if err != nil {
		return err
	}
	list, _, err := c.Client.List(ctx, kind.VirtualIP, resource.ListOptions{})
	if err != nil {
		return fmt.Errorf("list virtual IPs: %w", err)
	}
	// The oldest keeps an address that two have.
	slices.SortFunc(list, func(a, b resource.Object) int {
		return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
	})
	c.pool = newPool(ranges)
	for _, o := range list {
		for _, addr := range addressesOf(o.(*meshv1alpha1.VirtualIP)) {
			c.pool.Take(addr, o.GetName())
		}
	}
	return nil
}

// RangeName is the ServiceCIDR with the ranges of the addresses. Agents follow all
// ServiceCIDRs; Services get no addresses of this one, which has the label LabelVirtualIPs.
const RangeName = "proxima-mesh"

// ranges are those that are stored. At the first start they are stored.
func (c *Controller) ranges(ctx context.Context) ([]netip.Prefix, error) {
	object, err := c.Client.Get(ctx, kind.ServiceCIDR, resource.Key{Name: RangeName})
	if apierrors.IsNotFound(err) {
		cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{
			Name: RangeName, Labels: map[string]string{meshv1alpha1.LabelVirtualIPs: "names"},
		}}
		for _, p := range c.Ranges {
			cidr.Spec.CIDRs = append(cidr.Spec.CIDRs, p.String())
		}
		object, err = c.Client.Create(ctx, kind.ServiceCIDR, cidr)
	}
	if err != nil {
		return nil, fmt.Errorf("range of virtual IPs: %w", err)
	}
	var out []netip.Prefix
	for _, text := range object.(*networkingv1.ServiceCIDR).Spec.CIDRs {
		p, err := netip.ParsePrefix(text)
		if err == nil {
			err = CheckRange(p)
		}
		if err != nil {
			return nil, fmt.Errorf("servicecidr %s: %w", RangeName, err)
		}
		out = append(out, p)
	}
	if !slices.Equal(out, c.Ranges) {
		c.Logger.Info("the ranges of virtual IPs are those of the first start", "ranges", out, "given", c.Ranges,
			"hint", "to change them, delete servicecidr "+RangeName+" and restart")
	}
	return out, nil
}

// dispatch queues the names that a delta concerns.
func (c *Controller) dispatch(d catalog.Delta) {
	changed := map[resource.Key]struct{}{}
	for _, change := range d.Services {
		for _, s := range []*corev1.Service{change.Old, change.New} {
			if s != nil {
				changed[serviceName(s)], changed[resource.KeyOf(s)] = struct{}{}, struct{}{}
			}
		}
	}
	if len(d.Namespaces) > 0 {
		namespaces := map[string]bool{}
		for _, change := range d.Namespaces {
			namespaces[change.Key.Name] = true
		}
		for key, s := range d.After.Services.All() {
			if namespaces[key.Namespace] {
				changed[serviceName(s)] = struct{}{}
			}
		}
	}
	for key := range changed {
		c.setClaims(key, claimsOf(d.After, key))
	}
	for _, change := range d.VirtualIPs {
		for _, v := range []*meshv1alpha1.VirtualIP{change.Old, change.New} {
			if v != nil {
				c.loop.Add(keyOf(v))
			}
		}
		c.follow(change)
	}
}

// follow keeps the pool in step with objects that others deleted.
func (c *Controller) follow(change catalog.Change[*meshv1alpha1.VirtualIP]) {
	if change.Old == nil || change.New != nil {
		return
	}
	for _, addr := range addressesOf(change.Old) {
		c.pool.Free(addr, change.Old.Name)
	}
}

// setClaims replaces the claims of a service name, and queues the names they concern.
func (c *Controller) setClaims(key resource.Key, now []Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.claims[key]
	if slices.Equal(was, now) {
		return
	}
	for _, claim := range was {
		name := nameKey(claim.Mesh, claim.Hostname)
		if delete(c.claimants[name], key); len(c.claimants[name]) == 0 {
			delete(c.claimants, name)
		}
		c.loop.Add(name)
	}
	for _, claim := range now {
		name := nameKey(claim.Mesh, claim.Hostname)
		if c.claimants[name] == nil {
			c.claimants[name] = map[resource.Key]Claim{}
		}
		c.claimants[name][key] = claim
		c.loop.Add(name)
	}
	if len(now) == 0 {
		delete(c.claims, key)
	} else {
		c.claims[key] = now
	}
}

// claim of a name; nil: no service claims it.
func (c *Controller) claim(name resource.Key) *Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *Claim
	for _, claim := range c.claimants[name] {
		if first == nil || claim.before(first) {
			first = &claim
		}
	}
	return first
}

// sync brings the VirtualIP of one name to what it should be.
func (c *Controller) sync(ctx context.Context, name resource.Key) error {
	object := meshname.ObjectName(name.Namespace, name.Name)
	have, _ := c.Catalog.Snapshot().VirtualIPs.Get(catalog.Key{Name: object})
	claim := c.claim(name)
	switch {
	case claim == nil && have == nil:
		c.loop.Forget(name)
		return nil
	case claim == nil:
		return c.retire(ctx, name, have)
	case have == nil:
		return c.create(ctx, name, object, claim)
	}
	next := have.DeepCopy()
	err := c.fill(next, claim)
	if err == nil && !equality.Semantic.DeepEqual(have.Spec, next.Spec) {
		c.loop.Writes(name)
		_, err = c.Client.Update(ctx, kind.VirtualIP, next)
	}
	return outcome("update", object, err)
}

func (c *Controller) create(ctx context.Context, name resource.Key, object string, claim *Claim) error {
	v := &meshv1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: object}}
	err := c.fill(v, claim)
	if err == nil && len(v.Spec.Addresses) == 0 {
		return nil // there is no range of the Service's families
	}
	if err == nil {
		c.loop.Writes(name)
		_, err = c.Client.Create(ctx, kind.VirtualIP, v)
	}
	return outcome("create", object, err)
}

// fill sets what a claim asks for. Addresses stay, where they are the object's own. What was
// allocated stays the object's if it cannot be written: nobody knows whether it was.
func (c *Controller) fill(v *meshv1alpha1.VirtualIP, claim *Claim) error {
	var addresses []netip.Addr
	for _, v4 := range []bool{true, false} {
		if !c.pool.Has(v4) {
			continue
		}
		own := slices.DeleteFunc(addressesOf(v), func(a netip.Addr) bool { return a.Is4() != v4 || !c.pool.Take(a, v.Name) })
		switch wanted := claim.V4 && v4 || claim.V6 && !v4; {
		case len(own) > 0: // also of a family that the Service lost: it may come back
			addresses = append(addresses, own[0])
		case wanted:
			addr, err := c.pool.Allocate(v4, v.Name)
			if err != nil {
				return fmt.Errorf("virtual IP of %s.%s: %w in the ranges of virtual IPs (--mesh-cidr)", claim.Hostname, meshname.Domain, err)
			}
			addresses = append(addresses, addr)
		}
	}
	v.Spec = meshv1alpha1.VirtualIPSpec{
		Mesh: claim.Mesh, Hostname: claim.Hostname, Namespace: claim.Service.Namespace, Service: claim.Service.Name, Port: claim.Port,
	}
	for _, a := range addresses {
		v.Spec.Addresses = append(v.Spec.Addresses, a.String())
	}
	return nil
}

// outcome of a write: where the tables are behind, the next delta brings the name back.
func outcome(verb, object string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return loop.ErrStale
	}
	return fmt.Errorf("%s virtual IP %s: %w", verb, object, err)
}

// retire keeps a name without a service for a time, then deletes it.
func (c *Controller) retire(ctx context.Context, name resource.Key, have *meshv1alpha1.VirtualIP) error {
	now := c.Clock.Now()
	if have.Spec.UnusedSince == nil {
		next := have.DeepCopy()
		next.Spec.UnusedSince = &metav1.Time{Time: now.Truncate(time.Second)}
		c.loop.Writes(name)
		_, err := c.Client.Update(ctx, kind.VirtualIP, next)
		return outcome("update", have.Name, err)
	}
	if left := Keep - now.Sub(have.Spec.UnusedSince.Time); left > 0 {
		c.loop.AddAfter(name, left)
		return nil
	}
	err := c.Client.Delete(ctx, kind.VirtualIP, resource.KeyOf(have),
		resource.Preconditions{UID: have.UID, ResourceVersion: have.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return outcome("delete", have.Name, err)
}

func addressesOf(v *meshv1alpha1.VirtualIP) []netip.Addr {
	var out []netip.Addr
	for _, text := range v.Spec.Addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}
