package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/federation/secrets"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// namedSecrets is the Secrets of a cluster that policies name, and no others: the control plane may not
// read all Secrets. Each is followed by a watch of its name, which a Role in its namespace allows.
// Reads of others find nothing, and nothing is written.
//
//	ExternalServices ──► follow ──► a reflector for each Secret ──► memory ──► credential.Source
type namedSecrets struct {
	resource.Client // held

	// held is what was read, and a placeholder for each that cannot be read.
	held *memory.Client
	// cluster is a client of Secrets of the cluster.
	cluster resource.Client
	log     *slog.Logger
}

// unreadable on a Secret in memory: it stands for one that cannot be read, and the annotation says why.
const unreadable = meshv1alpha1.GroupName + "/unreadable"

func newNamedSecrets(cluster resource.Client, held *memory.Client, log *slog.Logger) *namedSecrets {
	return &namedSecrets{Client: held, held: held, cluster: cluster, log: log}
}

// Get implements resource.Client.
func (n *namedSecrets) Get(ctx context.Context, d *resource.Descriptor, key resource.Key) (resource.Object, error) {
	obj, err := n.Client.Get(ctx, d, key)
	if err != nil {
		return nil, err
	}
	if why := obj.GetAnnotations()[unreadable]; why != "" {
		return nil, errors.New(why)
	}
	return obj, nil
}

// follow the Secrets that ExternalServices name, until ctx ends; it returns nil then.
func (n *namedSecrets) follow(ctx context.Context, tables *catalog.Catalog) error {
	sub := tables.Subscribe(catalog.ExternalServices)
	defer sub.Close()
	var running sync.WaitGroup
	defer running.Wait()
	stops := map[resource.Key]context.CancelFunc{}
	for {
		delta, err := sub.Next(ctx)
		if err != nil {
			for _, stop := range stops {
				stop()
			}
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		wanted := namedIn(delta.After)
		for key, stop := range stops {
			if !wanted[key] {
				stop()
				delete(stops, key)
			}
		}
		for key := range wanted {
			if stops[key] == nil {
				one, cancel := context.WithCancel(ctx)
				ended := make(chan struct{})
				stops[key] = func() { cancel(); <-ended } // it forgets the Secret at its end, which the next one may have read
				running.Go(func() { defer close(ended); n.followOne(one, key) })
			}
		}
	}
}

// namedIn are the Secrets that objects of a snapshot name. Those of control planes go to no node.
func namedIn(s *catalog.Snapshot) map[resource.Key]bool {
	out := map[resource.Key]bool{}
	for _, e := range s.ExternalServices.All() {
		for _, r := range secrets.References(e) {
			if r.Secret.Namespace != "" && r.Secret.Namespace != access.SystemNamespace {
				out[r.Secret] = true
			}
		}
	}
	return out
}

// secretBackoff: a permission that was missing is noticed within its last step.
var secretBackoff = backoff.Policy{First: 200 * time.Millisecond, Last: 15 * time.Second, Jitter: 0.2}

// followOne keeps one Secret in memory until ctx ends, and forgets it then.
func (n *namedSecrets) followOne(ctx context.Context, key resource.Key) {
	defer n.forget(key)
	_ = reflector.Run(ctx, reflector.Config{
		Client: n.cluster, Kind: kind.Secret, Backoff: secretBackoff, Logger: n.log, Level: slog.LevelDebug,
		Select: resource.ListOptions{Namespace: key.Namespace, Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name)},
	}, func(e reflector.Event) error {
		switch e.Type {
		case reflector.Replace, reflector.Set:
			for _, obj := range e.Objects {
				if resource.KeyOf(obj) == key {
					return n.held.Put(obj)
				}
			}
			n.forget(key)
		case reflector.Delete:
			n.forget(key)
		case reflector.Disconnected:
			if apierrors.IsForbidden(e.Err) {
				n.noteForbidden(key)
			}
		}
		return nil
	})
}

// noteForbidden puts a placeholder in the place of a Secret.
func (n *namedSecrets) noteForbidden(key resource.Key) {
	why := secretForbidden(key)
	if old, err := n.held.Get(context.Background(), kind.Secret, key); err == nil && old.GetAnnotations()[unreadable] == why {
		return
	}
	n.log.Warn("a Secret that an ExternalService names cannot be read", "secret", key, "reason", why)
	if err := n.held.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, Annotations: map[string]string{unreadable: why},
	}}); err != nil {
		n.log.Error("that a Secret cannot be read is not noted", "secret", key, "error", err)
	}
}

// forget a Secret that is gone, or not named any more.
func (n *namedSecrets) forget(key resource.Key) {
	_ = n.held.Delete(context.Background(), kind.Secret, key, resource.Preconditions{}) // it may never have been there
}

// secretForbidden names the permission that is missing, and how it is given.
func secretForbidden(key resource.Key) string {
	return fmt.Sprintf("the ServiceAccount proxima of namespace %s has no Role in namespace %s with list and watch of this Secret: "+
		"add it to the values of the chart (policySecrets: {%s: [%s]}), or make the Role", access.SystemNamespace, key.Namespace, key.Namespace, key.Name)
}
