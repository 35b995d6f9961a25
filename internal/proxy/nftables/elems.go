//go:build linux

package nftables

import "github.com/proxima-mesh/proxima/internal/kernel/nfnl"

// set is one set or map. A value is one string, see pack, and "" is no element.
//
// Most elements are as they should be: there are as many as endpoints, so those
// cost no more than a key and a value in one map. What differs is in the others.
type set struct {
	def       nfnl.Set
	want, has bool
	opaque    bool   // packets write it: its elements are not ours to compare
	size      uint32 // that the kernel's has

	// Each element is in one of these, by its key.
	same   map[string]string // wanted, and the kernel has it
	wanted map[string]string // the kernel has none of this key
	had    map[string]string // not wanted
	differ map[string]difference
}

// difference is an element that the kernel has with another value than it should.
type difference struct{ want, have string }

// pack makes value and comment one string that is never empty.
func pack(value, comment string) string { return string(rune(len(value))) + value + comment }

func unpack(packed string) (value, comment string) {
	n := int(packed[0]) // values are addresses and names of chains: shorter than 128
	return packed[1 : 1+n], packed[1+n:]
}

// put wants an element.
func (s *set) put(key, value, comment string) { s.wantElem(key, pack(value, comment)) }

// remove wants an element gone. Removing the absent is nothing.
func (s *set) remove(key string) { s.wantElem(key, "") }

func (s *set) wantElem(key, packed string) {
	if want, have := s.elem(key); want != packed {
		s.move(key, packed, have)
	}
}

// haveElem notes that the kernel has an element.
func (s *set) haveElem(key, packed string) {
	if want, have := s.elem(key); have != packed {
		s.move(key, want, packed)
	}
}

// elem is what an element should be and what the kernel has.
func (s *set) elem(key string) (want, have string) {
	if v, ok := s.same[key]; ok {
		return v, v
	}
	if v, ok := s.wanted[key]; ok {
		return v, ""
	}
	if v, ok := s.had[key]; ok {
		return "", v
	}
	d := s.differ[key]
	return d.want, d.have
}

// move puts an element where it belongs now.
func (s *set) move(key, want, have string) {
	delete(s.same, key)
	delete(s.wanted, key)
	delete(s.had, key)
	delete(s.differ, key)
	switch {
	case want == have:
		if want == "" {
			return
		}
		if s.same == nil { // the others are about to come, too
			s.same = make(map[string]string, max(len(s.had), len(s.wanted))+1)
		}
		s.same[key] = have
	case have == "":
		insert(&s.wanted, key, want)
	case want == "":
		insert(&s.had, key, have)
	default:
		insert(&s.differ, key, difference{want, have})
	}
}

func insert[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = value
}

// each calls f for every element.
func (s *set) each(f func(key, want, have string)) {
	for key, v := range s.same {
		f(key, v, v)
	}
	for key, v := range s.wanted {
		f(key, v, "")
	}
	for key, v := range s.had {
		f(key, "", v)
	}
	for key, d := range s.differ {
		f(key, d.want, d.have)
	}
}

func (s *set) len() int { return len(s.same) + len(s.wanted) + len(s.had) + len(s.differ) }

// inKernel reports whether the kernel has an element.
func (s *set) inKernel(key string) bool {
	_, have := s.elem(key)
	return have != ""
}

// different reports whether the kernel's elements are not those that are wanted.
func (s *set) different() bool { return len(s.wanted)+len(s.had)+len(s.differ) > 0 }

// written notes that the kernel has what was wanted. The maps of differences are
// made again, as one that was large would stay so.
func (s *set) written() {
	s.same = merge(s.same, s.wanted)
	for key, d := range s.differ {
		insert(&s.same, key, d.want)
	}
	s.wanted, s.had, s.differ = nil, nil, nil
}

// unknown forgets what the kernel has.
func (s *set) unknown() {
	s.wanted = merge(s.same, s.wanted)
	for key, d := range s.differ {
		insert(&s.wanted, key, d.want)
	}
	s.same, s.had, s.differ = nil, nil, nil
}

// trim releases the memory of differences that are applied.
func (s *set) trim() {
	if !s.different() {
		s.wanted, s.had, s.differ = nil, nil, nil
	}
}

// merge adds the smaller map to the larger one.
func merge(a, b map[string]string) map[string]string {
	if len(a) < len(b) {
		a, b = b, a
	}
	for key, v := range b {
		a[key] = v
	}
	return a
}
