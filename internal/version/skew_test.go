package version

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCheckSkew(t *testing.T) {
	for _, test := range []struct {
		server, client, want string
	}{
		{"v1.5.0", "v1.5.9", ""},
		{"v1.5.0", "v1.3.0", ""},
		{"v1.5.0", "v1.6.1-rc1", ""},
		{"v1.5.0", "v1.2.9", "upgrade zone a, by way"},
		{"v1.5.0", "v1.7.0", "upgrade that control plane first, then zone a"},
		{"v2.0.0", "v1.9.0", "upgrade zone a, by way"},
		{"v1.9.0", "v2.0.0", "upgrade that control plane first"},
		{"v1.5.0", "", ""},
		{"v1.5.0", "devel", ""},
		{"devel", "v9.9.9", ""},
	} {
		err := CheckSkew(test.server, "zone a", test.client)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("CheckSkew(%s, %s) = %v, want %q", test.server, test.client, err, test.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	var r Refusals
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	names := func(now time.Time) (out []string) {
		for _, one := range r.List(now) {
			out = append(out, one.Name+" "+one.Version)
		}
		return out
	}
	for _, client := range []struct{ name, version string }{{"b", "v1.0.0"}, {"a", "v1.9.0"}, {"c", "v1.5.0"}} {
		err := r.Check("v1.5.0", "node", client.name, client.version, now)
		if (err == nil) != (client.name == "c") || err != nil && !strings.Contains(err.Error(), "node "+client.name+" has version "+client.version) {
			t.Errorf("%s: %v", client.name, err)
		}
	}
	if got := names(now); !slices.Equal(got, []string{"a v1.9.0", "b v1.0.0"}) {
		t.Error(got)
	}
	if err := r.Check("v1.5.0", "node", "a", "v1.6.0", now); err != nil || len(names(now)) != 1 {
		t.Errorf("after the upgrade of a: %v, %v", err, names(now))
	}
	if got := names(now.Add(refusalAge + 1)); len(got) != 0 {
		t.Errorf("what tries no longer is listed: %v", got)
	}
}
