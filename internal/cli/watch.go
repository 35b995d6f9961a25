package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

// watch shows what there is and then every change. When the server ends a
// stream, as it does from time to time, the next one goes on where it ended.
func (s *settings) watch(ctx context.Context, q *query) error {
	q.conn = q.conn.unhurried()
	out := &changes{out: s.io.Out, query: q}
	return follow(ctx, q.request, q.target, "", out.show)
}

// follow sends the events of a watch to show until that returns false or an
// error, or ctx ends. An empty version begins with what exists, as ADDED.
func follow(ctx context.Context, request func() (*rest.Request, error), t target, version string, show func(apiwatch.EventType, []byte) (bool, error)) error {
	for {
		req, err := request()
		if err != nil {
			return err
		}
		req.Param("watch", "true").Param("allowWatchBookmarks", "true")
		if version != "" {
			req.Param("resourceVersion", version)
		}
		if len(t.names) == 1 {
			req.Param("fieldSelector", "metadata.name="+t.names[0])
		}
		began := time.Now()
		more, err := followOnce(ctx, req, &version, show)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			version, more, err = "", true, nil // start again with a list
		}
		if err != nil || !more {
			return err
		}
		// A server that ends every stream at once is not to be stormed.
		if !backoff.Sleep(ctx, time.Second-time.Since(began)) {
			return ctx.Err()
		}
	}
}

// followOnce reads one stream to its end, and notes the version to go on from.
func followOnce(ctx context.Context, req *rest.Request, version *string, show func(apiwatch.EventType, []byte) (bool, error)) (more bool, err error) {
	body, err := req.Stream(ctx)
	if err != nil {
		return false, err
	}
	defer body.Close()
	// A read ends when the context does, whatever the server sends.
	stop := context.AfterFunc(ctx, func() { _ = body.Close() })
	defer stop()
	events := json.NewDecoder(body)
	for {
		var event metav1.WatchEvent
		if err := events.Decode(&event); err != nil {
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			return errors.Is(err, io.EOF), eofIsFine(err)
		}
		typ := apiwatch.EventType(event.Type)
		if typ == apiwatch.Error {
			var status metav1.Status
			if err := json.Unmarshal(event.Object.Raw, &status); err != nil {
				return false, fmt.Errorf("watch: %s", event.Object.Raw)
			}
			return false, &apierrors.StatusError{ErrStatus: status}
		}
		if seen := versionOf(event.Object.Raw); seen != "" {
			*version = seen
		}
		if typ == apiwatch.Bookmark {
			continue
		}
		if more, err := show(typ, event.Object.Raw); err != nil || !more {
			return false, err
		}
	}
}

func eofIsFine(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("watch: %w", err)
}

// versionOf an object, or of the object in a one-row table.
func versionOf(raw []byte) string {
	var object struct {
		Metadata metav1.ListMeta `json:"metadata"`
		Rows     []struct {
			Object metav1.PartialObjectMetadata `json:"object"`
		} `json:"rows"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return ""
	}
	if len(object.Rows) > 0 && object.Rows[len(object.Rows)-1].Object.ResourceVersion != "" {
		return object.Rows[len(object.Rows)-1].Object.ResourceVersion
	}
	return object.Metadata.ResourceVersion
}

// changes prints the events of a watch as they come.
type changes struct {
	out   io.Writer
	query *query
	// columns are sent with the first event only.
	columns []metav1.TableColumnDefinition
	widths  []int
}

func (c *changes) show(typ apiwatch.EventType, raw []byte) (bool, error) {
	if c.query.asTable() {
		return true, c.showRows(typ, raw)
	}
	raw, err := c.query.tidy(raw)
	if err != nil {
		return false, err
	}
	if c.query.flags.output == "yaml" {
		fmt.Fprintln(c.out, "---")
	}
	event, err := json.Marshal(map[string]json.RawMessage{"type": json.RawMessage(fmt.Sprintf("%q", typ)), "object": raw})
	if err != nil {
		return false, err
	}
	return true, printObject(c.out, event, c.query.flags.output)
}

func (c *changes) showRows(typ apiwatch.EventType, raw []byte) error {
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		return fmt.Errorf("the server's table can't be read: %w", err)
	}
	wide, withNamespace := c.query.flags.output == "wide", c.query.target.kind.Namespaced && c.query.flags.allNamespaces
	if c.columns == nil {
		c.columns = table.ColumnDefinitions
		c.printRow(append([]string{"EVENT"}, tableHead(c.columns, wide, withNamespace)...))
	}
	for _, row := range table.Rows {
		c.printRow(append([]string{string(typ)}, tableRow(c.columns, row, wide, withNamespace)...))
	}
	return nil
}

// printRow keeps to the widths of the rows before it, and widens them.
func (c *changes) printRow(cells []string) {
	var line bytes.Buffer
	for i, cell := range cells {
		if i == len(c.widths) {
			c.widths = append(c.widths, 6)
		}
		c.widths[i] = max(c.widths[i], len(cell)+3)
		fmt.Fprintf(&line, "%-*s", c.widths[i], cell)
	}
	fmt.Fprintln(c.out, strings.TrimRight(line.String(), " "))
}
