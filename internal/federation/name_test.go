package federation

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

// TestHashedNamesDiffer makes names of tuples that are close to each other: parts are
// cut from one string at all places, so that concatenations are equal.
func TestHashedNamesDiffer(t *testing.T) {
	n := 30_000
	if os.Getenv("PROXIMA_SOAK") != "" {
		n = 1_000_000
	}
	for _, label := range []bool{true, false} {
		seen := make(map[string]string, n)
		made := 0
		for i := 0; made < n; i++ {
			text := fmt.Sprintf("m%dz%dn", i%97, i)
			for a := 0; a <= len(text) && made < n; a++ {
				for b := a; b <= len(text) && made < n; b++ {
					for c := b; c < len(text) && made < n; c++ {
						parts := [4]string{text[:a], text[a:b], text[b:c], text[c:]}
						name, err := HashedName(parts[0], parts[1], parts[2], parts[3], label)
						if err != nil {
							t.Fatal(parts, err)
						}
						tuple := strings.Join(parts[:], "|")
						if other, ok := seen[name]; ok && other != tuple {
							t.Fatalf("%s and %s are both %s", tuple, other, name)
						}
						seen[name] = tuple
						made++
					}
				}
			}
		}
	}
}

func TestHashedName(t *testing.T) {
	get := func(mesh, zone, namespace, name string, label bool) string {
		t.Helper()
		s, err := HashedName(mesh, zone, namespace, name, label)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// Kuma hashes the concatenation: these collide there.
	if get("m", "east", "1team", "x", false) == get("m", "east1", "team", "x", false) {
		t.Error("zone east with namespace 1team is zone east1 with namespace team")
	}
	if get("", "a", "", "x.y", true) == get("", "a", "", "x-y", true) {
		t.Error("dots are lost in labels")
	}
	if got := get("m", "east", "team", "web", true); !strings.HasPrefix(got, "web-") {
		t.Errorf("%s does not begin with the name", got)
	}
	for _, bad := range [][4]string{
		{"m", "east", "team", ""}, {"m", "east", "team", "Web"}, {"m", "east", "team", "wéb"}, {"m", "east", "team", "a/b"},
		{"m", "east", "team", "web\x00"}, {"m", "ea.st", "team", "web"}, {"m", "east", "te am", "web"}, {"ｍ", "east", "team", "web"},
		{"m", "east", "team", "-web"}, {"m", "east", "team", "web-"}, {"m", "east", "team", "."}, {"m", "east", "team", strings.Repeat("x", 254)},
		{"m", "east", strings.Repeat("x", 64), "web"}, {"m", "east", "team", "\xff"},
	} {
		if got, err := HashedName(bad[0], bad[1], bad[2], bad[3], false); err == nil {
			t.Errorf("HashedName(%q) = %q, expected an error", bad, got)
		}
	}
}

func TestHashedNameLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?){0,3}`).Draw(t, "name")
		zone := rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`).Draw(t, "zone")
		for _, label := range []bool{true, false} {
			got, err := HashedName("mesh", zone, "ns", name, label)
			if err != nil {
				t.Fatal(err)
			}
			check := validation.IsDNS1123Subdomain
			if label {
				check = validation.IsDNS1123Label
			}
			if problems := check(got); len(problems) > 0 {
				t.Fatalf("%q: %v", got, problems)
			}
		}
		if got := displayName(name); len(validation.IsValidLabelValue(got)) > 0 {
			t.Fatalf("display name %q", got)
		}
	})
}

func FuzzHashedName(f *testing.F) {
	f.Add("default", "east", "team", "web.1", true)
	f.Add("", "", "", "é", false)
	f.Fuzz(func(t *testing.T, mesh, zone, namespace, name string, label bool) {
		got, err := HashedName(mesh, zone, namespace, name, label)
		if err != nil {
			return
		}
		if len(validation.IsDNS1123Subdomain(got)) > 0 || label && len(validation.IsDNS1123Label(got)) > 0 {
			t.Errorf("HashedName(%q, %q, %q, %q, %t) = %q", mesh, zone, namespace, name, label, got)
		}
	})
}
