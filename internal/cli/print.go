package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/cli/describe"
)

// printTable writes a server-side table as kubectl does. Columns with a
// priority are for wide output only.
func printTable(w io.Writer, table *metav1.Table, wide, withNamespace bool) error {
	tw := tabwriter.NewWriter(w, 6, 4, 3, ' ', 0)
	fmt.Fprintln(tw, strings.Join(tableHead(table.ColumnDefinitions, wide, withNamespace), "\t"))
	for _, r := range table.Rows {
		fmt.Fprintln(tw, strings.Join(tableRow(table.ColumnDefinitions, r, wide, withNamespace), "\t"))
	}
	return tw.Flush()
}

func tableHead(columns []metav1.TableColumnDefinition, wide, withNamespace bool) []string {
	var head []string
	if withNamespace {
		head = append(head, "NAMESPACE")
	}
	for _, c := range columns {
		if wide || c.Priority == 0 {
			head = append(head, strings.ToUpper(c.Name))
		}
	}
	return head
}

func tableRow(columns []metav1.TableColumnDefinition, r metav1.TableRow, wide, withNamespace bool) []string {
	var row []string
	if withNamespace {
		row = append(row, namespaceOf(r))
	}
	for i, cell := range r.Cells {
		if i < len(columns) && (wide || columns[i].Priority == 0) {
			row = append(row, oneLine(cell))
		}
	}
	return row
}

func namespaceOf(r metav1.TableRow) string {
	var partial metav1.PartialObjectMetadata
	if err := json.Unmarshal(r.Object.Raw, &partial); err != nil {
		return "<unknown>"
	}
	return partial.Namespace
}

// oneLine is a cell as text that stays in its row.
func oneLine(cell any) string {
	if cell == nil {
		return "<none>"
	}
	return describe.OneLine(fmt.Sprint(cell))
}

// printObject writes a JSON answer as json (indented) or yaml.
func printObject(w io.Writer, body []byte, format string) error {
	if format == "yaml" {
		out, err := toYAML(body)
		if err != nil {
			return err
		}
		_, err = w.Write(out)
		return err
	}
	var buf bytes.Buffer
	if err := json.Indent(&buf, body, "", "    "); err != nil {
		return fmt.Errorf("%w: %w", errNotJSON, err)
	}
	buf.WriteByte('\n')
	_, err := buf.WriteTo(w)
	return err
}

// printValue writes a Go value as json or yaml.
func printValue(w io.Writer, value any, format string) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return printObject(w, body, format)
}

// prefixed is s with a prefix, or nothing if s is empty.
func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
