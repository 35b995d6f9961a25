package plot

import (
	"bytes"
	"encoding/xml"
	"strconv"
)

// style of all drawings. Colors follow the viewer's preference of a light or dark scheme; lines are those of Okabe and Ito, made
// lighter in the dark, and then others.
const style = `svg{color-scheme:light dark;background:#fff;font-family:system-ui,"DejaVu Sans",sans-serif}` +
	`text{fill:#1f2933;font-size:11px;unicode-bidi:isolate;white-space:pre}` +
	`text.name{font-size:13px;font-weight:600}text.title{font-size:16px;font-weight:600}` +
	`.frame{fill:none;stroke:#9aa5b1;stroke-width:1}.area{fill:#52606d}` +
	`.plan{fill:none;stroke-width:1}.home.plan{stroke:#0b7a5b}.away.plan{stroke:#b45309}` +
	`.home.fill{fill:#0b7a5b;fill-opacity:.55}.away.fill{fill:#d97706;fill-opacity:.55}` +
	`.home.wash{fill:#0b7a5b;fill-opacity:.1}.away.wash{fill:#d97706;fill-opacity:.1}` +
	`.home.cell{fill:#0b7a5b}.away.cell{fill:#c2410c}.line{fill:none;stroke-width:1.5}.hatch{stroke:#52606d;stroke-width:1.5}` +
	`.c0{stroke:#0072b2}.c1{stroke:#d55e00}.c2{stroke:#009e73}.c3{stroke:#cc79a7}.c4{stroke:#8a6d00}.c5{stroke:#3a9bd9}` +
	`.c6{stroke:#7a3e9d}.c7{stroke:#5b5b5b}.c8{stroke:#b00020}.c9{stroke:#2f6f3e}.c10{stroke:#a0522d}.c11{stroke:#008b8b}` +
	`@media(prefers-color-scheme:dark){svg{background:#14181d}text{fill:#e4e7eb}.frame{stroke:#52606d}.area{fill:#9aa5b1}` +
	`.home.plan{stroke:#34d399}.away.plan{stroke:#fbbf24}.home.fill,.home.wash,.home.cell{fill:#34d399}.away.fill,.away.wash,.away.cell{fill:#f59e0b}.hatch{stroke:#9aa5b1}` +
	`.c0{stroke:#56b4e9}.c1{stroke:#ff8c42}.c2{stroke:#2dd4a7}.c3{stroke:#f0a6ca}.c4{stroke:#e6c229}.c5{stroke:#9bd1ff}` +
	`.c6{stroke:#c39bd3}.c7{stroke:#c0c0c0}.c8{stroke:#ff6b6b}.c9{stroke:#8fd19e}.c10{stroke:#d9a27a}.c11{stroke:#5fd3d3}}`

// SVG of a drawing. Drawings that are equal have the same bytes.
func (d *Drawing) SVG() []byte {
	w := &writer{}
	w.raw(`<svg xmlns="http://www.w3.org/2000/svg" width="`, num(d.Width), `" height="`, num(d.Height), `" viewBox="0 0 `, num(d.Width), ` `, num(d.Height), `" role="img">`)
	w.raw("\n<title>")
	w.text(d.Title)
	w.raw("</title>\n<style>", style, "</style>\n")
	w.raw(`<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="hatch" d="M0 0V6"/></pattern></defs>`, "\n")
	for i := range d.Cells {
		w.cell(&d.Cells[i])
	}
	for i := range d.Frames {
		w.rect("frame", &d.Frames[i].Box, "", d.Frames[i].Name)
	}
	for i := range d.Ribbons {
		w.ribbon(&d.Ribbons[i])
	}
	for i := range d.Areas {
		w.rect("area", &d.Areas[i].Box, "", d.Areas[i].Text)
	}
	for i := range d.Lines {
		w.line(&d.Lines[i])
	}
	for i := range d.Labels {
		w.label(&d.Labels[i])
	}
	w.raw("</svg>\n")
	return w.b.Bytes()
}

