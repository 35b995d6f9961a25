package recent

import "testing"

// TestCache: what is used stays, what is not goes, and the number is bounded.
func TestCache(t *testing.T) {
	c := Cache[int, string]{Most: 10}
	c.Put(-1, "used")
	c.Put(-2, "unused")
	for i := range 1000 {
		c.Put(i, "other")
		if v, ok := c.Get(-1); !ok || v != "used" {
			t.Fatalf("after %d: %q, %v", i, v, ok)
		}
		if v, ok := c.Get(i); !ok || v != "other" {
			t.Fatalf("%d: %q, %v", i, v, ok)
		}
		if c.Len() > 20 {
			t.Fatalf("%d values", c.Len())
		}
	}
	if _, ok := c.Get(-2); ok {
		t.Error("what is not used stays")
	}
	c.Put(-1, "replaced")
	if v, _ := c.Get(-1); v != "replaced" {
		t.Errorf("%q after it was replaced", v)
	}
}
