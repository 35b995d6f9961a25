package app

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
)

// globalSecretType is the type of Secrets that are GlobalSecrets, in the namespace of the control
// plane: a kind of its own would not be encrypted at rest where the cluster's Secrets are.
const globalSecretType corev1.SecretType = meshv1alpha1.GroupName + "/global"

// clusterSecrets is the GlobalSecrets of a cluster, as a client of that kind alone. A Secret of
// another type is none.
type clusterSecrets struct {
	// secrets is a client of Secrets.
	secrets   resource.Client
	namespace string
}

// newClusterSecrets makes the clients of kinds that a control plane has in a cluster in another way
// than as objects of that kind, or not at all: Secrets of all namespaces it may not read, but those that
// are followed by their names; the ranges of virtual IPs are those of the configuration, as a
// ServiceCIDR would give the cluster's Services addresses of them.
func newClusterSecrets(cfg ControlPlaneConfig, wrap ...resource.Wrapper) ([]resource.Override, *namedSecrets, error) {
	client, err := kubeclient.New(clusterREST(cfg.Cluster), []*resource.Descriptor{kind.Secret})
	if err != nil {
		return nil, nil, err
	}
	// What it may not read is told where it is needed, and no sign that the cluster is not reached.
	named := newNamedSecrets(kubeclient.NewStreamed(client, strip), memory.New(kind.Secret),
		orDiscard(cfg.Logger).With("component", "secrets of policies"))
	return []resource.Override{
		{Kind: kind.Secret, Client: named}, {Kind: kind.ServiceCIDR, Client: memory.New(kind.ServiceCIDR)},
		{Kind: kind.GlobalSecret, Client: &clusterSecrets{
			secrets: resource.Wrap(kubeclient.NewStreamed(client, newStripper().strip), wrap...), namespace: cfg.Namespace,
		}},
	}, named, nil
}

var _ resource.Client = (*clusterSecrets)(nil)

// globalSecretOf a Secret; nil: it is none.
func globalSecretOf(s *corev1.Secret) *meshv1alpha1.GlobalSecret {
	if s.Type != globalSecretType {
		return nil
	}
	g := &meshv1alpha1.GlobalSecret{ObjectMeta: s.ObjectMeta, Type: meshv1alpha1.SecretTypeOpaque, Data: s.Data, Immutable: s.Immutable}
	g.Namespace = ""
	return g
}

func (c *clusterSecrets) secretOf(g *meshv1alpha1.GlobalSecret) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: *g.ObjectMeta.DeepCopy(), Type: globalSecretType, Data: g.Data, StringData: g.StringData, Immutable: g.Immutable,
	}
	s.Namespace = c.namespace
	return s
}

func (c *clusterSecrets) key(k resource.Key) resource.Key {
	return resource.Key{Namespace: c.namespace, Name: k.Name}
}

func (c *clusterSecrets) list(o resource.ListOptions) resource.ListOptions {
	of := fields.OneTermEqualSelector("type", string(globalSecretType))
	if o.Fields != nil && !o.Fields.Empty() {
		of = fields.AndSelectors(of, o.Fields)
	}
	o.Namespace, o.Fields = c.namespace, of
	return o
}

// Get implements resource.Client.
func (c *clusterSecrets) Get(ctx context.Context, _ *resource.Descriptor, key resource.Key) (resource.Object, error) {
	obj, err := c.secrets.Get(ctx, kind.Secret, c.key(key))
	if err != nil {
		return nil, err
	}
	if g := globalSecretOf(obj.(*corev1.Secret)); g != nil {
		return g, nil
	}
	return nil, apierrors.NewNotFound(kind.GlobalSecret.GroupResource(), key.Name)
}

// List implements resource.Client.
func (c *clusterSecrets) List(
	ctx context.Context, _ *resource.Descriptor, o resource.ListOptions,
) (out []resource.Object, version string, err error) {
	all, version, err := c.secrets.List(ctx, kind.Secret, c.list(o))
	for _, obj := range all {
		if g := globalSecretOf(obj.(*corev1.Secret)); g != nil {
			out = append(out, g)
		}
	}
	return out, version, err
}

// Watch implements resource.Client.
func (c *clusterSecrets) Watch(ctx context.Context, _ *resource.Descriptor, o resource.WatchOptions) (watch.Interface, error) {
	o.ListOptions = c.list(o.ListOptions)
	w, err := c.secrets.Watch(ctx, kind.Secret, o)
	if err != nil {
		return nil, err
	}
	return resource.MapWatch(w, func(event watch.Event) (watch.Event, bool) {
		s, ok := event.Object.(*corev1.Secret)
		switch {
		case !ok || event.Type == watch.Error:
			return event, true
		case event.Type == watch.Bookmark:
			event.Object = &meshv1alpha1.GlobalSecret{ObjectMeta: s.ObjectMeta}
			return event, true
		}
		g := globalSecretOf(s)
		event.Object = g
		return event, g != nil
	}), nil
}

// Create implements resource.Client. That a Secret of another type has the name is no conflict that
// passes: the object is refused.
func (c *clusterSecrets) Create(ctx context.Context, _ *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	made, err := c.secrets.Create(ctx, kind.Secret, c.secretOf(obj.(*meshv1alpha1.GlobalSecret)))
	if apierrors.IsAlreadyExists(err) {
		if _, own := c.Get(ctx, kind.GlobalSecret, resource.KeyOf(obj)); apierrors.IsNotFound(own) {
			return nil, apierrors.NewForbidden(kind.GlobalSecret.GroupResource(), obj.GetName(), fmt.Errorf(
				"namespace %s has a Secret of this name that is not of type %s: give one of them another name", c.namespace, globalSecretType))
		}
	}
	return asGlobalSecret(made, err)
}

// Update implements resource.Client.
func (c *clusterSecrets) Update(ctx context.Context, _ *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	return asGlobalSecret(c.secrets.Update(ctx, kind.Secret, c.secretOf(obj.(*meshv1alpha1.GlobalSecret))))
}

// UpdateStatus implements resource.Client: there is no status.
func (c *clusterSecrets) UpdateStatus(context.Context, *resource.Descriptor, resource.Object) (resource.Object, error) {
	return nil, apierrors.NewMethodNotSupported(kind.GlobalSecret.GroupResource(), "update status")
}

// Delete implements resource.Client.
func (c *clusterSecrets) Delete(ctx context.Context, d *resource.Descriptor, key resource.Key, pre resource.Preconditions) error {
	if _, err := c.Get(ctx, d, key); err != nil {
		return err
	}
	return c.secrets.Delete(ctx, kind.Secret, c.key(key), pre)
}

func asGlobalSecret(obj resource.Object, err error) (resource.Object, error) {
	if err != nil {
		return nil, err
	}
	g := globalSecretOf(obj.(*corev1.Secret))
	if g == nil {
		return nil, apierrors.NewConflict(kind.GlobalSecret.GroupResource(), obj.GetName(),
			fmt.Errorf("it is no Secret of type %s any more", globalSecretType))
	}
	return g, nil
}
