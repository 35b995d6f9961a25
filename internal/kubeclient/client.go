// Package kubeclient is resource.Client over a Kubernetes API: Proxima's own, or
// the one of a Kubernetes cluster.
//
// It owns the translation of resource.Client's calls to REST calls of client-go.
// Enter at New. It never caches and never retries.
package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Client talks to one API server as the user of the configuration. Safe for
// concurrent use.
type Client struct {
	scheme *runtime.Scheme
	params runtime.ParameterCodec
	rests  map[schema.GroupVersion]*rest.RESTClient
}

var _ resource.Client = (*Client)(nil)

// New makes a client for the given kinds. It opens no connection. The
// configuration is copied. Built-in kinds travel as protobuf, Proxima's own as
// JSON.
func New(cfg *rest.Config, kinds []*resource.Descriptor) (*Client, error) {
	scheme := NewScheme(kinds)
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	c := &Client{
		scheme: scheme,
		params: runtime.NewParameterCodec(scheme),
		rests:  map[schema.GroupVersion]*rest.RESTClient{},
	}
	codecs := serializer.NewCodecFactory(scheme)
	for _, d := range kinds {
		gv := d.GVK.GroupVersion()
		if c.rests[gv] != nil {
			continue
		}
		own := rest.CopyConfig(cfg)
		own.GroupVersion = &gv
		own.APIPath = "/apis"
		if gv.Group == "" {
			own.APIPath = "/api"
		}
		own.NegotiatedSerializer = codecs.WithoutConversion()
		own.AcceptContentTypes, own.ContentType = "", runtime.ContentTypeJSON
		if _, isProto := d.New().(interface{ Marshal() ([]byte, error) }); isProto {
			own.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
			own.ContentType = runtime.ContentTypeProtobuf
		}
		if c.rests[gv], err = rest.RESTClientForConfigAndClient(own, httpClient); err != nil {
			return nil, fmt.Errorf("client for %s: %w", gv, err)
		}
	}
	return c, nil
}

// NewScheme registers the Go types of the given kinds, and the types that every
// group version needs to list, watch and report errors.
func NewScheme(kinds []*resource.Descriptor) *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, d := range kinds {
		gv := d.GVK.GroupVersion()
		scheme.AddKnownTypeWithName(d.GVK, d.New())
		scheme.AddKnownTypeWithName(gv.WithKind(d.GVK.Kind+"List"), d.NewList())
		metav1.AddToGroupVersion(scheme, gv)
	}
	return scheme
}

// check that an object is one of a kind, by its registered type: the encoder goes by
// the type alone.
func (c *Client) check(d *resource.Descriptor, obj resource.Object) error {
	gvks, _, err := c.scheme.ObjectKinds(obj)
	if err != nil {
		return err
	}
	if !slices.Contains(gvks, d.GVK) {
		return fmt.Errorf("%s %q: the object is a %T", d.Singular, obj.GetName(), obj)
	}
	return nil
}

func (c *Client) request(verb string, d *resource.Descriptor, namespace string) (*rest.Request, error) {
	client := c.rests[d.GVK.GroupVersion()]
	if client == nil {
		return nil, fmt.Errorf("kind %s is not one that this client was made for", d.GVK)
	}
	return client.Verb(verb).Resource(d.Resource).NamespaceIfScoped(namespace, d.Namespaced && namespace != ""), nil
}

func (c *Client) named(verb string, d *resource.Descriptor, key resource.Key) (*rest.Request, error) {
	if key.Name == "" {
		return nil, errors.New("an object's name may not be empty")
	}
	if d.Namespaced && key.Namespace == "" {
		return nil, fmt.Errorf("%s %q: a namespace is needed", d.Singular, key.Name)
	}
	req, err := c.request(verb, d, key.Namespace)
	if err != nil {
		return nil, err
	}
	return req.Name(key.Name), nil
}

// Get implements resource.Client.
func (c *Client) Get(ctx context.Context, d *resource.Descriptor, key resource.Key) (resource.Object, error) {
	req, err := c.named("GET", d, key)
	if err != nil {
		return nil, err
	}
	out := d.New()
	return out, req.Do(ctx).Into(out)
}

// pageSize of lists.
const pageSize = 500

// List implements resource.Client. It reads in pages of 500.
func (c *Client) List(ctx context.Context, d *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	var objects []resource.Object
	page := PageOptions{ListOptions: opts, Limit: pageSize}
	for {
		got, err := c.Page(ctx, d, page)
		if err != nil {
			return nil, "", err
		}
		objects = append(objects, got.Objects...)
		if page.Continue = got.Continue; page.Continue == "" {
			return objects, got.ResourceVersion, nil
		}
	}
}

// PageOptions select a page of a list.
type PageOptions struct {
	resource.ListOptions
	// Limit on objects; 0: all.
	Limit int64
	// Continue is the token of the page before; empty: the first page.
	Continue string
	// Exact is the resource version to list at; empty: the newest. Not together with
	// Continue.
	Exact string
}

// Page is one page of a list.
type Page struct {
	Objects         []resource.Object
	ResourceVersion string
	// Continue is the token for the next page; empty: this is the last one.
	Continue string
}

