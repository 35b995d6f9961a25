package mirror

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
)

func entryOf(group, content string) *Entry {
	if content == "" {
		return nil
	}
	return &Entry{Key: registry.ConfigKey{Namespace: "default", Group: group, DataID: "x"}, Content: content}
}

func digestOf(e *Entry) string {
	if e == nil {
		return ""
	}
	return e.digest()
}

func TestDecideEntry(t *testing.T) {
	const m = GroupMapping
	refuse := func(*Entry) string { return "no" }
	for _, c := range []struct {
		name, group, old, here, base string
		change                       func(*pair)
		want                         string
	}{
		{name: "alike", old: "1", here: "1"},
		{name: "new there", old: "1", want: "here=1"},
		{name: "new here", here: "1", want: "old=1"},
		{name: "differs at the start", old: "1", here: "2", want: "here=1 conflict"},
		{name: "differs, and here counts", old: "1", here: "2", change: func(p *pair) { p.winner = HereWins }, want: "old=2 conflict"},
		{name: "changed there", old: "2", here: "1", base: "1", change: func(p *pair) { p.winner = HereWins }, want: "here=2"},
		{name: "changed here", old: "1", here: "2", base: "1", want: "old=2"},
		{name: "changed in both", old: "2", here: "3", base: "1", want: "here=2 conflict"},
		{name: "lost there", here: "1", base: "1", want: "old=1"},
		{name: "lost here", old: "1", base: "1", want: "here=1"},
		{name: "removed there", here: "1", base: "1", change: func(p *pair) { p.noOld = removed }, want: "-here"},
		{name: "removed here", old: "1", base: "1", change: func(p *pair) { p.noHere = removed }, want: "-old"},
		{name: "not yet", here: "1", base: "1", change: func(p *pair) { p.noOld = fading }},
		{name: "removed there, changed here", here: "2", base: "1", change: func(p *pair) { p.noOld = removed }, want: "old=2"},
		{name: "removed before they were alike", here: "1", change: func(p *pair) { p.noOld = removed }, want: "old=1"},
		{name: "one way: not written", here: "1", change: func(p *pair) { p.oneWay = true }},
		{name: "one way: not removed", old: "1", base: "1", change: func(p *pair) { p.oneWay = true; p.noHere = removed }},
		{name: "one way: changed here stays", old: "1", here: "2", base: "1", change: func(p *pair) { p.oneWay = true }},
		{name: "one way: removed there", here: "1", base: "1", change: func(p *pair) { p.oneWay = true; p.noOld = removed }, want: "-here"},
		{name: "cannot be here", old: "1", change: func(p *pair) { p.unfitHere = refuse }, want: "skipped"},
		{name: "cannot be there", here: "1", change: func(p *pair) { p.unfitOld = refuse }, want: "skipped"},
		{name: "mappings", group: m, old: "a,b", here: "c,b", want: "here=a,b,c old=a,b,c"},
		{name: "mappings in another order", group: m, old: "a,b", here: "b, a"},
		{name: "mappings that only one side lacks", group: m, old: "a,b", here: "b", base: "a,b", want: "here=a,b"},
		{name: "mappings are not removed", group: m, here: "a", base: "a", change: func(p *pair) { p.noOld = removed }, want: "old=a"},
	} {
		p := pair{old: entryOf(c.group, c.old), here: entryOf(c.group, c.here), base: digestOf(entryOf(c.group, c.base))}
		if c.change != nil {
			c.change(&p)
		}
		v := p.decide()
		var got []string
		if v.here != nil {
			got = append(got, "here="+v.here.Content)
		}
		if v.old != nil {
			got = append(got, "old="+v.old.Content)
		}
		for text, set := range map[string]bool{"-here": v.removeHere, "-old": v.removeOld, "conflict": v.conflict, "skipped": v.skipped != ""} {
			if set {
				got = append(got, text)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
		}
		if (v.why == "") != (v.here == nil && v.old == nil && !v.removeHere && !v.removeOld && v.skipped == "") {
			t.Errorf("%s: because %q", c.name, v.why)
		}
	}
}

// An entry is removed in the other registry after it was gone for a while, on one connection; not when
// most are gone.
func TestAbsent(t *testing.T) {
	now := time.Unix(1000, 0)
	e := newEntries(&Config{Hold: time.Minute}, nil)
	e.now = func() time.Time { return now }
	s := e.oldSide
	key := func(name string) registry.ConfigKey { return registry.ConfigKey{Group: "g", DataID: name} }
	list := func(names string) (out []*Entry) {
		for _, name := range strings.Fields(names) {
			out = append(out, &Entry{Key: key(name), Content: "1"})
		}
		return out
	}
	is := func(name string, want absence) {
		t.Helper()
		if got, _ := s.absent(key(name)); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
	s.Listed(list("a b c d e f g"))
	s.Removed(key("a"))
	is("a", fading)
	is("never there", unknown)
	now = now.Add(2 * time.Minute)
	is("a", removed)
	s.Listed(list("b c d e f g")) // connected again
	is("a", unknown)
	for _, name := range strings.Fields("b c d") {
		s.Removed(key(name))
	}
	now = now.Add(2 * time.Minute)
	is("b", removed)
	s.Removed(key("e"))
	now = now.Add(2 * time.Minute)
	is("b", fading)
	is("e", fading)
	s.Set(list("e")[0])
	is("b", removed)
}

// What a registry lacks that both had before the mirror started was removed, unless it is most of what it had.
func TestMissing(t *testing.T) {
	key := func(name string) registry.ConfigKey { return registry.ConfigKey{Group: "g", DataID: name} }
	for _, c := range []struct {
		base, old string
		want      map[string]absence
	}{
		{"a", "", map[string]absence{"a": removed}},
		{"a b", "", map[string]absence{"a": fading, "b": fading}},
		{"a b c", "a", map[string]absence{"b": removed, "c": removed}},
		{"a b c d e f g", "d e f g h", map[string]absence{"a": removed, "b": removed, "c": removed, "d": unknown}},
		{"a b c d e f g", "e f g h", map[string]absence{"a": fading, "d": fading}},
	} {
		now := time.Unix(1000, 0)
		e := newEntries(&Config{Hold: time.Minute}, slog.New(slog.DiscardHandler))
		e.now = func() time.Time { return now }
		var here, old []*Entry
		for _, name := range strings.Fields(c.base) {
			entry := &Entry{Key: key(name), Content: "1"}
			e.bases[entry.Key] = entry.digest()
			here = append(here, entry)
			if strings.Contains(c.old, name) {
				old = append(old, entry)
			}
		}
		e.bases[key("nowhere")] = "0"
		e.hereSide.Listed(here)
		e.oldSide.Listed(old)
		if e.bases[key("nowhere")] != "" {
			t.Errorf("%s, %s: what neither has is not forgotten", c.base, c.old)
		}
		e.oldSide.Listed(old) // a connection that was lost meanwhile changes nothing
		for name := range c.want {
			if got, _ := e.oldSide.absent(key(name)); got != min(c.want[name], fading) {
				t.Errorf("%s, %s: %s is %d at first", c.base, c.old, name, got)
			}
		}
		now = now.Add(2 * time.Minute)
		for name, want := range c.want {
			if got, _ := e.oldSide.absent(key(name)); got != want {
				t.Errorf("%s, %s: %s is %d, want %d", c.base, c.old, name, got, want)
			}
		}
	}
}
