package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Bases keeps the digests of entries that both registries had when they were alike last, so that a mirror that starts again
// tells an entry that was removed meanwhile from one that is new.
type Bases interface {
	// Load what was saved last; nothing: an empty map.
	Load(ctx context.Context) (map[registry.ConfigKey]string, error)
	// Save all there are now. It returns when they are durable. It is not called at the same time.
	Save(ctx context.Context, all map[registry.ConfigKey]string) error
}

// digest of what same compares.
func (e *Entry) digest() string {
	h := sha256.New()
	if e.Key.Group == GroupMapping {
		for _, name := range slices.Sorted(maps.Keys(namesOf(e.Content))) {
			fmt.Fprintf(h, "%s,", name)
		}
	} else {
		fmt.Fprintf(h, "%d %s%s", len(e.Content), e.Content, e.DataKey)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

const (
	// SecretTypeImport is the type of the Secrets of SecretBases.
	SecretTypeImport corev1.SecretType = registry.GroupName + "/import"
	// AnnotationImport on them is the address of the old registry.
	AnnotationImport = registry.GroupName + "/import"

	// baseShards Secrets at most: with 1 MiB each, they have room for about 50,000 entries.
	baseShards = 8
	baseKey    = "entries"
)

// SecretBases keeps Bases in Secrets of a control plane: digests of short contents can be guessed from.
type SecretBases struct {
	// Client of the control plane's API, and the Namespace of the Secrets.
	Client    resource.Client
	Namespace string
	// Old is the address of the old registry, for people. Identity tells mirrors apart: a base counts only between the same
	// registries with the same namespaces.
	Old, Identity string

	saved [baseShards][]byte
}

// savedBase is an entry in a Secret: namespace, group, name and digest.
type savedBase [4]string

func (b *SecretBases) name(shard int) resource.Key {
	sum := sha256.Sum256([]byte(b.Identity))
	return resource.Key{Namespace: b.Namespace, Name: fmt.Sprintf("registry-import-%x-%d", sum[:8], shard)}
}

// Load implements Bases.
func (b *SecretBases) Load(ctx context.Context) (map[registry.ConfigKey]string, error) {
	out := map[registry.ConfigKey]string{}
	for shard := range b.saved {
		name := b.name(shard)
		o, err := b.Client.Get(ctx, kind.Secret, name)
		switch {
		case apierrors.IsNotFound(err):
			b.saved[shard] = nil
			continue
		case err != nil:
			return nil, fmt.Errorf("read secret %s: %w", name, err)
		}
		data := o.(*corev1.Secret).Data[baseKey]
		var list []savedBase
		if err := json.Unmarshal(data, &list); err != nil {
			return nil, fmt.Errorf("secret %s: key %s is no list of entries: %w; delete it, and what was removed meanwhile comes back", name, baseKey, err)
		}
		for _, e := range list {
			out[registry.ConfigKey{Namespace: e[0], Group: e[1], DataID: e[2]}] = e[3]
		}
		b.saved[shard] = data
	}
	return out, nil
}

// Save implements Bases. An entry is always in the same Secret, so that what is saved of it does not depend on the others.
func (b *SecretBases) Save(ctx context.Context, all map[registry.ConfigKey]string) error {
	var lists [baseShards][]savedBase
	for _, key := range sortedKeys(all) {
		h := fnv.New32a()
		_, _ = fmt.Fprintf(h, "%s\x00%s\x00%s", key.Namespace, key.Group, key.DataID)
		shard := h.Sum32() % baseShards
		lists[shard] = append(lists[shard], savedBase{key.Namespace, key.Group, key.DataID, all[key]})
	}
	for shard, list := range lists {
		var data []byte
		if len(list) > 0 {
			data, _ = json.Marshal(list) // texts
		}
		if bytes.Equal(data, b.saved[shard]) {
			continue
		}
		if err := b.write(ctx, b.name(shard), data); err != nil {
			return fmt.Errorf("write secret %s: %w", b.name(shard), err)
		}
		b.saved[shard] = data
	}
	return nil
}

// write a Secret, or delete it if there is nothing to write.
func (b *SecretBases) write(ctx context.Context, name resource.Key, data []byte) error {
	have, err := b.Client.Get(ctx, kind.Secret, name)
	switch {
	case apierrors.IsNotFound(err) && data == nil:
		return nil
	case apierrors.IsNotFound(err):
		_, err = b.Client.Create(ctx, kind.Secret, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone},
				Annotations: map[string]string{AnnotationImport: b.Old},
			},
			Type: SecretTypeImport, Data: map[string][]byte{baseKey: data},
		})
		return err
	case err != nil:
		return err
	case data == nil:
		err = b.Client.Delete(ctx, kind.Secret, name, resource.Preconditions{UID: have.GetUID()})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	next := have.DeepCopyObject().(*corev1.Secret)
	next.Data = map[string][]byte{baseKey: data}
	_, err = b.Client.Update(ctx, kind.Secret, next)
	return err
}

