package registry

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// ErrNotFound: there is no such instance.
var ErrNotFound = errors.New("no such instance")

// ErrEnded: the session has ended, so the client has to begin a new one.
var ErrEnded = errors.New("the session has ended")

// ForbiddenError is returned to a user who may not change an instance, or write in a namespace.
type ForbiddenError struct{ User, What string }

func (e *ForbiddenError) Error() string { return fmt.Sprintf("%s may not %s", e.User, e.What) }

// User of a registry. The zero value is an anonymous one.
type User struct {
	// Name as in the API; empty: anonymous.
	Name string
	// Admin may change what others registered.
	Admin bool
	// Namespaces that it may write in; nil: all.
	Namespaces []string
	// ReadOnly may write nothing.
	ReadOnly bool
	// Local: its client is on the machine of the control plane, so it may register loopback addresses.
	Local bool
	// ServiceAccount of what it registers; empty: the default one.
	ServiceAccount string
	// Bounds, if it is not nil, says what is wrong with an object that it registers: labels or
	// addresses that its credential does not name.
	Bounds func(*meshv1alpha1.Dataplane) error
}

func (u User) String() string {
	if u.Name == "" {
		return "an anonymous client"
	}
	return u.Name
}

// May reports whether the user may write in a namespace.
func (u User) May(namespace string) bool { return !u.ReadOnly && u.MayRead(namespace) }

// MayRead reports whether the user may read the configuration of a namespace. Services are for
// everybody to find, as they are by DNS.
func (u User) MayRead(namespace string) bool {
	return u.Namespaces == nil || slices.Contains(u.Namespaces, namespace)
}

// MayReadEntry reports whether the user may read an entry of the configuration. Who may only read does not
// read Secrets, as by the API.
func (u User) MayReadEntry(key ConfigKey) bool {
	return u.MayRead(key.Namespace) && !(u.ReadOnly && key.Secret())
}

// RegistrarConfig configures a Registrar. Client and Catalog are required.
type RegistrarConfig struct {
	// Client to write with. It must be able to write an object with its status
	// (resource.WithStatus), or both are written one after the other.
	Client  resource.Client
	Catalog *catalog.Catalog
	// MachineID of this machine (package machine), for loopback addresses; empty: they are refused.
	MachineID string
	// Owner is the name of this instance of the control plane, the same after a restart.
	Owner string
	// Running are the owners that run now. Nil: this one is alone.
	Running func() map[string]bool
	// Leads reports whether this instance removes what owners left that are gone. Nil: it does.
	Leads func() bool
	// Reserved are namespaces in which nothing is registered, whoever asks.
	Reserved []string
	// Grace is how long ephemeral instances stay whose owner was restarted or is gone, until
	// their clients have come back; 0: DefaultGrace.
	Grace  time.Duration
	Logger *slog.Logger // nil: discard
}

// DefaultGrace of RegistrarConfig: as long as the lease of a Eureka client, the slowest to come
// back.
const DefaultGrace = 90 * time.Second

// Registrar writes instances, and ends the ephemeral ones whose sessions have ended. Make it
// with NewRegistrar. Safe for concurrent use.
//
// Sessions are in memory. The store has the owner of each ephemeral instance alone, so the
// renewal of a session, and the return of a client after a restart, write nothing.
type Registrar struct {
	config RegistrarConfig
	log    *slog.Logger
	locks  [256]sync.Mutex // by key, for its writes
	seed   maphash.Seed

	mu sync.Mutex
	// claims are the sessions that keep ephemeral instances alive.
	claims map[resource.Key]*Session
	// removed are objects that this Registrar deleted, and that the tables may still show.
	removed map[types.UID]time.Time
	// ended has the instances whose session has ended, each to be deleted; pending are those of
	// them that nobody works on yet.
	ended   map[resource.Key]struct{}
	pending []resource.Key
	wake    chan struct{} // holds a token while pending has something
	// sessions is the number of open ones, by protocol.
	sessions map[Protocol]int
	// offers of copies, the newest last.
	offers map[resource.Key][]offer
	// ending are called before instances of a protocol are deleted whose session has ended.
	ending map[Protocol]func(context.Context, *Instance) (bool, error)
}

