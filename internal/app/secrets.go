package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/identity/sealed"
	"github.com/proxima-mesh/proxima/internal/keyring"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
)

// sealedKinds are the kinds that are encrypted in the store, by the prefix of their
// keys there.
func sealedKinds() map[string]*resource.Descriptor {
	return map[string]*resource.Descriptor{
		"/registry/secrets/":                        kind.Secret,
		"/registry/mesh.proxima.dev/globalsecrets/": kind.GlobalSecret,
	}
}

func sealedPrefixes() []string {
	var prefixes []string
	for prefix := range sealedKinds() {
		prefixes = append(prefixes, prefix)
	}
	return append(prefixes, sealed.Prefix)
}

func keyFile(dataDir string) string { return filepath.Join(dataDir, "pki", keyring.FileName) }

// openKeys opens the keys of secrets, and makes them at the first start. Where
// they are lost the control plane runs all the same, without its secrets.
func openKeys(ctx context.Context, s store.Store, dataDir string, log *slog.Logger) (*keyring.Ring, error) {
	used, err := keyring.AnySealed(ctx, s, sealedPrefixes())
	if errors.Is(err, store.ErrDamaged) {
		used, err = true, nil // no new key in the place of one that may be needed
	}
	if err != nil {
		return nil, err
	}
	ring, err := keyring.Open(keyFile(dataDir), used)
	if err != nil {
		return nil, err
	}
	status, err := (&keyring.Rotation{Ring: ring, Store: s, Prefixes: sealedPrefixes()}).Status(ctx)
	if errors.Is(err, store.ErrDamaged) {
		log.Error("not all secrets can be read", "error", err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	for _, k := range status.Keys {
		if k.Missing {
			log.Error("secrets cannot be read: put the key back, from a copy of the key file",
				"key", k.ID, "secrets", k.Records, "file", ring.Path())
		}
	}
	return ring, nil
}

func sealedGroups() []schema.GroupResource {
	var groups []schema.GroupResource
	for _, d := range sealedKinds() {
		groups = append(groups, d.GroupResource())
	}
	return groups
}

// rotation of the keys, which writes through an API.
func (s *storage) rotation(server *apiserver.Server) *keyring.Rotation {
	client := server.Client("system:proxima:secrets")
	return &keyring.Rotation{
		Ring: s.keys, Store: s.store, Prefixes: sealedPrefixes(),
		Rewrite: func(ctx context.Context, key string) error {
			if strings.HasPrefix(key, sealed.Prefix) {
				return sealed.NewRecords(s.store, s.keys).Reseal(ctx, key)
			}
			return rewrite(ctx, client, key)
		},
	}
}

// rewrite writes an encrypted object as it is, through the API's write path,
// which encrypts it with the newest key.
func rewrite(ctx context.Context, client resource.Client, key string) error {
	for prefix, d := range sealedKinds() {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		object, ok := sealedObject(d, rest)
		if !ok {
			return fmt.Errorf("key %q is not of a %s", key, d.Singular)
		}
		obj, err := client.Get(ctx, d, object)
		if err == nil {
			_, err = client.Update(ctx, d, obj)
		}
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // it is gone, or was written meanwhile and so encrypted with the newest key
		}
		return err
	}
	return fmt.Errorf("key %q is of no kind that is encrypted", key)
}

// sealedObject reads the end of a key in the store: NAMESPACE/NAME, or NAME.
func sealedObject(d *resource.Descriptor, rest string) (resource.Key, bool) {
	namespace, name, namespaced := strings.Cut(rest, "/")
	if !namespaced {
		namespace, name = "", rest
	}
	return resource.Key{Namespace: namespace, Name: name}, namespaced == d.Namespaced && name != ""
}
