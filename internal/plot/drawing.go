package plot

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Drawing is the geometry of a picture. Lengths are in CSS pixels, from the upper left corner.
type Drawing struct {
	// Title says what it is.
	Title  string  `json:"title"`
	Width  float64 `json:"width"`
	Height float64 `json:"height"`
	// Frames are regions, or the panels of a chart; Areas are zones; Ribbons flows between them. Cells are flows, too, where there are
	// too many zones for ribbons. Lines are series.
	Frames  []Frame  `json:"frames,omitempty"`
	Areas   []Area   `json:"areas,omitempty"`
	Ribbons []Ribbon `json:"ribbons,omitempty"`
	Cells   []Cell   `json:"cells,omitempty"`
	Lines   []Line   `json:"lines,omitempty"`
	Labels  []Label  `json:"labels,omitempty"`
	// Rest sums up flows that are not drawn; nil: all are.
	Rest *Rest `json:"rest,omitempty"`
}

// Box is a rectangle.
type Box struct {
	X      float64 `json:"x"`
	Y      float64 `json:"y"`
	Width  float64 `json:"width"`
	Height float64 `json:"height"`
}

// Frame around what belongs together.
type Frame struct {
	Box
	Name string `json:"name"`
}

// Area of a zone: of its clients (Side left) or its endpoints (right).
type Area struct {
	Box
	Zone string `json:"zone"`
	Side string `json:"side"`
	// Text about it, for a tip.
	Text string `json:"text"`
}

// Flow between zones that a Ribbon or Cell shows, in connections per second or, if Guessed, in shares of the demand of Services.
type Flow struct {
	From     string  `json:"from"`
	To       string  `json:"to"`
	Planned  float64 `json:"planned"`
	Measured float64 `json:"measured,omitempty"`
	Guessed  bool    `json:"guessed,omitempty"`
	// Text about it, for a tip.
	Text string `json:"text"`
}

// value by which flows are ordered and drawn.
func (f *Flow) value() float64 { return math.Max(f.Planned, f.Measured) }

// Ribbon from (X1, Y1) to (X2, Y2), the middles of its ends. Planned is as wide as Width; Filled of it is measured, about its middle.
type Ribbon struct {
	Flow
	X1     float64 `json:"x1"`
	Y1     float64 `json:"y1"`
	X2     float64 `json:"x2"`
	Y2     float64 `json:"y2"`
	Width  float64 `json:"width"`
	Filled float64 `json:"filled,omitempty"`
}

// Cell of a matrix: rows are the zones of clients, columns those of endpoints.
type Cell struct {
	Box
	Flow
	// Shade from 0 to 1.
	Shade float64 `json:"shade"`
}

// Line through points, as x, y, x, y, …
type Line struct {
	Name string `json:"name"`
	// Color is a number from 0 to Colors-1.
	Color  int       `json:"color"`
	Points []float64 `json:"points"`
}

// Label is a text that begins, has its middle (Anchor middle) or ends (end) at a point of its base line.
type Label struct {
	X      float64 `json:"x"`
	Y      float64 `json:"y"`
	Text   string  `json:"text"`
	Anchor string  `json:"anchor,omitempty"`
	// Style: title, name or "" for small print.
	Style string `json:"style,omitempty"`
	// Color of a Line that it names, counted from 1; 0: none.
	Color int `json:"color,omitempty"`
	// Room is the width that it was fitted into.
	Room float64 `json:"room"`
}

// Rest of the flows.
type Rest struct {
	Flows int     `json:"flows"`
	Sum   float64 `json:"sum"`
}

// Colors of lines.
const Colors = 12

// Sizes of texts.
const (
	smallSize = 11.0
	nameSize  = 13.0
	titleSize = 16.0
)

func sizeOf(style string) float64 {
	switch style {
	case "title":
		return titleSize
	case "name":
		return nameSize
	}
	return smallSize
}

// label adds a text, cut so that it fits into a width.
func (d *Drawing) label(x, y, room float64, style, anchor, text string) *Label {
	d.Labels = append(d.Labels, Label{X: x, Y: y, Text: fit(text, room, sizeOf(style)), Style: style, Anchor: anchor, Room: room})
	return &d.Labels[len(d.Labels)-1]
}

// widthOf a text at most, in a common font without serifs: fonts differ, so it is a bound, not a measure.
func widthOf(text string, size float64) float64 {
	var em float64
	for _, r := range text {
		em += widthOfRune(r)
	}
	return em * size
}

func widthOfRune(r rune) float64 {
	switch {
	case strings.ContainsRune("iljtf.,:;'|!()[]/ ", r):
		return 0.42
	case r >= 'A' && r <= 'Z', strings.ContainsRune("mwMW@%→…", r):
		return 1
	case r < utf8.RuneSelf:
		return 0.66
	}
	return 1.2
}

// fit cuts a text.
func fit(text string, room, size float64) string {
	text = clean(text, maxText)
	if widthOf(text, size) <= room {
		return text
	}
	left := room - widthOf("…", size)
	for i, r := range text {
		if left -= widthOfRune(r) * size; left < 0 {
			if i == 0 {
				return ""
			}
			return text[:i] + "…"
		}
	}
	return text
}

// maxText bounds what is kept of a text before it is fitted, in characters.
const maxText = 300

// clean a text of what XML 1.0 cannot contain (section 2.2), and cut it.
func clean(text string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range text {
		if n++; n > most {
			b.WriteString("…")
			break
		}
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			r = ' '
		case r < 0x20, r >= 0x7f && r < 0xa0, r == 0xfffe, r == 0xffff:
			r = utf8.RuneError
		}
		b.WriteRune(r)
	}
	return b.String()
}

// number for people.
func number(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x >= 1e6:
		return fmt.Sprintf("%.3gM", x/1e6)
	case x >= 1e4:
		return fmt.Sprintf("%.3gk", x/1e3)
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 0, 64) + " %" }

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
