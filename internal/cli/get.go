package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
)

type getFlags struct {
	namespace     string
	allNamespaces bool
	selector      string
	output        string
	watch         bool
	managedFields bool
	at            string
}

func newGet(s *settings) *cobra.Command {
	var g getFlags
	cmd := &cobra.Command{
		Use:     "get KIND[,KIND…] [NAME…] | KIND/NAME…",
		GroupID: "objects",
		Short:   "List objects, or show some",
		Example: "  proxima get services\n  proxima get services,dataplanes -l app=web\n  proxima get service/web dataplane/web-1\n  proxima get endpointslices -A -o wide\n  proxima get dataplane web-1 -o yaml\n  proxima get endpointslices -l kubernetes.io/service-name=web --watch\n  proxima get endpointslices --at 2h",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.get(cmd.Context(), g, args)
		},
		ValidArgsFunction: s.completeTarget(-1),
	}
	f := cmd.Flags()
	addNamespaceFlag(f, &g.namespace)
	f.BoolVarP(&g.allNamespaces, "all-namespaces", "A", false, "all namespaces")
	f.StringVarP(&g.selector, "selector", "l", "", "labels to select by, as in app=web,tier!=db")
	addOutputFlag(f, &g.output)
	f.BoolVarP(&g.watch, "watch", "w", false, "go on and show every change, until interrupted")
	f.BoolVar(&g.managedFields, "show-managed-fields", false, "with -o json or yaml: show who set which field")
	f.StringVar(&g.at, "at", "", "show objects as they were at "+momentHelp+"; ages are those of now")
	return cmd
}

func (s *settings) get(ctx context.Context, g getFlags, args []string) error {
	if err := checkFormat(g.output); err != nil {
		return err
	}
	if _, err := labels.Parse(g.selector); err != nil {
		return &problem.Error{Code: problem.Usage, Err: usagef("-l %q: %w", g.selector, err), Hint: "write as in app=web,tier!=db"}
	}
	targets, err := parseTargets(args)
	if err != nil {
		return err
	}
	if named(targets) && (g.selector != "" || g.allNamespaces) {
		return usagef("a name goes with neither -l nor -A")
	}
	if g.at != "" {
		if g.watch {
			return usagef("--at does not go with --watch: see \"proxima feed tail\"")
		}
		if err := checkMoment("at", g.at); err != nil {
			return err
		}
	}
	if g.watch && (len(targets) > 1 || len(targets[0].names) > 1) {
		return usagef("--watch takes one kind, and one name at most")
	}
	c, err := s.connect(g.namespace)
	if err != nil {
		return err
	}
	if g.watch {
		err = s.watch(ctx, &query{conn: c, flags: g, target: targets[0]})
	} else {
		err = s.list(ctx, c, g, targets)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // interrupted by the user
	}
	if g.at != "" {
		return explainFeed(c.cfg, err)
	}
	return explainAPI(c.cfg, err)
}

// query is the request of get.
type query struct {
	conn   *connection
	flags  getFlags
	target target
	// position of what was answered with --at.
	position string
}

func (q *query) asTable() bool { return q.flags.output == "table" || q.flags.output == "wide" }

// requested namespace; empty: all, or none.
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

// list prints the objects that targets name. Objects that are not found are reported;
// the others are still printed.
func (s *settings) list(ctx context.Context, c *connection, g getFlags, targets []target) error {
	requested, failed := 0, 0
	var bodies [][]byte // of json and yaml
	printed, position := false, ""
	for _, t := range targets {
		q := &query{conn: c, flags: g, target: t}
		found, err := q.answers(ctx, func(name string, err error) error {
			if len(targets) == 1 && len(t.names) == 1 || explainWay(c.cfg, err) != nil {
				return err
			}
			failed++
			s.printError(fmt.Errorf("%s: %w", title(c, t.kind, q.namespace(), name), explainAPI(c.cfg, err)))
			return nil
		})
		if err != nil {
			return err
		}
		if position == "" && q.position != "" {
			position = q.position
			fmt.Fprintf(s.io.Err, "As of %s (position %s)\n", g.at, position)
			g.at = position
		}
		requested += max(len(t.names), 1)
		if !q.asTable() {
			bodies = append(bodies, found...)
			continue
		}
		shown, err := s.printTables(q, found, len(targets) > 1, printed)
		if err != nil {
			return err
		}
		printed = printed || shown
	}
	if len(bodies) > 0 {
		if err := s.printBodies(bodies, g.output, len(targets) > 1 || len(targets[0].names) > 1); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d could not be shown", failed, requested)
	}
	return nil
}

