package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/resource"
)

type getFlags struct {
	namespace     string
	allNamespaces bool
	selector      string
	output        string
	watch         bool
	managedFields bool
}

func newGet(s *settings) *cobra.Command {
	var g getFlags
	cmd := &cobra.Command{
		Use:     "get KIND [NAME]",
		GroupID: "objects",
		Short:   "List objects, or show one",
		Example: "  proxima get services\n  proxima get endpointslices -A -o wide\n  proxima get dataplane web-1 -o yaml\n  proxima get endpointslices -l kubernetes.io/service-name=web --watch",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.get(cmd.Context(), g, args)
		},
		ValidArgsFunction: s.completeTarget(1),
	}
	f := cmd.Flags()
	addNamespaceFlag(f, &g.namespace)
	f.BoolVarP(&g.allNamespaces, "all-namespaces", "A", false, "all namespaces")
	f.StringVarP(&g.selector, "selector", "l", "", "labels to select by, as in app=web,tier!=db")
	addOutputFlag(f, &g.output)
	f.BoolVarP(&g.watch, "watch", "w", false, "go on and show every change, until interrupted")
	f.BoolVar(&g.managedFields, "show-managed-fields", false, "with -o json or yaml: show who set which field")
	return cmd
}

func (s *settings) get(ctx context.Context, g getFlags, args []string) error {
	if err := checkFormat(g.output); err != nil {
		return err
	}
	if _, err := labels.Parse(g.selector); err != nil {
		return &hintError{err: usagef("-l %q: %w", g.selector, err), hint: "write as in app=web,tier!=db"}
	}
	t, err := parseTarget(args)
	if err != nil {
		return err
	}
	if len(t.names) > 1 {
		return usagef("get takes one name, not %d", len(t.names))
	}
	if len(t.names) == 1 && (g.selector != "" || g.allNamespaces) {
		return usagef("a name goes with neither -l nor -A")
	}
	c, err := s.connect(g.namespace)
	if err != nil {
		return err
	}
	q := query{conn: c, flags: g, target: t}
	if g.watch {
		err = s.watch(ctx, &q)
	} else {
		err = s.list(ctx, &q)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // interrupted, as was asked for
	}
	return explainAPI(c.cfg, err)
}

// query is what get asks for.
type query struct {
	conn   *connection
	flags  getFlags
	target target
}

func (q *query) asTable() bool { return q.flags.output == "table" || q.flags.output == "wide" }

// namespace asked for; empty: all, or none.
func (q *query) namespace() string {
	if q.flags.allNamespaces || !q.target.kind.Namespaced {
		return ""
	}
	return q.conn.namespace
}

func (q *query) request() (*rest.Request, error) {
	req, err := q.conn.request(http.MethodGet, q.target.kind, q.namespace())
	if err != nil {
		return nil, err
	}
	if q.flags.selector != "" {
		req.Param("labelSelector", q.flags.selector)
	}
	if q.asTable() {
		req.SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	}
	return req, nil
}

func (s *settings) list(ctx context.Context, q *query) error {
	req, err := q.request()
	if err != nil {
		return err
	}
	if len(q.target.names) == 1 {
		req.Name(q.target.names[0])
	}
	body, err := perform(ctx, req)
	if err != nil {
		return err
	}
	if !q.asTable() {
		if body, err = q.tidy(body); err != nil {
			return err
		}
		return printObject(s.io.Out, body, q.flags.output)
	}
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil {
		return fmt.Errorf("the server's table can't be read: %w", err)
	}
	if len(table.Rows) == 0 {
		fmt.Fprintln(s.io.Err, nothingFound(q.target.kind, q.namespace()))
		return nil
	}
	return printTable(s.io.Out, &table, q.flags.output == "wide", q.target.kind.Namespaced && q.flags.allNamespaces)
}

// tidy takes out who set which field, which few want to read.
func (q *query) tidy(body []byte) ([]byte, error) {
	if q.flags.managedFields {
		return body, nil
	}
	var content map[string]any
	if err := json.Unmarshal(body, &content); err != nil {
		return nil, errors.Join(errNotJSON, err)
	}
	dropManagedFields(content)
	if items, ok := content["items"].([]any); ok {
		for _, item := range items {
			if object, ok := item.(map[string]any); ok {
				dropManagedFields(object)
			}
		}
	}
	return json.Marshal(content)
}

func dropManagedFields(object map[string]any) {
	if meta, ok := object["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
	}
}

func nothingFound(d *resource.Descriptor, namespace string) string {
	if namespace == "" {
		return "No " + d.Resource + " found."
	}
	return fmt.Sprintf("No %s found in namespace %s.", d.Resource, namespace)
}

var errNotJSON = errors.New("the server's answer is not JSON")

func toYAML(body []byte) ([]byte, error) {
	out, err := yaml.JSONToYAML(body)
	if err != nil {
		return nil, errors.Join(errNotJSON, err)
	}
	return out, nil
}
