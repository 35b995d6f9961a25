package delta

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestRecords: what is known of names is as in two maps.
func TestRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r records
		asked, sent := map[string]bool{}, map[string]string{}
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
		r.grow(rapid.IntRange(0, 3).Draw(t, "room"))
		t.Repeat(map[string]func(*rapid.T){
			"ask":   func(t *rapid.T) { n := name.Draw(t, "name"); r.ask(n); asked[n] = true },
			"unask": func(t *rapid.T) { n := name.Draw(t, "name"); r.unask(n); delete(asked, n) },
			"tell": func(t *rapid.T) {
				n, version := name.Draw(t, "name"), rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "version")
				r.tell(n, version)
				sent[n] = version
			},
			"untell": func(t *rapid.T) { n := name.Draw(t, "name"); r.untell(n); delete(sent, n) },
			"": func(t *rapid.T) {
				if r.named != len(asked) {
					t.Fatalf("%d are asked for, want %d", r.named, len(asked))
				}
				known := maps.Clone(asked)
				for _, n := range []string{"a", "b", "c", "d", "e"} {
					version, told := r.sent(n)
					want, wantTold := sent[n]
					if version != want || told != wantTold || r.asked(n) != asked[n] {
						t.Fatalf("%s: %q %v, asked %v; want %q %v, %v", n, version, told, r.asked(n), want, wantTold, asked[n])
					}
					if wantTold {
						known[n] = true
					}
				}
				all := r.names(func(record) bool { return true })
				if !slices.Equal(all, slices.Sorted(maps.Keys(known))) {
					t.Fatalf("records of %q, want %q", all, slices.Sorted(maps.Keys(known)))
				}
			},
		})
	})
}