// answers are those of the server: one for each name, or one list. An error goes
// to refused, which says whether it ends everything.
func (q *query) answers(ctx context.Context, refused func(name string, err error) error) ([][]byte, error) {
	names := q.target.names
	if len(names) == 0 {
		names = []string{""}
	}
	var found [][]byte
	for _, name := range names {
		body, err := q.body(ctx, name)
		if err == nil && !q.asTable() {
			body, err = q.tidy(body)
		}
		if err != nil {
			if name == "" {
				return nil, err
			}
			if err := refused(name, err); err != nil {
				return nil, err
			}
			continue
		}
		found = append(found, body)
	}
	return found, nil
}

// body of the answer about an object; an empty name is a list.
func (q *query) body(ctx context.Context, name string) ([]byte, error) {
	if q.flags.at != "" {
		body, position, err := q.bodyAt(ctx, name)
		if err == nil { // all that one command shows is of one moment
			q.position, q.flags.at = position, position
		}
		return body, err
	}
	req, err := q.request()
	if err != nil {
		return nil, err
	}
	if name != "" {
		req.Name(name)
	}
	return perform(ctx, req)
}

// printTables prints the rows of one kind as one table. With several kinds names
// say which kind they are of, and a blank line parts the tables.
func (s *settings) printTables(q *query, found [][]byte, several, again bool) (bool, error) {
	var all metav1.Table
	for _, body := range found {
		var table metav1.Table
		if err := json.Unmarshal(body, &table); err != nil {
			return false, fmt.Errorf("the server's table can't be read: %w", err)
		}
		all.ColumnDefinitions, all.Rows = table.ColumnDefinitions, append(all.Rows, table.Rows...)
	}
	if len(all.Rows) == 0 {
		if len(q.target.names) == 0 {
			fmt.Fprintln(s.io.Err, nothingFound(q.target.kind, q.namespace()))
		}
		return false, nil
	}
	if again {
		fmt.Fprintln(s.io.Out)
	}
	if several {
		for _, row := range all.Rows {
			for i, c := range all.ColumnDefinitions {
				if c.Format == "name" && i < len(row.Cells) {
					row.Cells[i] = fmt.Sprintf("%s/%v", q.target.kind.Singular, row.Cells[i])
				}
			}
		}
	}
	return true, printTable(s.io.Out, &all, q.flags.output == "wide", q.target.kind.Namespaced && q.flags.allNamespaces)
}

// printBodies prints one answer as it is, and several as one list.
func (s *settings) printBodies(bodies [][]byte, format string, several bool) error {
	if !several {
		return printObject(s.io.Out, bodies[0], format)
	}
	items := []json.RawMessage{}
	for _, body := range bodies {
		var list struct {
			APIVersion, Kind string
			Items            []map[string]any
		}
		if err := json.Unmarshal(body, &list); err != nil {
			return errors.Join(errNotJSON, err)
		}
		if list.Items == nil {
			if !strings.HasSuffix(list.Kind, "List") {
				items = append(items, body)
			}
			continue
		}
		for _, item := range list.Items {
			item["apiVersion"], item["kind"] = list.APIVersion, strings.TrimSuffix(list.Kind, "List")
			raw, err := json.Marshal(item)
			if err != nil {
				return err
			}
			items = append(items, raw)
		}
	}
	return printValue(s.io.Out, map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, format)
}

// tidy removes managedFields, unless the flags request them.
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
