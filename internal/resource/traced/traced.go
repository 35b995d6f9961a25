// Package traced wraps a resource.Client so that what controllers write in reaction to a sampled change continues its
// trace.
//
// Enter at Wrapper. It changes nothing about the calls, but for an annotation where the recorder wants one (package tracing).
package traced

import (
	"context"
	"maps"
	"strconv"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// Config of a client.
type Config struct {
	// Recorder of spans; nil: the wrapper returns clients as they are.
	Recorder *tracing.Recorder
	// Remote: the objects are in another API, whose commits nobody else notes.
	Remote bool
}

// Wrapper wraps clients.
func Wrapper(c Config) resource.Wrapper {
	return func(inner resource.Client) resource.Client {
		if c.Recorder == nil {
			return inner
		}
		return &client{Client: inner, Config: c}
	}
}

type client struct {
	resource.Client
	Config
}

type call = func(context.Context, *resource.Descriptor, resource.Object) (resource.Object, error)

// Create implements resource.Client.
func (c *client) Create(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	return c.write(ctx, "create", kind, obj, c.Recorder.Annotates(), c.Client.Create)
}

// Update implements resource.Client.
func (c *client) Update(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	return c.write(ctx, "update", kind, obj, c.Recorder.Annotates(), c.Client.Update)
}

// UpdateStatus implements resource.Client. An update of the status keeps the annotations.
func (c *client) UpdateStatus(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	return c.write(ctx, "update-status", kind, obj, false, c.Client.UpdateStatus)
}

// Delete implements resource.Client.
func (c *client) Delete(ctx context.Context, kind *resource.Descriptor, key resource.Key, pre resource.Preconditions) error {
	ctx, w := c.Recorder.React(ctx, "delete", tracing.Object{Kind: kind.GVK.Kind, Namespace: key.Namespace, Name: key.Name}, "")
	err := c.Client.Delete(ctx, kind, key, pre)
	if w != nil {
		w.End("", err)
	}
	return err
}

func (c *client) write(
	ctx context.Context, verb string, kind *resource.Descriptor, obj resource.Object, annotate bool, next call,
) (resource.Object, error) {
	o := tracing.Object{Kind: kind.GVK.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	ctx, w := c.Recorder.React(ctx, verb, o, obj.GetGenerateName())
	if w == nil {
		if annotate && obj.GetAnnotations()[tracing.Annotation] != "" {
			obj = annotated(obj, "")
		}
		return next(ctx, kind, obj)
	}
	if annotate {
		obj = annotated(obj, w.Spans.String())
	}
	out, err := next(ctx, kind, obj)
	name := ""
	if err == nil {
		name = out.GetName()
		if c.Remote && out.GetResourceVersion() != obj.GetResourceVersion() {
			revision, _ := strconv.ParseUint(out.GetResourceVersion(), 10, 64)
			w.Made(revision)
		}
	}
	w.End(name, err)
	return out, err
}

// annotated is a copy of an object with the annotation; empty: without it.
func annotated(obj resource.Object, text string) resource.Object {
	out, ok := obj.DeepCopyObject().(resource.Object)
	if !ok {
		return obj
	}
	notes := maps.Clone(out.GetAnnotations())
	if text == "" {
		delete(notes, tracing.Annotation)
	} else {
		if notes == nil {
			notes = map[string]string{}
		}
		notes[tracing.Annotation] = text
	}
	out.SetAnnotations(notes)
	return out
}
