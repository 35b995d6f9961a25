package mirror

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
)

var service = registry.Service{Namespace: "default", Name: "orders"}

// instances of ports; "*80" is a copy.
func instances(text string) []*registry.Instance {
	var out []*registry.Instance
	for _, word := range strings.Fields(text) {
		in := &registry.Instance{Service: service, Protocol: registry.Nacos, Cluster: "DEFAULT", Enabled: true, Healthy: true, Weight: 100}
		at, copied := strings.CutPrefix(word, "*")
		if copied {
			in.Metadata = map[string]string{registry.KeyMirroredFrom: "elsewhere"}
		}
		address := netip.MustParseAddrPort(at)
		in.Address, in.Port = address.Addr(), address.Port()
		out = append(out, in)
	}
	return out
}

func TestDecide(t *testing.T) {
	const a, b = "10.0.0.1:80", "10.0.0.2:80"
	for _, c := range []struct {
		name, from, there, want string
		rules                   rules
		skipped                 int
	}{
		{name: "all that is there", from: a + " " + b, want: a + " " + b},
		{name: "no copies", from: "*" + a + " " + b, want: b},
		{name: "not what is there itself", from: a + " " + b, there: a, want: b},
		{name: "also where a copy is", from: a, there: "*" + a, want: a},
		{name: "offered all the same", from: a, there: a, rules: rules{standby: true}, want: a},
		{name: "not offered beside it", from: a, there: a, rules: rules{standby: true, apart: func(*registry.Instance) bool { return true }}},
		{name: "once", from: a + " " + a, want: a},
		{name: "no loopback addresses", from: "127.0.0.1:80 " + a, want: a, skipped: 1},
		{name: "loopback addresses on one machine", from: "127.0.0.1:80", rules: rules{loopback: true}, want: "127.0.0.1:80"},
		{name: "not what it cannot have", from: a, rules: rules{refuse: func(*registry.Instance) string { return "no" }}, skipped: 1},
	} {
		c.rules.origin = "old"
		copies, skipped := c.rules.decide(instances(c.from), instances(c.there))
		var got []string
		for id, in := range copies {
			got = append(got, string(id))
			if in.MirroredFrom() != "old" || !in.Ephemeral {
				t.Errorf("%s: %+v", c.name, in)
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want || len(skipped) != c.skipped {
			t.Errorf("%s: got %v, skipped %v, want %q", c.name, got, skipped, c.want)
		}
	}
}

// What vanishes while a registry is ill is held; what goes as usual is not.
func TestHold(t *testing.T) {
	now := time.Unix(1000, 0)
	s := newSide(time.Minute, func(registry.Service) {}, func() {})
	s.now = func() time.Time { return now }
	holds := func(want bool) {
		t.Helper()
		if _, held, _, _ := s.list(service); held > 0 != want {
			t.Errorf("held for %s, want %t", held, want)
		}
	}
	s.Set(service, instances("10.0.0.1:80 10.0.0.2:80 10.0.0.3:80 10.0.0.4:80"))
	holds(false)
	s.Set(service, instances("10.0.0.1:80 10.0.0.2:80"))
	holds(false)
	s.Set(service, instances("10.0.0.1:80 *10.0.0.2:80")) // copies do not count
	holds(true)
	now = now.Add(2 * time.Minute)
	holds(false)
	s.Set(service, nil)
	holds(false)
	s.Disturbed()
	holds(true)

	copies := map[identity]*registry.Instance{}
	published, _ := (&rules{}).decide(instances("10.0.0.1:80 10.0.0.2:80"), nil)
	if n := keep(copies, published, instances("10.0.0.1:80")); n != 1 || copies["10.0.0.2:80"] == nil {
		t.Errorf("kept %d: %v", n, copies)
	}
}
