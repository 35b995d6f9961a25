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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
)

type deleteFlags struct {
	namespace     string
	files         []string
	wait          bool
	timeout       time.Duration
	now           bool
	ignoreMissing bool
	selector      string
	all           bool
	cascade       string
	dryRun        string
}

func newDelete(s *settings) *cobra.Command {
	var d deleteFlags
	cmd := &cobra.Command{
		Use:     "delete KIND[,KIND…] NAME… | KIND/NAME… | KIND[,KIND…] -l SELECTOR|--all | -f FILE|DIR|-",
		GroupID: "objects",
		Short:   "Delete objects",
		Long: `Delete deletes objects, and waits until they are gone. A Dataplane or a Pod is
terminating until its connections had time to end; with --now there is no such
time. With -f, the objects of files are deleted, the last one first.
Objects that name a deleted one as their owner are deleted after it, in the
background; with --cascade=foreground before it, with --cascade=orphan they stay.`,
		Example: "  proxima delete service web\n  proxima delete service/web dataplane/web-1\n  proxima delete dataplanes,services -l app=web\n  proxima delete dataplane web-1 web-2 --now\n  proxima delete -f deploy/ --ignore-not-found",
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
	f.StringVarP(&d.selector, "selector", "l", "", "delete the objects of the kind with these labels, as in app=web,tier!=db")
	f.BoolVar(&d.all, "all", false, "delete all objects of the kind in the namespace")
	f.StringVar(&d.cascade, "cascade", "background", "what becomes of objects that it owns: background, foreground or orphan")
	f.StringVar(&d.dryRun, "dry-run", "none", "none; or server: let the server check everything and store nothing")
	return cmd
}

func addFilesFlag(f *pflag.FlagSet, files *[]string) {
	f.StringArrayVarP(files, "filename", "f", nil, "file or directory of YAML or JSON, or - for standard input; may be repeated")
}

func (s *settings) delete(ctx context.Context, d deleteFlags, args []string) error {
	switch {
	case len(args) == 0 && (d.all || d.selector != ""):
		return usagef("--all and -l go with a KIND")
	case len(args) == 0 && len(d.files) == 0:
		return usagef("say what to delete: KIND NAME…, or -f FILE")
	case len(args) > 0 && len(d.files) > 0:
		return usagef("give KIND NAME… or -f, not both")
	case d.dryRun != "none" && d.dryRun != "server":
		return usagef("--dry-run %q: choose none or server", d.dryRun)
	case d.timeout < 0:
		return usagef("--timeout %s: must not be negative", d.timeout)
	}
	if _, ok := cascades[d.cascade]; !ok {
		return usagef("--cascade %q: choose background, foreground or orphan", d.cascade)
	}
	targets, err := d.targets(args)
	if err != nil {
		return err
	}
	c, err := s.connect(d.namespace)
	if err != nil {
		return err
	}
	objects, err := s.toDelete(ctx, c, d, targets)
	if err != nil {
		return fmt.Errorf("nothing was deleted:\n%w", explainAPI(c.cfg, err))
	}
	return s.deleteAll(ctx, c, d, objects)
}

// cascades are the values of --cascade.
var cascades = map[string]metav1.DeletionPropagation{
	"background": metav1.DeletePropagationBackground,
	"foreground": metav1.DeletePropagationForeground,
	"orphan":     metav1.DeletePropagationOrphan,
}

// targets of the arguments. None of them stands for all of a kind unless --all or
// -l says so.
func (d deleteFlags) targets(args []string) ([]target, error) {
	many := d.all || d.selector != ""
	switch {
	case len(args) == 0:
		return nil, nil
	case d.all && d.selector != "":
		return nil, usagef("give --all or -l, not both")
	}
	if _, err := labels.Parse(d.selector); err != nil {
		return nil, &problem.Error{Code: problem.Usage, Err: usagef("-l %q: %w", d.selector, err), Hint: "write as in app=web,tier!=db"}
	}
	targets, err := parseTargets(args)
	if err != nil {
		return nil, err
	}
	if t := targets[0]; len(t.names) == 0 && !many {
		return nil, usagef("which %s? name them, as in: delete %s NAME…; or give -l SELECTOR or --all", t.kind.Resource, t.kind.Singular)
	}
	if named(targets) && many {
		return nil, usagef("a name goes with neither -l nor --all")
	}
	return targets, nil
}

// errWaited ends a wait; requests have a time limit of their own.
var errWaited = errors.New("waited long enough")

func (s *settings) toDelete(ctx context.Context, c *connection, d deleteFlags, targets []target) ([]placed, error) {
	if targets == nil {
		objects, err := s.readObjects(d.files, c.namespace, d.namespace != "")
		slices.Reverse(objects)
		return objects, err
	}
	var objects []placed
	for _, t := range targets {
		names := t.names
		if len(names) == 0 {
			var err error
			if names, err = c.selected(ctx, t.kind, d.selector); err != nil {
				return nil, err
			}
			if len(names) == 0 {
				namespace := ""
				if t.kind.Namespaced {
					namespace = c.namespace
				}
				fmt.Fprintln(s.io.Err, nothingFound(t.kind, namespace))
			}
		}
		for _, name := range names {
			o := placed{Unstructured: &unstructured.Unstructured{Object: map[string]any{}}, kind: t.kind}
			o.SetName(name)
			if t.kind.Namespaced {
				o.SetNamespace(c.namespace)
			}
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// selected are the names of all objects of a kind that a selector selects, in
// the namespace in use.
func (c *connection) selected(ctx context.Context, d *resource.Descriptor, selector string) ([]string, error) {
	req, err := c.request(http.MethodGet, d, c.namespace)
	if err != nil {
		return nil, err
	}
	if selector != "" {
		req.Param("labelSelector", selector)
	}
	body, err := perform(ctx, req.SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"))
	if err != nil {
		return nil, err
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotJSON, err)
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	return names, nil
}

// deleteAll requests all deletions first, and then waits for those that do not
// finish at once.
func (s *settings) deleteAll(ctx context.Context, c *connection, d deleteFlags, objects []placed) error {
	leaving := map[int]*metav1.PartialObjectMetadata{}
	index := -1
	err := s.each(c, objects, "deleted", func(o placed) error {
		index++
		object, err := c.delete(ctx, o, d)
		switch {
		case apierrors.IsNotFound(err) && d.ignoreMissing:
		case err != nil:
			return err
		case d.dryRun == "server":
			fmt.Fprintf(s.io.Out, "%s deleted (dry run)\n", o.title(c))
		case object == nil:
			fmt.Fprintf(s.io.Out, "%s deleted\n", o.title(c))
			s.explainDeletion(o)
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
			s.printError(err)
			continue
		}
		fmt.Fprintf(s.io.Out, "%s deleted\n", o.title(c))
	}
	if err == nil && remain > 0 {
		return fmt.Errorf("%d of %d objects are not gone yet", remain, len(objects))
	}
	return err
}

// explainDeletion says what goes with an object where that is not plain.
func (s *settings) explainDeletion(o placed) {
	if o.kind.GVK == corev1.SchemeGroupVersion.WithKind("Node") {
		fmt.Fprintf(s.io.Err, "the credentials of node %s are refused from now on, and its streams end within 5 seconds; "+
			"to let the machine back in: proxima token create --kind node --name %s\n", o.GetName(), o.GetName())
	}
}

// delete an object. It returns the object if it goes on terminating, nil if it
// is gone.
func (c *connection) delete(ctx context.Context, o placed, d deleteFlags) (*metav1.PartialObjectMetadata, error) {
	cascade := cascades[d.cascade]
	options := metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, PropagationPolicy: &cascade}
	if d.dryRun == "server" {
		options.DryRun = []string{metav1.DryRunAll}
	}
	if d.now {
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

// stillThere reports why an object is not gone yet.
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
	return &problem.Error{
		Code: problem.DeletionPending,
		Err:  errors.New(text),
		Hint: "it will go by itself; wait longer with --timeout, not at all with --wait=false, or delete it again with --now",
	}
}
