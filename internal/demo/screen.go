package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// beat between two answers: slow enough to watch, fast enough to wait for.
const beat = 60 * time.Millisecond

// screen is what the person sees.
type screen struct {
	out   io.Writer
	color bool
}

// hues of the zones: terminal colour codes.
var hues = map[string]string{"a": "34", "b": "32", "c": "35"}

// hue of a backend, by its zone: web-a and web-a-1 are in zone-a.
func hue(name string) string {
	name = strings.TrimPrefix(name, "web-")
	return hues[name[:min(1, len(name))]]
}

func (s screen) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s screen) title(format string, args ...any) {
	fmt.Fprintf(s.out, "\n%s\n", s.paint("1", fmt.Sprintf(format, args...)))
}

func (s screen) line(format string, args ...any) {
	fmt.Fprintf(s.out, format+"\n", args...)
}

func (s screen) done(format string, args ...any) {
	fmt.Fprintf(s.out, "  %s %s\n", s.paint("32", "✓"), fmt.Sprintf(format, args...))
}

func (s screen) begin() { fmt.Fprint(s.out, "  ") }
func (s screen) end()   { fmt.Fprintln(s.out) }

func (s screen) answer(name string) {
	fmt.Fprint(s.out, s.paint(hue(name), strings.TrimPrefix(name, "web-"))+" ")
	if s.color { // a terminal
		time.Sleep(beat)
	}
}

func (s screen) bar(name, zone string, n int) {
	fmt.Fprintf(s.out, "  %-6s %-7s %s %d\n", name, zone, s.paint(hue(name), strings.Repeat("█", n)+strings.Repeat("·", requests-n)), n)
}
