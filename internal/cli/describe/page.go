package describe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// page collects the text: fields first, then sections, then notes on missing
// information.
type page struct {
	now      time.Time
	fields   strings.Builder
	sections strings.Builder
	notes    []string
}

// field is one line; fields are aligned with each other.
func (p *page) field(name, value string) {
	fmt.Fprintf(&p.fields, "%s:\t%s\n", name, OneLine(value))
}

// fieldIf is field, for values that are not there for every object.
func (p *page) fieldIf(name, value string) {
	if value != "" {
		p.field(name, value)
	}
}

// pairs, one a line, by key.
func (p *page) pairs(name string, pairs map[string]string) {
	name += ":"
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		fmt.Fprintf(&p.fields, "%s\t%s\n", name, OneLine(key+"="+pairs[key]))
		name = ""
	}
}

// table is a section; without rows it is left out.
func (p *page) table(title string, head []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(&p.sections, "\n%s\n", title)
	w := tabwriter.NewWriter(&p.sections, 0, 4, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = OneLine(cell)
		}
		fmt.Fprintln(w, "  "+strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	_ = w.Flush() // into memory
}

// block of text that keeps its lines.
func (p *page) block(text string) {
	p.sections.WriteByte('\n')
	for line := range strings.Lines(text) {
		p.sections.WriteString(OneLine(strings.TrimSuffix(line, "\n")) + "\n")
	}
}

// note adds a remark that the fields do not show.
func (p *page) note(format string, args ...any) {
	p.notes = append(p.notes, OneLine(fmt.Sprintf(format, args...)))
}

func (p *page) String() string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 4, 3, ' ', 0)
	fmt.Fprint(w, p.fields.String())
	_ = w.Flush() // into memory
	out.WriteString(p.sections.String())
	if len(p.notes) > 0 {
		out.WriteString("\nNotes\n")
		for _, n := range p.notes {
			out.WriteString("  - " + n + "\n")
		}
	}
	return out.String()
}

// OneLine keeps a value in its line, whatever an object's author wrote into it:
// control characters could otherwise drive the reader's terminal.
func OneLine(value string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, value)
}