// NewRegistrar makes one; Run has to run beside it.
func NewRegistrar(c RegistrarConfig) *Registrar {
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	if c.Running == nil {
		c.Running = func() map[string]bool { return nil }
	}
	if c.Leads == nil {
		c.Leads = func() bool { return true }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Registrar{
		config: c, log: c.Logger, seed: maphash.MakeSeed(), claims: map[resource.Key]*Session{}, removed: map[types.UID]time.Time{},
		ended: map[resource.Key]struct{}{}, wake: make(chan struct{}, 1), sessions: map[Protocol]int{},
		offers: map[resource.Key][]offer{}, ending: map[Protocol]func(context.Context, *Instance) (bool, error){},
	}
}

// BeforeEnd has f called before an instance of a protocol is deleted whose session has ended, here or with its owner: what a
// protocol remembers of the session is to be durable first. f returns whether that is so, as then the instance is read again; after an error it is called again. It is
// called by several goroutines. BeforeEnd is called before servers run.
func (r *Registrar) BeforeEnd(p Protocol, f func(context.Context, *Instance) (bool, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending[p] = f
}

// OwnerOf an ephemeral instance, as far as the tables show; empty: there is none.
func (r *Registrar) OwnerOf(key resource.Key) string { return ownerOf(r.lookup(key)) }

// Owner is the name of this instance of the control plane.
func (r *Registrar) Owner() string { return r.config.Owner }

// Grace in which the clients of an owner that was restarted, or is gone, may come back.
func (r *Registrar) Grace() time.Duration { return r.config.Grace }

// MayEnd reports whether this instance of the control plane ends what an owner left: if it is the owner, or if it leads, and the
// owner does not run.
func (r *Registrar) MayEnd(owner string) bool {
	return owner == r.config.Owner || r.config.Leads() && !r.config.Running()[owner]
}

// Leads reports whether this instance of the control plane does what one of them does for all.
func (r *Registrar) Leads() bool { return r.config.Leads() }

// Here reports whether the loopback address of an instance is one of this machine.
func (r *Registrar) Here(key resource.Key) bool {
	d, ok := r.config.Catalog.Snapshot().Dataplanes.Get(key)
	return ok && r.config.MachineID != "" && d.Annotations[meshv1alpha1.AnnotationMachineID] == r.config.MachineID
}

func (r *Registrar) endLocked(key resource.Key) {
	r.ended[key] = struct{}{}
	r.pending = append(r.pending, key)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Claimed reports whether a session of this instance of the control plane keeps an instance alive.
func (r *Registrar) Claimed(key resource.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.claims[key] != nil
}

// Put writes an instance that no session keeps alive.
func (r *Registrar) Put(ctx context.Context, in *Instance, user User) error {
	if in.Ephemeral {
		return fmt.Errorf("register an instance of %s: an ephemeral one needs a session", in.Service)
	}
	return r.put(ctx, in, user, nil)
}

func (r *Registrar) lock(key resource.Key) func() {
	m := &r.locks[maphash.Comparable(r.seed, key)%uint64(len(r.locks))]
	m.Lock()
	return m.Unlock
}

// attempts of a write that others are in the way of.
const attempts = 5

// put writes an instance, for a session that claims it, or for none.
func (r *Registrar) put(ctx context.Context, in *Instance, user User, by *Session) error {
	if by != nil && by.ended() {
		return ErrEnded
	}
	if !user.May(in.Service.Namespace) {
		return &ForbiddenError{user.String(), "register instances in namespace " + in.Service.Namespace}
	}
	if slices.Contains(r.config.Reserved, in.Service.Namespace) {
		return &ForbiddenError{user.String(), "register instances in namespace " + in.Service.Namespace + ", which is the cluster's own"}
	}
	want, err := in.dataplane(r.config.Owner, user.Name, time.Now())
	if err != nil {
		return err
	}
	want.Spec.ServiceAccount = user.ServiceAccount
	if in.Address.IsLoopback() {
		if !user.Local || r.config.MachineID == "" {
			return &ForbiddenError{user.String(), fmt.Sprintf("register loopback address %s from another machine than the control plane's: "+
				"register an address by which others reach it", in.Address)}
		}
		want.Annotations[meshv1alpha1.AnnotationMachineID] = r.config.MachineID
	}
	if user.Bounds != nil {
		if err := user.Bounds(want); err != nil {
			return &ForbiddenError{user.String(), "register this instance of " + in.Service.String() + ": " + err.Error()}
		}
	}
	key := resource.KeyOf(want)
	defer r.lock(key)()
	switch {
	case by == nil:
	case in.MirroredFrom() == "":
		by.dropOffer(key)
	default:
		if err := by.noteOffer(key, want); err != nil {
			return err
		}
	}
	if err := r.store(ctx, key, want, user, false); err != nil {
		return fmt.Errorf("register an instance of %s at %s: %w", in.Service, in.identity(), err)
	}
	if by != nil {
		return by.claim(key)
	}
	return nil
}

// store what is registered, under the lock of its key. A copy replaces an instance only if that is over.
func (r *Registrar) store(ctx context.Context, key resource.Key, want *meshv1alpha1.Dataplane, user User, over bool) error {
	copied := isCopy(want)
	var have *meshv1alpha1.Dataplane
	var err error
	if !copied {
		have = r.lookup(key)
	} else if have, err = r.get(ctx, key); err != nil { // the tables may not show the instance itself yet
		return err
	}
	for range attempts {
		var err error
		if have == nil {
			if _, err = r.write(ctx, r.config.Client.Create, want); !apierrors.IsAlreadyExists(err) {
				return err
			}
		} else {
			if copied && !over && Registered(have) && !isCopy(have) {
				return ErrOriginal
			}
			next, changed, err := merge(have, want, user)
			if err != nil || !changed {
				return err
			}
			if _, err = r.write(ctx, r.config.Client.Update, next); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return err
			}
		}
		if have, err = r.get(ctx, key); err != nil {
			return err
		}
	}
	return fmt.Errorf("others changed it %d times meanwhile", attempts)
}

// write an object with its status, in one transaction where the client can.
func (r *Registrar) write(ctx context.Context, by func(context.Context, *resource.Descriptor, resource.Object) (resource.Object, error),
	d *meshv1alpha1.Dataplane,
) (resource.Object, error) {
	out, err := by(resource.WithStatus(ctx), kind.Dataplane, d)
	if !errors.Is(err, resource.ErrStatusApart) {
		return out, err
	}
	if out, err = by(ctx, kind.Dataplane, d); err != nil {
		return nil, err
	}
	got := out.(*meshv1alpha1.Dataplane)
	got.Status = d.Status
	return r.config.Client.UpdateStatus(ctx, kind.Dataplane, got)
}

// lookup is what the tables have of an object, unless this Registrar knows better.
func (r *Registrar) lookup(key resource.Key) *meshv1alpha1.Dataplane {
	d, ok := r.config.Catalog.Snapshot().Dataplanes.Get(key)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, gone := r.removed[d.UID]; gone {
		return nil
	}
	return d
}

// get reads an object from the store; nil: there is none.
func (r *Registrar) get(ctx context.Context, key resource.Key) (*meshv1alpha1.Dataplane, error) {
	out, err := r.config.Client.Get(ctx, kind.Dataplane, key)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return out.(*meshv1alpha1.Dataplane), nil
}

// merge is have with what want registers. What an operator has set stays, unless the client
// registers something else than before.
func merge(have, want *meshv1alpha1.Dataplane, user User) (next *meshv1alpha1.Dataplane, changed bool, err error) {
	if err := mayChange(have, user); err != nil {
		return nil, false, err
	}
	before, after := weightsOf(have), weightsOf(want)
	next = have.DeepCopy()
	next.Labels = relabelled(have.Labels, want.Labels)
	delete(next.Annotations, AnnotationOwner)
	maps.Copy(next.Annotations, want.Annotations)
	weight, enabled := have.Spec.Weight, have.Spec.Enabled
	if before.Weight != after.Weight {
		weight = want.Spec.Weight
	}
	if before.Enabled != after.Enabled {
		enabled = want.Spec.Enabled
	}
	next.Spec.Weight, next.Spec.Enabled = weight, enabled
	next.Spec.NodeName, next.Spec.Addresses, next.Spec.Ports = want.Spec.NodeName, want.Spec.Addresses, want.Spec.Ports
	next.Spec.ServiceAccount = want.Spec.ServiceAccount
	setReady(next, want.Status.Conditions[0])
	return next, !reflect.DeepEqual(next, have), nil
}

// relabelled are the labels of an object with those that follow from its instance; others stay.
func relabelled(have, want map[string]string) map[string]string {
	out := maps.Clone(want)
	for key, value := range have {
		if key != LabelService && key != LabelProtocol && key != LabelMirrored && !strings.HasPrefix(key, LabelMetadata) && out[key] == "" {
			out[key] = value
		}
	}
	return out
}

func weightsOf(d *meshv1alpha1.Dataplane) record {
	in, err := parseRecord(d)
	if err != nil {
		return record{}
	}
	return in
}

// mayChange refuses those who did not register it.
func mayChange(d *meshv1alpha1.Dataplane, user User) error {
	by := d.Annotations[AnnotationRegisteredBy]
	switch {
	case user.ReadOnly, user.Namespaces != nil && !user.May(d.Namespace):
		return &ForbiddenError{user.String(), "write in namespace " + d.Namespace}
	case !Registered(d):
		return &ForbiddenError{user.String(), "change dataplane " + resource.KeyOf(d).String() + ", which no registry client registered"}
	case user.Admin, by == "", by == user.Name:
		return nil
	case isCopy(d): // its own client comes by another user than who copied it
		return nil
	}
	return &ForbiddenError{user.String(), "change an instance that " + by + " registered"}
}

// Remove deletes an instance. Errors: ErrNotFound, *ForbiddenError, and those of resource.Client.
func (r *Registrar) Remove(ctx context.Context, key resource.Key, user User) error {
	defer r.lock(key)()
	have := r.lookup(key)
	if have == nil {
		var err error
		if have, err = r.get(ctx, key); err != nil {
			return fmt.Errorf("remove instance %s: %w", key, err)
		}
	}
	if have == nil || !Registered(have) {
		return ErrNotFound
	}
	if err := mayChange(have, user); err != nil {
		return err
	}
	if isCopy(have) {
		return r.remove(ctx, have)
	}
	return r.replaceOrRemove(ctx, have)
}

// remove an instance as it was read: one that another instance of the control plane has taken over meanwhile, because its client came
// there, stays.
func (r *Registrar) remove(ctx context.Context, d *meshv1alpha1.Dataplane) error {
	key, owner := resource.KeyOf(d), d.Annotations[AnnotationOwner]
	for now := d; ; {
		err := r.config.Client.Delete(ctx, kind.Dataplane, key, resource.Preconditions{UID: now.UID, ResourceVersion: now.ResourceVersion, Now: true})
		if apierrors.IsConflict(err) {
			now, err = r.get(ctx, key)
			if err == nil && now != nil && now.UID == d.UID {
				if now.Annotations[AnnotationOwner] != owner {
					return nil
				}
				continue // something else changed, as its health
			}
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove instance %s: %w", key, err)
		}
		break
	}
	r.mu.Lock()
	r.removed[d.UID] = time.Now()
	claim := r.claims[key]
	delete(r.claims, key)
	r.mu.Unlock()
	if claim != nil { // the client of another session removed it
		claim.forget(key)
	}
	return nil
}

// Edit changes an instance that is registered, as an operator or its client does at run time:
// weight, enabled, health, metadata, detail. What identifies it stays. Errors are those of Remove.
func (r *Registrar) Edit(ctx context.Context, key resource.Key, user User, change func(*Instance) error) error {
	defer r.lock(key)()
	have := r.lookup(key)
	for range attempts {
		if have == nil {
			var err error
			if have, err = r.get(ctx, key); err != nil {
				return fmt.Errorf("change instance %s: %w", key, err)
			}
		}
		if have == nil || !Registered(have) {
			return ErrNotFound
		}
		if err := mayChange(have, user); err != nil {
			return err
		}
		next, changed, err := edited(have, change)
		if err != nil || !changed {
			return err
		}
		_, err = r.write(ctx, r.config.Client.Update, next)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		have = nil
	}
	return fmt.Errorf("change instance %s: others changed it %d times meanwhile", key, attempts)
}

func edited(have *meshv1alpha1.Dataplane, change func(*Instance) error) (next *meshv1alpha1.Dataplane, changed bool, err error) {
	in, err := Parse(have)
	if err != nil {
		return nil, false, err
	}
	if err := change(in); err != nil {
		return nil, false, err
	}
	was := weightsOf(have)
	want, err := in.dataplane(have.Annotations[AnnotationOwner], have.Annotations[AnnotationRegisteredBy], time.Now())
	if err != nil {
		return nil, false, err
	}
	if in.Key() != resource.KeyOf(have) {
		return nil, false, fmt.Errorf("change instance %s: what identifies it cannot be changed", resource.KeyOf(have))
	}
	next = have.DeepCopy()
	next.Labels, next.Spec.Weight, next.Spec.Enabled, next.Spec.Ports = relabelled(have.Labels, want.Labels), want.Spec.Weight, want.Spec.Enabled, want.Spec.Ports
	setReady(next, want.Status.Conditions[0])
	// What the client registered stays known, so that it does not undo the change by registering
	// again.
	if next.Annotations[AnnotationInstance], err = in.text(was.Weight, was.Enabled); err != nil {
		return nil, false, err
	}
	return next, !reflect.DeepEqual(next, have), nil
}

// Run ends the instances whose sessions have ended, and those that an owner left that does not
// come back, until ctx ends. It must be called once.
func (r *Registrar) Run(ctx context.Context) error {
	if err := r.config.Catalog.WaitListed(ctx); err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	var workers sync.WaitGroup
	queue := make(chan resource.Key)
	for range removers {
		workers.Go(func() {
			for key := range queue {
				r.removeEnded(ctx, key)
			}
		})
	}
	defer workers.Wait()
	defer close(queue)
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	left := newOrphans(r, time.Now())
	sub := r.config.Catalog.Subscribe(catalog.Dataplanes)
	defer sub.Close()
	deltas := make(chan catalog.Delta)
	workers.Go(func() {
		for {
			d, err := sub.Next(ctx)
			if err != nil {
				return
			}
			select {
			case deltas <- d:
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case d := <-deltas:
			left.apply(&d)
			continue
		case now := <-ticker.C:
			left.sweep(now)
			r.forgetRemoved(now)
		}
		for _, key := range r.takeEnded() {
			select {
			case queue <- key:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

const (
	// removers delete at the same time, as commits are grouped.
	removers = 16
	// sweepEvery is how often owners that are gone are looked for.
	sweepEvery = time.Second
	// keepRemoved is how long the tables may show what was deleted.
	keepRemoved = time.Minute
)

func (r *Registrar) forgetRemoved(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, at := range r.removed {
		if now.Sub(at) > keepRemoved {
			delete(r.removed, uid)
		}
	}
}

func (r *Registrar) takeEnded() []resource.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.pending
	r.pending = nil
	return out
}

// removeEnded deletes an instance whose session has ended, until it succeeds, or a session
// claims it.
func (r *Registrar) removeEnded(ctx context.Context, key resource.Key) {
	retry := backoff.Backoff{Policy: backoff.Policy{First: 50 * time.Millisecond, Last: 5 * time.Second}}
	for ctx.Err() == nil {
		err := r.removeUnclaimed(ctx, key)
		if err == nil {
			return
		}
		r.log.Warn("an instance whose client is gone is not removed yet; it is tried again", "instance", key, "error", err)
		backoff.Sleep(ctx, retry.Next())
	}
}

func (r *Registrar) removeUnclaimed(ctx context.Context, key resource.Key) error {
	defer r.lock(key)()
	r.mu.Lock()
	_, ended := r.ended[key]
	r.mu.Unlock()
	if !ended {
		return nil
	}
	have, err := r.get(ctx, key)
	if err == nil && r.endsOwner(have) {
		var wrote bool
		if wrote, err = r.beforeEnd(ctx, have); wrote {
			have, err = r.get(ctx, key) // its client may have come to another instance of the control plane before
		}
	}
	if err != nil {
		return err
	}
	if r.endsOwner(have) {
		if err := r.replaceOrRemove(ctx, have); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ended, key)
	return nil
}

// endsOwner reports whether this Registrar ends an instance whose session has ended; nil: there is none.
func (r *Registrar) endsOwner(d *meshv1alpha1.Dataplane) bool {
	return d != nil && d.Annotations[AnnotationOwner] != "" && r.mayEnd(d.Annotations[AnnotationOwner])
}

// beforeEnd calls what a protocol wants to be called.
func (r *Registrar) beforeEnd(ctx context.Context, d *meshv1alpha1.Dataplane) (wrote bool, err error) {
	r.mu.Lock()
	f := r.ending[Protocol(d.Labels[LabelProtocol])]
	r.mu.Unlock()
	if f == nil {
		return false, nil
	}
	in, err := Parse(d)
	if err != nil {
		return false, nil //nolint:nilerr // it is no instance of a session that could be known
	}
	return f(ctx, in)
}

// mayEnd reports whether this Registrar ends the instances of an owner: its own, and those of
// owners that do not run.
func (r *Registrar) mayEnd(owner string) bool {
	return owner == r.config.Owner || !r.config.Running()[owner]
}

func revisionOf(d *meshv1alpha1.Dataplane) uint64 {
	n, _ := strconv.ParseUint(d.ResourceVersion, 10, 64) // 0 where versions are not numbers
	return n
}
