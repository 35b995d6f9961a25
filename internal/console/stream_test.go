package console_test

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// FuzzStream: whatever objects and viewers say, a frame of the stream is one line that pages read as what it was, which means nothing in
// markup; and a position or a query that a viewer sends is read as it was written, or refused.
func FuzzStream(f *testing.F) {
	for _, text := range []string{
		"", "zone-a", "shop/web", "<script>ran=1</script>", "</script><!--", "javascript:ran=1", "\u202egpj.exe\u202c", "a\nb\r\nc", "\u2028\u2029", "\x00\x1b[31m\x7f\u009b",
		"\xff\xfe broken", "=1+1", "__proto__", "constructor", "{\"topic\": \"zones\"}", "&amp;&lt;", "flow/a/b/c", "\ufeff", strings.Repeat("long ", 2000),
	} {
		f.Add(text, "EPOCH:7", "q=web&limit=10&continue=20&sort=demand&reverse=true")
	}
	for _, position := range []string{":", "a:", ":1", "a:-1", "a:18446744073709551616", "a:b:1", "a:1\n", "\x00:1", "a:+1", "a:١"} {
		f.Add("x", position, "limit=x")
	}
	for _, query := range []string{"limit=-1", "continue=99999999999999999999", "q=%00%ff", "refused=TRUE", "mode=none&zone=a&namespace=b&code=c", "a=%zz", ";"} {
		f.Add("x", "e:1", query)
	}
	f.Fuzz(func(t *testing.T, text, position, query string) {
		frames(t, text)
		if p, err := admin.ParsePosition(position); err == nil {
			again, err := admin.ParsePosition(p.Epoch + ":" + strconv.FormatUint(p.Sequence, 10))
			if err != nil || again != p || strings.Contains(p.Epoch, ":") {
				t.Errorf("position %q is %+v, then %+v, %v", position, p, again, err)
			}
		}
		q, _ := url.ParseQuery(query) // as a server does: what can be read
		asked, err := admin.ServicesQuery(q)
		if err == nil && (asked.Text != q.Get("q") || asked.Refused != (q.Get("refused") == "true") || asked.Limit == 0 != (q.Get("limit") == "" || zero(q.Get("limit")))) {
			t.Errorf("query %q is %+v", query, asked)
		}
	})
}

func zero(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n == 0
}

// frames of rows that have a text wherever objects may put one.
func frames(t *testing.T, text string) {
	rows := summary.Rows(&summary.Zones{
		Zones: []summary.Zone{{Name: locality.Zone(text), Region: locality.Region(text)}},
		Flows: []topology.Flow{{From: locality.Zone(text), To: "b", Planned: 1}},
		Total: summary.Totals{Currency: text, Codes: []summary.CodeCount{{Code: text}}, Modes: []summary.ModeCount{{Mode: text}}}, Partial: text,
	})
	problem, err := json.Marshal(admin.Problem{Code: "x", Kind: text, Namespace: text, Name: text, Problem: text, Fix: text})
	if err != nil {
		t.Fatal(err)
	}
	rows["problem/"+text] = problem
	delta, err := json.Marshal(summary.Delta{Position: summary.Position{Epoch: text, Sequence: 1}, Rows: rows, Gone: []string{text}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, frame := range []admin.Frame{{Topic: "zones", Delta: delta, Time: time.Unix(0, 0)}, {Topic: "problems", Error: text, Time: time.Unix(0, 0)}} {
		if err := frame.Write(&out); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.SplitAfter(out.String(), "\n")
	if len(lines) != 3 || lines[2] != "" {
		t.Fatalf("%d lines for two frames: %q", len(lines)-1, out.String())
	}
	if !utf8.ValidString(out.String()) || strings.ContainsAny(out.String(), "<>&\u2028\u2029") || strings.IndexFunc(lines[0]+lines[1], func(r rune) bool { return r < 0x20 && r != '\n' }) >= 0 {
		t.Errorf("a frame has a character that means something elsewhere: %q", out.String())
	}
	var first, second struct {
		Error string
		Delta struct {
			Epoch string
			Gone  []string
			Rows  map[string]struct{ Name, Region, Partial, Problem, Fix string }
		}
	}
	for i, to := range []any{&first, &second} {
		if err := json.Unmarshal([]byte(lines[i]), to); err != nil {
			t.Fatalf("%q: %v", lines[i], err)
		}
	}
	if !utf8.ValidString(text) {
		return // each byte that is no text is replaced, wherever it stands
	}
	zone, found := first.Delta.Rows["zone/"+text], first.Delta.Rows["problem/"+text]
	if zone.Name != text || zone.Region != text || first.Delta.Rows["scope"].Partial != text || found.Problem != text || found.Fix != text || found.Name != text ||
		first.Delta.Epoch != text || len(first.Delta.Gone) != 1 || first.Delta.Gone[0] != text || second.Error != text {
		t.Errorf("%q is read as %+v and %+v", text, first, second)
	}
}