// Page reads one page of a list.
func (c *Client) Page(ctx context.Context, d *resource.Descriptor, opts PageOptions) (Page, error) {
	lo := metav1.ListOptions{Limit: opts.Limit, Continue: opts.Continue, ResourceVersion: opts.Exact}
	if opts.Exact != "" {
		lo.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	}
	if opts.Labels != nil {
		lo.LabelSelector = opts.Labels.String()
	}
	if opts.Fields != nil {
		lo.FieldSelector = opts.Fields.String()
	}
	req, err := c.request("GET", d, opts.Namespace)
	if err != nil {
		return Page{}, err
	}
	list := d.NewList()
	if err := req.VersionedParams(&lo, c.params).Do(ctx).Into(list); err != nil {
		return Page{}, err
	}
	var page Page
	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj, ok := item.(resource.Object)
		if !ok {
			return fmt.Errorf("list of %s holds a %T", d.Resource, item)
		}
		page.Objects = append(page.Objects, obj)
		return nil
	})
	if err != nil {
		return Page{}, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return Page{}, err
	}
	page.ResourceVersion, page.Continue = m.GetResourceVersion(), m.GetContinue()
	return page, nil
}

// REST is the client for the group and version of a kind, for requests that are
// not about objects; nil for a kind that the client was not made for.
func (c *Client) REST(d *resource.Descriptor) rest.Interface {
	if r := c.rests[d.GVK.GroupVersion()]; r != nil {
		return r
	}
	return nil
}

// Watch implements resource.Client.
func (c *Client) Watch(ctx context.Context, d *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	req, err := c.request("GET", d, opts.Namespace)
	if err != nil {
		return nil, err
	}
	lo := metav1.ListOptions{Watch: true, AllowWatchBookmarks: true, ResourceVersion: opts.ResourceVersion}
	if opts.ResourceVersion == "" {
		initial := true
		lo.SendInitialEvents = &initial
		lo.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	if opts.Labels != nil {
		lo.LabelSelector = opts.Labels.String()
	}
	if opts.Fields != nil {
		lo.FieldSelector = opts.Fields.String()
	}
	return req.VersionedParams(&lo, c.params).Watch(ctx)
}

// Create implements resource.Client.
func (c *Client) Create(ctx context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	if err := c.check(d, obj); err != nil {
		return nil, err
	}
	if d.Status && resource.StatusIncluded(ctx) {
		return nil, fmt.Errorf("%s %q: %w", d.Singular, obj.GetName(), resource.ErrStatusApart)
	}
	if d.Namespaced && obj.GetNamespace() == "" {
		return nil, fmt.Errorf("%s %q: a namespace is needed", d.Singular, obj.GetName())
	}
	req, err := c.request("POST", d, obj.GetNamespace())
	if err != nil {
		return nil, err
	}
	out := d.New()
	return out, req.Body(obj).Do(ctx).Into(out)
}

// Update implements resource.Client.
func (c *Client) Update(ctx context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	if d.Status && resource.StatusIncluded(ctx) {
		return nil, fmt.Errorf("%s %q: %w", d.Singular, obj.GetName(), resource.ErrStatusApart)
	}
	return c.put(ctx, d, obj)
}

// Try does all that a create, or an update of an object with a resource version, would, and stores
// nothing (dryRun=All).
func (c *Client) Try(ctx context.Context, d *resource.Descriptor, obj resource.Object) error {
	if err := c.check(d, obj); err != nil {
		return err
	}
	req, err := c.request("POST", d, obj.GetNamespace())
	if obj.GetResourceVersion() != "" {
		req, err = c.named("PUT", d, resource.KeyOf(obj))
	}
	if err != nil {
		return err
	}
	return req.Param("dryRun", metav1.DryRunAll).Body(obj).Do(ctx).Error()
}

// UpdateStatus implements resource.Client.
func (c *Client) UpdateStatus(ctx context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	return c.put(ctx, d, obj, "status")
}

func (c *Client) put(ctx context.Context, d *resource.Descriptor, obj resource.Object, sub ...string) (resource.Object, error) {
	if err := c.check(d, obj); err != nil {
		return nil, err
	}
	req, err := c.named("PUT", d, resource.KeyOf(obj))
	if err != nil {
		return nil, err
	}
	out := d.New()
	return out, req.SubResource(sub...).Body(obj).Do(ctx).Into(out)
}

// Delete implements resource.Client.
func (c *Client) Delete(ctx context.Context, d *resource.Descriptor, key resource.Key, pre resource.Preconditions) error {
	req, err := c.named("DELETE", d, key)
	if err != nil {
		return err
	}
	var opts metav1.DeleteOptions
	if pre.Now {
		opts.GracePeriodSeconds = new(int64)
	}
	if pre.Propagation != "" {
		opts.PropagationPolicy = &pre.Propagation
	}
	if pre.UID != "" || pre.ResourceVersion != "" {
		opts.Preconditions = &metav1.Preconditions{}
		if pre.UID != "" {
			opts.Preconditions.UID = &pre.UID
		}
		if pre.ResourceVersion != "" {
			opts.Preconditions.ResourceVersion = &pre.ResourceVersion
		}
	}
	return req.Body(&opts).Do(ctx).Error()
}
