package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

const (
	// topEvery is the time between two questions of what is not followed; topFrame that between two of what is.
	topEvery = 2 * time.Second
	topFrame = 500 * time.Millisecond
	// topLines are those of the screen that are not rows: title, sum, header, and the keys.
	topLines = 4
)

// topChanged: what is followed has changed.
type topChanged struct{}

// topTick: it is time to ask again.
type topTick struct{}

// topAnswer to a question.
type topAnswer struct {
	table    *topTable
	err      error
	question int
}

// topModel is the screen of top. It is a bubbletea Model: of one goroutine, and changed by Update alone.
type topModel struct {
	ctx    context.Context
	source *topSource
	query  topQuery
	table  *topTable
	err    error

	width, height int
	// question that was asked last; asking: its answer is outstanding. dirty: there is news since it was asked.
	question      int
	asking, dirty bool
	asked         time.Time
	typing        bool
}

func newTopModel(ctx context.Context, source *topSource, query topQuery) *topModel {
	query.first = 0
	return &topModel{ctx: ctx, source: source, query: query, width: 80, height: 24}
}

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return tea.Batch(m.ask(), tick(topFrame)) }

func tick(d time.Duration) tea.Cmd {
	return tea.Tick(d, func(time.Time) tea.Msg { return topTick{} })
}

// ask for what is to be seen.
func (m *topModel) ask() tea.Cmd {
	m.question++
	m.asking, m.dirty, m.asked = true, false, time.Now()
	q, n := m.query, m.question
	q.limit = max(1, m.height-topLines)
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, 10*time.Second)
		defer cancel()
		table, err := m.source.fetch(ctx, q)
		return topAnswer{table, err, n}
	}
}

// Update implements tea.Model.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		return m, m.ask()
	case topChanged:
		m.dirty = m.dirty || m.query.view == "zones"
	case topTick:
		if !m.asking && (m.dirty || time.Since(m.asked) >= topEvery) {
			return m, tea.Batch(m.ask(), tick(topFrame))
		}
		return m, tick(topFrame)
	case topAnswer:
		if msg.question != m.question {
			return m, nil // of another view, order or size
		}
		m.asking = false
		if m.err = msg.err; m.err == nil {
			m.table = msg.table
			m.query.first = min(m.query.first, max(0, m.table.total-1))
		}
	case tea.KeyPressMsg:
		return m.key(msg)
	}
	return m, nil
}

func (m *topModel) key(k tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	name := k.String()
	if name == "ctrl+c" {
		return m, tea.Quit
	}
	if m.typing {
		return m.filter(name, k.Text)
	}
	rows := max(1, m.height-topLines)
	last := 0
	if m.table != nil {
		last = max(0, m.table.total-rows)
	}
	was := m.query
	switch name {
	case "q", "esc":
		if name == "esc" && m.query.filter != "" {
			m.query.filter, m.query.first = "", 0
			break
		}
		return m, tea.Quit
	case "1", "2", "3", "4":
		m.show(topViews[name[0]-'1'])
	case "tab":
		m.show(topViews[(slices.Index(topViews, m.query.view)+1)%len(topViews)])
	case "s":
		sorts := topSorts[m.query.view]
		m.query.sort = sorts[(slices.Index(sorts, m.query.sort)+1)%len(sorts)]
	case "r":
		m.query.reverse = !m.query.reverse
	case "/":
		m.typing = true
	case "up", "k":
		m.query.first = max(0, m.query.first-1)
	case "down", "j":
		m.query.first = min(last, m.query.first+1)
	case "pgup":
		m.query.first = max(0, m.query.first-rows)
	case "pgdown", "space":
		m.query.first = min(last, m.query.first+rows)
	case "home", "g":
		m.query.first = 0
	case "end", "G":
		m.query.first = last
	}
	if m.query == was {
		return m, nil
	}
	return m, m.ask()
}

// show another view.
func (m *topModel) show(view string) {
	if m.query.view != view {
		m.query = topQuery{view: view, sort: topSorts[view][0]}
		m.table, m.err = nil, nil
	}
}

// filter takes a key while one is typed.
func (m *topModel) filter(name, text string) (tea.Model, tea.Cmd) {
	switch {
	case name == "enter":
		m.typing = false
		return m, nil
	case name == "esc":
		m.typing, m.query.filter = false, ""
	case name == "backspace":
		if r := []rune(m.query.filter); len(r) > 0 {
			m.query.filter = string(r[:len(r)-1])
		}
	case text != "" && len(m.query.filter) < 100:
		m.query.filter += text
	default:
		return m, nil
	}
	m.query.first = 0
	return m, m.ask()
}