const (
	// saveEvery spaces what is saved.
	saveEvery = time.Second
	// saveWithin is how long the last time may take, at the end.
	saveWithin = 5 * time.Second
)

var saveRetry = backoff.Policy{First: time.Second, Last: 30 * time.Second, Jitter: 0.2}

// load what both had before this mirror started. Errors are those of a client who may not read, and of ctx.
func (e *entries) load(ctx context.Context) error {
	if e.saves == nil {
		return nil
	}
	retry := backoff.Backoff{Policy: saveRetry}
	for {
		all, err := e.saves.Load(ctx)
		switch {
		case err == nil:
			e.mu.Lock()
			e.bases = all
			e.mu.Unlock()
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return fmt.Errorf("what both registries had when they were alike last: %w; grant its user to get, create, update and delete secrets, "+
				"or leave the configuration out with --config-from none", err)
		}
		e.log.Warn("it is not known yet what both registries had when they were alike last; it is tried again", "error", err)
		if backoff.Sleep(ctx, retry.Next()); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// setBase of an entry; empty: both have none. It is called with the lock.
func (e *entries) setBase(key registry.ConfigKey, digest string) {
	if e.bases[key] == digest {
		return
	}
	if digest == "" {
		delete(e.bases, key)
	} else {
		e.bases[key] = digest
	}
	select {
	case e.unsaved <- struct{}{}:
	default:
	}
}

// save what has changed, until ctx ends.
func (e *entries) save(ctx context.Context) {
	if e.saves == nil {
		return
	}
	retry := backoff.Backoff{Policy: saveRetry}
	for {
		select {
		case <-ctx.Done():
			select {
			case <-e.unsaved:
			default:
				return
			}
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveWithin)
			defer cancel()
			e.saveNow(last)
			return
		case <-e.unsaved:
		}
		wait := saveEvery
		if e.saveNow(ctx) {
			retry.Reset()
		} else {
			wait = retry.Next()
		}
		backoff.Sleep(ctx, wait)
	}
}

// saveNow reports whether it was saved.
func (e *entries) saveNow(ctx context.Context) bool {
	e.mu.Lock()
	all := maps.Clone(e.bases)
	e.mu.Unlock()
	err := e.saves.Save(ctx, all)
	if err == nil {
		return true
	}
	select {
	case e.unsaved <- struct{}{}:
	default:
	}
	if ctx.Err() == nil {
		e.log.Warn("what both registries have is not saved yet; it is tried again. If the mirror starts again before, entries that are removed meanwhile come back",
			"error", err)
	}
	return false
}

// missing notes what a registry lacks that both had before this mirror started: it was removed meanwhile. It is called once, with the
// lock, when both are read.
func (e *entries) missing() {
	for key := range e.bases {
		if e.oldSide.all[key] == nil && e.hereSide.all[key] == nil {
			e.setBase(key, "")
		}
	}
	for _, side := range []*entrySide{e.oldSide, e.hereSide} {
		for key := range e.bases {
			if side.all[key] == nil && key.Group != GroupMapping {
				side.missed[key] = e.now()
			}
		}
		// A registry that lacks most of what it had, or all, is more likely ill, new, or not what it was.
		n := len(side.missed)
		if side.ill = n >= collapseFrom && 2*n > len(e.bases) || n > 1 && len(side.all) == 0; side.ill {
			e.log.Warn("a registry lacks most entries of the configuration that both had before this mirror started: they are neither removed in the other one "+
				"nor written again. Remove them there, or delete the secrets with annotation "+AnnotationImport+" and start again to have them written",
				"registry", side.name, "missing", n, "of", len(e.bases))
		}
	}
}
