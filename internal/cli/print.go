package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// printTable writes a server-side table as kubectl does. Columns with a
// priority are for wide output only.
func printTable(w io.Writer, table *metav1.Table, wide, withNamespace bool) error {
	tw := tabwriter.NewWriter(w, 6, 4, 3, ' ', 0)
	var row []string
	if withNamespace {
		row = append(row, "NAMESPACE")
	}
	shown := make([]bool, len(table.ColumnDefinitions))
	for i, c := range table.ColumnDefinitions {
		if shown[i] = wide || c.Priority == 0; shown[i] {
			row = append(row, strings.ToUpper(c.Name))
		}
	}
	fmt.Fprintln(tw, strings.Join(row, "\t"))
	for _, r := range table.Rows {
		row = row[:0]
		if withNamespace {
			row = append(row, namespaceOf(r))
		}
		for i, cell := range r.Cells {
			if i < len(shown) && shown[i] {
				row = append(row, oneLine(cell))
			}
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

func namespaceOf(r metav1.TableRow) string {
	var partial metav1.PartialObjectMetadata
	if err := json.Unmarshal(r.Object.Raw, &partial); err != nil {
		return "<unknown>"
	}
	return partial.Namespace
}

// oneLine keeps a cell in its row, whatever an object's author wrote into it:
// control characters could otherwise drive the reader's terminal.
func oneLine(cell any) string {
	if cell == nil {
		return "<none>"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, fmt.Sprint(cell))
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
