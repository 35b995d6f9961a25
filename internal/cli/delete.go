package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

type deleteFlags struct {
	namespace     string
	files         []string
	wait          bool
	timeout       time.Duration
	now           bool
	ignoreMissing bool
}

func newDelete(s *settings) *cobra.Command {
	var d deleteFlags
	cmd := &cobra.Command{
		Use:     "delete KIND NAME… | -f FILE|DIR|-",
		GroupID: "objects",
		Short:   "Delete objects",
		Long: `Delete asks the server to delete objects, and waits until they are gone. A
Dataplane or a Pod is terminating until its connections had time to end; --now
leaves them none. With -f, the objects of files are deleted, the last one first.`,
		Example: "  proxima delete service web\n  proxima delete dataplane web-1 web-2 --now\n  proxima delete -f deploy/ --ignore-not-found",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.delete(cmd.Context(), d, args)
		},
		ValidArgsFunction: s.completeTarget(-1),
	}
	f := cmd.Flags()
	addNamespaceFlag(f, &d.namespace)
	addFilesFlag(f, &d.files)
	f.BoolVar(&d.wait, "wait", true, "wait until the objects are gone")
	f.DurationVar(&d.timeout, "timeout", time.Minute, "most time to wait; 0: no limit")
	f.BoolVar(&d.now, "now", false, "leave connections no time to end")
	f.BoolVar(&d.ignoreMissing, "ignore-not-found", false, "do not mind objects that do not exist")
	return cmd
}

func addFilesFlag(f *pflag.FlagSet, files *[]string) {
	f.StringArrayVarP(files, "filename", "f", nil, "file or directory of YAML or JSON, or - for standard input; may be repeated")
}

func (s *settings) delete(ctx context.Context, d deleteFlags, args []string) error {
	switch {
	case len(args) == 0 && len(d.files) == 0:
		return usagef("say what to delete: KIND NAME…, or -f FILE")
	case len(args) > 0 && len(d.files) > 0:
		return usagef("give KIND NAME… or -f, not both")
	case d.timeout < 0:
		return usagef("--timeout %s: must not be negative", d.timeout)
	}
	var t target
	if len(args) > 0 {
		var err error
		if t, err = parseTarget(args); err != nil {
			return err
		}
		if len(t.names) == 0 {
			return usagef("which %s? name them, as in: delete %s NAME…", t.kind.Resource, t.kind.Singular)
		}
	}
	c, err := s.connect(d.namespace)
	if err != nil {
		return err
	}
	objects, err := s.toDelete(c, d, t)
	if err != nil {
		return fmt.Errorf("nothing was deleted:\n%w", err)
	}
	return s.deleteAll(ctx, c, d, objects)
}

// errWaited ends a wait; requests have a time limit of their own.
var errWaited = errors.New("waited long enough")

func (s *settings) toDelete(c *connection, d deleteFlags, t target) ([]placed, error) {
	if t.kind == nil {
		objects, err := s.readObjects(d.files, c.namespace, d.namespace != "")
		slices.Reverse(objects)
		return objects, err
	}
	var objects []placed
	for _, name := range t.names {
		o := placed{Unstructured: &unstructured.Unstructured{Object: map[string]any{}}, kind: t.kind}
		o.SetName(name)
		if t.kind.Namespaced {
			o.SetNamespace(c.namespace)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// deleteAll asks for all deletions first, and then waits for those that take
// their time.
func (s *settings) deleteAll(ctx context.Context, c *connection, d deleteFlags, objects []placed) error {
	leaving := map[int]*metav1.PartialObjectMetadata{}
	index := -1
	err := s.each(c, objects, "deleted", func(o placed) error {
		index++
		object, err := c.delete(ctx, o, d.now)
		switch {
		case apierrors.IsNotFound(err) && d.ignoreMissing:
		case err != nil:
			return err
		case object == nil:
			fmt.Fprintf(s.io.Out, "%s deleted\n", o.title(c))
		case d.wait:
			leaving[index] = object
		default:
			fmt.Fprintf(s.io.Out, "%s terminating\n", o.title(c))
		}
		return nil
	})
	if d.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d.timeout, errWaited)
		defer cancel()
	}
	remain := 0
	for i, o := range objects {
		object := leaving[i]
		if object == nil {
			continue
		}
		if err := c.gone(ctx, o, object); err != nil {
			err = explainAPI(c.cfg, stillThere(ctx, c, o, object, err))
			if len(objects) == 1 {
				return err
			}
			remain++
			s.complain(err)
			continue
		}
		fmt.Fprintf(s.io.Out, "%s deleted\n", o.title(c))
	}
	if err == nil && remain > 0 {
		return fmt.Errorf("%d of %d objects are not gone yet", remain, len(objects))
	}
	return err
}

// delete an object. It returns the object if it goes on terminating, nil if it
// is gone.
func (c *connection) delete(ctx context.Context, o placed, now bool) (*metav1.PartialObjectMetadata, error) {
	options := metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}}
	if now {
		options.GracePeriodSeconds = new(int64)
	}
	body, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	req, err := c.request(http.MethodDelete, o.kind, o.GetNamespace())
	if err != nil {
		return nil, err
	}
	answer, err := perform(ctx, req.Name(o.GetName()).SetHeader("Content-Type", "application/json").Body(body))
	if err != nil {
		return nil, err
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(answer, &object); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotJSON, err)
	}
	if object.Kind == "Status" || object.DeletionTimestamp == nil {
		return nil, nil
	}
	return &object, nil
}

// gone waits until an object that is terminating no longer exists, or ctx ends.
func (c *connection) gone(ctx context.Context, o placed, object *metav1.PartialObjectMetadata) error {
	c = c.unhurried()
	// Its end may have come before the watch begins, so the watch begins with a
	// state in which it still exists.
	now, err := c.fetch(ctx, o)
	if apierrors.IsNotFound(err) || (err == nil && now.GetUID() != object.UID) {
		return nil
	}
	if err != nil {
		return err
	}
	request := func() (*rest.Request, error) { return c.request(http.MethodGet, o.kind, o.GetNamespace()) }
	t := target{kind: o.kind, names: []string{o.GetName()}}
	return follow(ctx, request, t, now.GetResourceVersion(), func(typ apiwatch.EventType, raw []byte) (bool, error) {
		var seen metav1.PartialObjectMetadata
		if err := json.Unmarshal(raw, &seen); err != nil {
			return false, fmt.Errorf("watch: %w", err)
		}
		return typ != apiwatch.Deleted && seen.UID == object.UID, nil
	})
}

// stillThere tells why an object is not gone yet.
func stillThere(ctx context.Context, c *connection, o placed, object *metav1.PartialObjectMetadata, err error) error {
	if ctx.Err() == nil {
		return fmt.Errorf("%s is terminating, and can't be followed: %w", o.title(c), err)
	}
	why := "interrupted"
	if errors.Is(context.Cause(ctx), errWaited) {
		why = "not waiting longer"
	}
	text := fmt.Sprintf("%s: %s: it is still terminating", o.title(c), why)
	if len(object.Finalizers) > 0 {
		text += ", held by the finalizers " + strings.Join(object.Finalizers, ", ")
	}
	return &hintError{err: errors.New(text), hint: "it will go by itself; wait longer with --timeout, not at all with --wait=false, or delete it again with --now"}
}
