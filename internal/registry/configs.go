package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// ConfigKey names an entry of the configuration.
type ConfigKey struct {
	// Namespace of Kubernetes.
	Namespace string
	Group     string
	DataID    string
}

// String is NAMESPACE/GROUP/DATAID.
func (k ConfigKey) String() string { return k.Namespace + "/" + k.Group + "/" + k.DataID }

// Compare orders entries by namespace, group and name.
func (k ConfigKey) Compare(other ConfigKey) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Group, other.Group), cmp.Compare(k.DataID, other.DataID))
}

// objectName of an entry that a registry client writes. Users name theirs as they like.
func (k ConfigKey) objectName() string {
	sum := sha256.Sum256([]byte(k.Group + "\x00" + k.DataID))
	return readable(k.DataID) + "-" + hex.EncodeToString(sum[:6])
}

func keyOfConfig(c *meshv1alpha1.RegistryConfig) ConfigKey {
	return ConfigKey{c.Namespace, cmp.Or(c.Spec.Group, meshv1alpha1.DefaultRegistryGroup), c.Spec.DataID}
}

// ErrConflict: the entry is another one than the client compares with.
var ErrConflict = errors.New("the entry was changed meanwhile")

// Configs has the configuration of registries: RegistryConfig objects, and Secrets (ConfigKey.Secret), by
// the names that clients have for them. Make it with NewConfigs. Safe for concurrent use.
type Configs struct {
	client  resource.Client
	catalog *catalog.Catalog
	log     *slog.Logger

	mu       sync.Mutex
	snapshot *catalog.Snapshot
	entries  map[ConfigKey]map[resource.Key]*meshv1alpha1.RegistryConfig
	// followers by entry; changed is closed when the tables are newer.
	followers map[ConfigKey]map[*ConfigFollower]struct{}
	all       map[*ConfigChanges]struct{}
	changed   chan struct{}
	ready     chan struct{}
	// secrets are the entries that are Secrets, by the names of those.
	secrets       map[resource.Key]*meshv1alpha1.RegistryConfig
	secretsReady  chan struct{}
	secretsListed sync.Once
	// noSecrets: entries that would be Secrets are refused.
	noSecrets bool
}

// NewConfigs makes it; Run fills it.
func NewConfigs(client resource.Client, c *catalog.Catalog, log *slog.Logger) *Configs {
	return &Configs{
		client: client, catalog: c, log: log, snapshot: &catalog.Snapshot{}, entries: map[ConfigKey]map[resource.Key]*meshv1alpha1.RegistryConfig{},
		followers: map[ConfigKey]map[*ConfigFollower]struct{}{}, all: map[*ConfigChanges]struct{}{}, changed: make(chan struct{}),
		ready: make(chan struct{}), secrets: map[resource.Key]*meshv1alpha1.RegistryConfig{}, secretsReady: make(chan struct{}),
	}
}

// WithoutSecrets lets it neither read nor write entries that are Secrets (ConfigKey.Secret): to write one is refused. It is
// called before Run, where the control plane may not read the Secrets of all namespaces, and returns c.
func (c *Configs) WithoutSecrets() *Configs {
	c.noSecrets = true
	c.secretsListed.Do(func() { close(c.secretsReady) })
	return c
}

