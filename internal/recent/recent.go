// Package recent remembers what was used lately, to have equal values in memory once. Enter at Cache. It decides nothing
// about the values.
package recent

// Cache has the values that were put or got last. The zero value is empty, and has the newest one or two until Most
// is set. It is not safe for concurrent use.
type Cache[K comparable, V any] struct {
	// Most values are young. They become the old ones then, which are forgotten: twice as many are kept at most.
	Most int

	young, old map[K]V
}

// Get a value that was put or got lately.
func (c *Cache[K, V]) Get(key K) (V, bool) {
	if v, ok := c.young[key]; ok {
		return v, true
	}
	v, ok := c.old[key]
	if ok {
		c.Put(key, v)
	}
	return v, ok
}

// Put adds or replaces a value.
func (c *Cache[K, V]) Put(key K, v V) {
	if _, ok := c.young[key]; !ok && len(c.young) >= c.Most {
		c.young, c.old = nil, c.young
	}
	if c.young == nil {
		c.young = map[K]V{}
	}
	c.young[key] = v
}

// Len is the number of values, of which some may be counted twice.
func (c *Cache[K, V]) Len() int { return len(c.young) + len(c.old) }