// View implements tea.Model.
func (m *topModel) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "proxima top"
	return v
}

// Styles of a terminal (ECMA-48, SGR). Where colours are off, the renderer leaves the colour out.
const (
	styleHead = "\x1b[1m"
	styleRed  = "\x1b[31m"
	styleBar  = "\x1b[7m"
	styleOff  = "\x1b[m"
)

// lines of the screen, none wider than it, and as many as it has at most.
func (m *topModel) lines() []string {
	var tabs []string
	for i, view := range topViews {
		tab := fmt.Sprintf(" %d %s ", i+1, view)
		if view == m.query.view {
			tab = styleBar + tab + styleOff
		}
		tabs = append(tabs, tab)
	}
	out := []string{m.cut(strings.Join(tabs, " "))}
	switch {
	case m.err != nil:
		out = append(out, styleRed+m.cut(clean(m.err.Error()))+styleOff)
	case m.table != nil && m.table.partial != "":
		out = append(out, m.cut(clean(m.table.head+"; "+m.table.partial)))
	case m.table != nil:
		out = append(out, m.cut(clean(m.table.head)))
	default:
		out = append(out, "loading …")
	}
	if m.table != nil {
		widths := m.widths()
		out = append(out, styleHead+m.row(m.table.columns, widths)+styleOff)
		for _, row := range m.table.rows[:min(len(m.table.rows), max(0, m.height-topLines))] {
			out = append(out, m.row(row, widths))
		}
	}
	for len(out) < m.height-1 {
		out = append(out, "")
	}
	return append(out[:min(len(out), max(1, m.height-1))], m.cut(m.foot()))
}

// foot has the state of the view, and the keys.
func (m *topModel) foot() string {
	if m.typing {
		return "filter: " + clean(m.query.filter) + "_   (enter keeps it, esc clears it)"
	}
	parts := []string{"by " + m.query.sort}
	if m.query.reverse {
		parts[0] += ", reversed"
	}
	if m.query.filter != "" {
		parts = append(parts, "filter "+clean(m.query.filter))
	}
	if t := m.table; t != nil {
		if len(t.rows) > 0 {
			parts = append(parts, fmt.Sprintf("%d–%d of %d", t.first+1, t.first+len(t.rows), t.total))
		}
		if age := time.Since(t.at); age > 3*topEvery && m.query.view != "zones" || age > streamDead {
			parts = append(parts, fmt.Sprintf("as of %.0f s ago", age.Seconds()))
		}
	}
	return strings.Join(parts, " · ") + "   s sort  r reverse  / filter  tab view  q quit"
}

// cut a line to the width of the screen.
func (m *topModel) cut(line string) string { return ansi.Truncate(line, m.width, "…") }

// widths of the columns: what they need. Where that is too much, some are left out (0), and then the widest gets less.
func (m *topModel) widths() []int {
	const gap = 2 // as in row
	widths := make([]int, len(m.table.columns))
	sum := 0
	for i, name := range m.table.columns {
		widths[i] = ansi.StringWidth(name)
		for _, row := range m.table.rows {
			widths[i] = max(widths[i], ansi.StringWidth(clean(row[i])))
		}
		sum += widths[i] + gap
	}
	for _, name := range topSpare[m.query.view] {
		if i := slices.Index(m.table.columns, name); i >= 0 && sum-gap > m.width {
			sum -= widths[i] + gap
			widths[i] = 0
		}
	}
	for sum-gap > m.width {
		widest := 0
		for i := range widths {
			if widths[i] > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= 8 {
			break // columns at the right are cut off
		}
		widths[widest]--
		sum--
	}
	return widths
}

func (m *topModel) row(cells []string, widths []int) string {
	var b strings.Builder
	for i, cell := range cells {
		if widths[i] == 0 {
			continue
		}
		cell = ansi.Truncate(clean(cell), widths[i], "…")
		b.WriteString(cell)
		if i < len(cells)-1 {
			b.WriteString(strings.Repeat(" ", widths[i]-ansi.StringWidth(cell)+2))
		}
	}
	return m.cut(b.String())
}
