package mesh

import "testing"

// TestIndexConflict: a server name that two services claim finds neither, in any order.
// No two services with one hash are known, so that the names are made here.
func TestIndexConflict(t *testing.T) {
	a, b := Service{Name: "a"}, Service{Name: "b"}
	x, taken := Index{services: map[string]Service{}}, map[string]bool{}
	var conflicts []string
	for _, s := range []Service{a, b, a, b} {
		conflicts = x.add("name", s, taken, conflicts)
	}
	if _, ok := x.Find("name"); ok || len(conflicts) != 1 {
		t.Errorf("found %v, conflicts %q", ok, conflicts)
	}
}