// num is a length with at most two digits behind the point.
func num(x float64) string {
	s := strconv.FormatFloat(x, 'f', 2, 64)
	for s[len(s)-1] == '0' {
		s = s[:len(s)-1]
	}
	if s[len(s)-1] == '.' {
		s = s[:len(s)-1]
	}
	if s == "-0" {
		return "0"
	}
	return s
}

type writer struct{ b bytes.Buffer }

func (w *writer) raw(all ...string) {
	for _, s := range all {
		w.b.WriteString(s)
	}
}

func (w *writer) text(s string) { _ = xml.EscapeText(&w.b, []byte(s)) } // a Buffer takes all

// tip ends an element with a title, which viewers show under the pointer.
func (w *writer) tip(element, text string) {
	if text == "" {
		w.raw("/>\n")
		return
	}
	w.raw("><title>")
	w.text(text)
	w.raw("</title></", element, ">\n")
}

func (w *writer) rect(class string, b *Box, more, tip string) {
	w.raw(`<rect class="`, class, `" x="`, num(b.X), `" y="`, num(b.Y), `" width="`, num(b.Width), `" height="`, num(b.Height), `"`, more)
	w.tip("rect", tip)
}

// way of a flow: it stays in its zone, or leaves it.
func (f *Flow) way() string {
	if f.From == f.To {
		return "home"
	}
	return "away"
}

func (w *writer) cell(c *Cell) {
	opacity := ` fill-opacity="` + num(0.08+0.92*c.Shade) + `"`
	w.rect(c.way()+" cell", &c.Box, opacity, c.Text)
	if c.Guessed {
		w.rect("", &c.Box, ` fill="url(#hatch)"`, c.Text)
	}
}

// ribbon: planned as an outline with a wash, measured filled, or hatched if it is guessed.
func (w *writer) ribbon(r *Ribbon) {
	w.raw("<g>")
	w.raw("<title>")
	w.text(r.Text)
	w.raw("</title>")
	if r.Planned > 0 {
		w.band(r, r.Width, r.way()+" wash", "")
	}
	if r.Filled > 0 {
		w.band(r, r.Filled, r.way()+" fill", "")
	}
	if r.Guessed {
		w.band(r, r.Width, "", ` fill="url(#hatch)"`)
	}
	if r.Planned > 0 {
		w.band(r, r.Width, r.way()+" plan", "")
	}
	w.raw("</g>\n")
}

// band between two vertical ends, with the same width all along.
func (w *writer) band(r *Ribbon, wide float64, class, more string) {
	middle := num((r.X1 + r.X2) / 2)
	h := wide / 2
	if class != "" {
		class = ` class="` + class + `"`
	}
	w.raw(`<path`, class, more, ` d="M`, num(r.X1), ` `, num(r.Y1-h), `C`, middle, ` `, num(r.Y1-h), ` `, middle, ` `, num(r.Y2-h), ` `, num(r.X2), ` `, num(r.Y2-h),
		`V`, num(r.Y2+h), `C`, middle, ` `, num(r.Y2+h), ` `, middle, ` `, num(r.Y1+h), ` `, num(r.X1), ` `, num(r.Y1+h), `Z"/>`)
}

func (w *writer) line(l *Line) {
	w.raw(`<polyline class="line c`, strconv.Itoa(l.Color), `" points="`)
	for i := 0; i+1 < len(l.Points); i += 2 {
		if i > 0 {
			w.raw(" ")
		}
		w.raw(num(l.Points[i]), ",", num(l.Points[i+1]))
	}
	w.raw(`"`)
	w.tip("polyline", l.Name)
}

func (w *writer) label(l *Label) {
	if l.Color > 0 {
		w.raw(`<path class="line c`, strconv.Itoa(l.Color-1), `" d="M`, num(l.X-12), ` `, num(l.Y-4), `H`, num(l.X-3), `"/>`)
	}
	w.raw(`<text`)
	if l.Style != "" {
		w.raw(` class="`, l.Style, `"`)
	}
	w.raw(` x="`, num(l.X), `" y="`, num(l.Y), `"`)
	if l.Anchor != "" {
		w.raw(` text-anchor="`, l.Anchor, `"`)
	}
	w.raw(">")
	w.text(l.Text)
	w.raw("</text>\n")
}
