package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/proxima-mesh/proxima/internal/cli/describe"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

type describeFlags struct {
	namespace     string
	allNamespaces bool
	selector      string
}

func newDescribe(s *settings) *cobra.Command {
	var d describeFlags
	cmd := &cobra.Command{
		Use:     "describe KIND[,KIND…] [NAME…] | KIND/NAME…",
		GroupID: "objects",
		Short:   "Show the details of objects, and their effects",
		Long: `Describe reads an object and its related objects. Of a Service it shows the
addresses, the slices and each endpoint with its zone, its state and the reason
if it is not ready; of a Dataplane its conditions, its lease and the Services
that select it; of a Node its lease and the workloads on it. Recent events follow.`,
		Example: "  proxima describe service web\n  proxima describe nodes\n  proxima describe dataplanes -l app=web",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.describe(cmd.Context(), d, args)
		},
		ValidArgsFunction: s.completeTarget(-1),
	}
	f := cmd.Flags()
	addNamespaceFlag(f, &d.namespace)
	f.BoolVarP(&d.allNamespaces, "all-namespaces", "A", false, "all namespaces")
	f.StringVarP(&d.selector, "selector", "l", "", "labels to select by, as in app=web,tier!=db")
	return cmd
}

func (s *settings) describe(ctx context.Context, d describeFlags, args []string) error {
	targets, err := parseTargets(args)
	if err != nil {
		return err
	}
	if named(targets) && (d.selector != "" || d.allNamespaces) {
		return usagef("a name goes with neither -l nor -A")
	}
	selector, err := labels.Parse(d.selector)
	if err != nil {
		return &problem.Error{Code: problem.Usage, Err: usagef("-l %q: %w", d.selector, err), Hint: "write as in app=web,tier!=db"}
	}
	c, err := s.connect(d.namespace)
	if err != nil {
		return err
	}
	client, err := kubeclient.New(c.cfg, kind.All())
	if err != nil {
		return err
	}
	var all []described
	for _, t := range targets {
		namespace := c.namespace
		if d.allNamespaces || !t.kind.Namespaced {
			namespace = ""
		}
		keys, err := describedKeys(ctx, client, t, namespace, selector)
		if err != nil {
			return explainAPI(c.cfg, err)
		}
		if len(keys) == 0 {
			fmt.Fprintln(s.io.Err, nothingFound(t.kind, namespace))
		}
		for _, key := range keys {
			all = append(all, described{t.kind, key})
		}
	}
	return s.describeEach(ctx, c, client, all)
}

// described is one object that is to be described.
type described struct {
	kind *resource.Descriptor
	resource.Key
}

// describedKeys are those of the named objects, else of all that are selected.
func describedKeys(ctx context.Context, client resource.Client, t target, namespace string, selector labels.Selector) ([]resource.Key, error) {
	var keys []resource.Key
	for _, name := range t.names {
		keys = append(keys, resource.Key{Namespace: namespace, Name: name})
	}
	if len(keys) > 0 {
		return keys, nil
	}
	objects, _, err := client.List(ctx, t.kind, resource.ListOptions{Namespace: namespace, Labels: selector})
	for _, o := range objects {
		keys = append(keys, resource.KeyOf(o))
	}
	return keys, err
}

// describeEach goes on after an object that can't be read.
func (s *settings) describeEach(ctx context.Context, c *connection, client resource.Client, objects []described) error {
	d := describe.Describer{Reader: client, Events: c.eventsAbout, Now: time.Now()}
	failed := 0
	for i, o := range objects {
		if i > failed {
			fmt.Fprintf(s.io.Out, "\n---\n\n")
		}
		err := d.Describe(ctx, s.io.Out, o.kind, o.Key)
		if err == nil {
			continue
		}
		if explained := explainWay(c.cfg, err); explained != nil || len(objects) == 1 {
			return explainAPI(c.cfg, err)
		}
		failed++
		s.printError(fmt.Errorf("%s: %w", title(c, o.kind, o.Namespace, o.Name), explainAPI(c.cfg, err)))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d objects could not be described", failed, len(objects))
	}
	return nil
}

// eventsAbout an object.
func (c *connection) eventsAbout(ctx context.Context, about resource.Object, kindName string) ([]corev1.Event, error) {
	d := kind.Event
	req, err := c.request(http.MethodGet, d, about.GetNamespace())
	if err != nil {
		return nil, err
	}
	selector := fields.Set{"involvedObject.kind": kindName, "involvedObject.name": about.GetName()}
	body, err := perform(ctx, req.Param("fieldSelector", selector.String()))
	if err != nil {
		return nil, err
	}
	var list corev1.EventList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotJSON, err)
	}
	// One of the same name may have lived before.
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool {
		uid := e.InvolvedObject.UID
		return uid != "" && uid != about.GetUID() && string(uid) != about.GetName()
	}), nil
}