// Run follows the tables until ctx ends, and returns nil then. It must be called once.
func (c *Configs) Run(ctx context.Context) error {
	sub := c.catalog.Subscribe(catalog.RegistryConfigs)
	defer sub.Close()
	ctx, stop := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	if !c.noSecrets {
		following.Go(func() { _ = c.followSecrets(ctx) }) // it ends with ctx
	}
	for first := true; ; first = false {
		d, err := sub.Next(ctx)
		switch {
		case errors.Is(err, catalog.ErrClosed), ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		c.apply(&d)
		if first {
			following.Go(func() {
				select {
				case <-c.secretsReady:
					close(c.ready)
				case <-ctx.Done():
				}
			})
		}
	}
}

// Ready is closed when the entries are known for the first time. Before, an entry may seem to be missing
// that is not.
func (c *Configs) Ready() <-chan struct{} { return c.ready }

func (c *Configs) apply(d *catalog.Delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshot = d.After
	for _, change := range d.RegistryConfigs {
		c.setEntry(change.Key, change.Old, summed(change.New))
	}
	c.signalChanged()
}

// summed is an object whose status has the MD5 of its content: where another API server stores it, that does not
// follow from the content.
func summed(o *meshv1alpha1.RegistryConfig) *meshv1alpha1.RegistryConfig {
	if o == nil {
		return nil
	}
	sum := kind.ContentMD5(o.Spec.Content)
	if o.Status.MD5 == sum {
		return o
	}
	out := *o
	out.Status.MD5 = sum
	return &out
}

// sameEntry reports whether clients see no difference: what the status of an object says is not theirs.
func sameEntry(before, now *meshv1alpha1.RegistryConfig) bool {
	return before != nil && now != nil && reflect.DeepEqual(before.Spec, now.Spec)
}

// setEntry replaces an object of an entry, by another or by none, and tells followers.
func (c *Configs) setEntry(name resource.Key, before, now *meshv1alpha1.RegistryConfig) {
	touched := map[ConfigKey]struct{}{}
	if before != nil {
		key := keyOfConfig(before)
		if delete(c.entries[key], name); len(c.entries[key]) == 0 {
			delete(c.entries, key)
		}
		touched[key] = struct{}{}
	}
	if now != nil {
		key := keyOfConfig(now)
		if c.entries[key] == nil {
			c.entries[key] = map[resource.Key]*meshv1alpha1.RegistryConfig{}
		}
		c.entries[key][name] = now
		touched[key] = struct{}{}
	}
	if sameEntry(before, now) {
		return
	}
	for key := range touched {
		for f := range c.followers[key] {
			f.notify()
		}
		for a := range c.all {
			a.changed[key] = struct{}{}
			signal(a.ready)
		}
	}
}

func (c *Configs) signalChanged() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Get is an entry; nil: there is none. It must not be changed. Where users have made several objects
// for one entry, the oldest counts.
func (c *Configs) Get(key ConfigKey) *meshv1alpha1.RegistryConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out *meshv1alpha1.RegistryConfig
	for _, o := range c.entries[key] {
		if out == nil || olderConfig(o, out) {
			out = o
		}
	}
	return out
}

func olderConfig(a, b *meshv1alpha1.RegistryConfig) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// List the entries of a namespace that match, in order.
func (c *Configs) List(namespace string, match func(ConfigKey) bool) []ConfigKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []ConfigKey
	for key := range c.entries {
		if key.Namespace == namespace && match(key) {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, ConfigKey.Compare)
	return out
}

// MD5 of an entry, by which clients compare; empty: there is none.
func (c *Configs) MD5(key ConfigKey) string {
	if o := c.Get(key); o != nil {
		return o.Status.MD5
	}
	return ""
}

// Put writes an entry: change is called with what there is, which has no content if it is new, and
// changes it, or refuses. It may be called several times. Put returns when it is durable, and in the
// tables. Errors: those of change, *ForbiddenError, and those of resource.Client.
func (c *Configs) Put(ctx context.Context, user User, key ConfigKey, change func(spec *meshv1alpha1.RegistryConfigSpec, exists bool) error) error {
	return c.PutEncrypted(ctx, user, key, "", change)
}

// PutEncrypted is Put of an entry that is stored as a Secret (ConfigKey.Secret), with the key of its content
// as the client has encrypted it. Other entries have none.
func (c *Configs) PutEncrypted(ctx context.Context, user User, key ConfigKey, dataKey string,
	change func(spec *meshv1alpha1.RegistryConfigSpec, exists bool) error,
) error {
	if !user.May(key.Namespace) {
		return &ForbiddenError{user.String(), "write in namespace " + key.Namespace}
	}
	if c.noSecrets && key.Secret() {
		return &ForbiddenError{user.String(), fmt.Sprintf("write configuration %s: names that begin with %s are Secrets, which this control plane may not read: "+
			"it is one in a Kubernetes cluster", key, kind.SecretDataID)}
	}
	for range attempts {
		out, err := c.put(ctx, key, dataKey, change)
		switch {
		case err == nil:
			return c.await(ctx, key, out)
		case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err):
			return fmt.Errorf("write configuration %s: %w", key, err)
		}
	}
	return fmt.Errorf("write configuration %s: %w", key, ErrConflict)
}

func (c *Configs) put(ctx context.Context, key ConfigKey, dataKey string, change func(*meshv1alpha1.RegistryConfigSpec, bool) error) (resource.Object, error) {
	object := &meshv1alpha1.RegistryConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.objectName()},
		Spec:       meshv1alpha1.RegistryConfigSpec{Group: key.Group, DataID: key.DataID},
	}
	name := resource.KeyOf(object)
	if o := c.Get(key); o != nil {
		name = resource.KeyOf(o)
	}
	got, err := c.client.Get(ctx, key.kind(), name)
	exists := err == nil
	var secret *corev1.Secret
	switch {
	case exists && key.Secret():
		secret = got.(*corev1.Secret)
		if object = configOf(secret); object == nil {
			return nil, fmt.Errorf("secret %s is no entry of the configuration", name)
		}
	case exists:
		object = got.(*meshv1alpha1.RegistryConfig)
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	if keyOfConfig(object) != key {
		return nil, fmt.Errorf("object %s is for entry %s", name, keyOfConfig(object))
	}
	before := object.Spec.DeepCopy()
	if err := change(&object.Spec, exists); err != nil {
		return nil, err
	}
	same := exists && object.Spec.Content == before.Content && object.Spec.Type == before.Type && object.Spec.Description == before.Description &&
		object.Spec.Application == before.Application && slices.Equal(object.Spec.Tags, before.Tags)
	if key.Secret() {
		if same && object.Annotations[AnnotationEncryptedKey] == dataKey {
			return secret, nil
		}
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, AnnotationEncryptedKey, dataKey)
		return c.writeSecret(ctx, object, secret)
	}
	switch {
	case !exists:
		return c.client.Create(ctx, kind.RegistryConfig, object)
	case same:
		return object, nil
	}
	return c.client.Update(ctx, kind.RegistryConfig, object)
}

// kind of the object of an entry.
func (k ConfigKey) kind() *resource.Descriptor {
	if k.Secret() {
		return kind.Secret
	}
	return kind.RegistryConfig
}

// await blocks until the tables show a write, so that its client reads it.
func (c *Configs) await(ctx context.Context, key ConfigKey, o resource.Object) error {
	want, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return nil //nolint:nilerr // versions are no numbers here
	}
	for {
		c.mu.Lock()
		at, changed := c.snapshot.RegistryConfigs.Revision(), c.changed
		if key.Secret() {
			at = 0
			if now := c.secrets[resource.KeyOf(o)]; now != nil {
				at, _ = strconv.ParseUint(now.ResourceVersion, 10, 64) // as above
			}
		}
		c.mu.Unlock()
		if at >= want {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Delete an entry. One that is not there is ErrNotFound.
func (c *Configs) Delete(ctx context.Context, user User, key ConfigKey) error {
	if !user.May(key.Namespace) {
		return &ForbiddenError{user.String(), "write in namespace " + key.Namespace}
	}
	o := c.Get(key)
	if o == nil {
		return ErrNotFound
	}
	err := c.client.Delete(ctx, key.kind(), resource.KeyOf(o), resource.Preconditions{UID: o.UID})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return ErrNotFound
	case err != nil:
		return fmt.Errorf("delete configuration %s: %w", key, err)
	}
	for {
		c.mu.Lock()
		now := c.entries[key][resource.KeyOf(o)]
		changed := c.changed
		c.mu.Unlock()
		if now == nil || now.UID != o.UID { // it may have been written again since
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ConfigFollower is told when an entry has changed.
type ConfigFollower struct {
	configs *Configs
	key     ConfigKey
	notify  func()
}

// Follow an entry, which need not exist: notify is called after each change, until Close. It must
// neither block nor call Configs.
func (c *Configs) Follow(key ConfigKey, notify func()) *ConfigFollower {
	f := &ConfigFollower{configs: c, key: key, notify: notify}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.followers[key] == nil {
		c.followers[key] = map[*ConfigFollower]struct{}{}
	}
	c.followers[key][f] = struct{}{}
	return f
}

// Close ends it. Closing again is no error.
func (f *ConfigFollower) Close() {
	c := f.configs
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.followers[f.key], f); len(c.followers[f.key]) == 0 {
		delete(c.followers, f.key)
	}
}

// ConfigChanges collects which entries have changed, in all namespaces.
type ConfigChanges struct {
	configs *Configs
	ready   chan struct{}
	changed map[ConfigKey]struct{} // of configs.mu
}

// FollowAll is told of every change of an entry; at first of all that there are.
func (c *Configs) FollowAll() *ConfigChanges {
	a := &ConfigChanges{configs: c, ready: make(chan struct{}, 1), changed: map[ConfigKey]struct{}{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[a] = struct{}{}
	for key := range c.entries {
		a.changed[key] = struct{}{}
	}
	a.ready <- struct{}{}
	return a
}

// Ready has a value when there is something to take.
func (a *ConfigChanges) Ready() <-chan struct{} { return a.ready }

// Take returns the entries that have changed since the last call, in order.
func (a *ConfigChanges) Take() []ConfigKey {
	c := a.configs
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.SortedFunc(maps.Keys(a.changed), ConfigKey.Compare)
	clear(a.changed)
	return out
}

// Close ends it.
func (a *ConfigChanges) Close() {
	c := a.configs
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, a)
}
