package delta

import (
	"slices"
	"strings"
)

// record is what a layered session knows of one name of a type.
type record struct {
	name string
	// version that the client has, if it was told; empty: it was told that there is none.
	version string
	// named: the client asks for it. told: it was sent a version, or that there is none.
	named, told bool
}

// records are ordered by name. A stream has some hundred for as long as it is there: a slice takes
// half of what maps take.
type records struct {
	all []record
	// named counts those that the client asks for.
	named int
}

func (r *records) find(name string) (int, bool) {
	return slices.BinarySearchFunc(r.all, name, func(one record, name string) int { return strings.Compare(one.name, name) })
}

// grow makes room for n more, if there is nothing yet.
func (r *records) grow(n int) {
	if cap(r.all) == 0 {
		r.all = make([]record, 0, n)
	}
}

// at is the record of a name, which is made if it is not there. It is valid until the next change.
func (r *records) at(name string) *record {
	i, found := r.find(name)
	if !found {
		r.all = slices.Insert(r.all, i, record{name: name})
	}
	return &r.all[i]
}

// asked reports whether the client asks for a name.
func (r *records) asked(name string) bool {
	i, found := r.find(name)
	return found && r.all[i].named
}

// ask notes that the client asks for a name.
func (r *records) ask(name string) {
	if one := r.at(name); !one.named {
		one.named = true
		r.named++
	}
}

// unask notes that it does so no more.
func (r *records) unask(name string) {
	if i, found := r.find(name); found && r.all[i].named {
		r.all[i].named = false
		r.named--
		r.drop(i)
	}
}

// sent is the version that the client has of a name; empty: it was told that there is none. told is
// false if it was told nothing.
func (r *records) sent(name string) (version string, told bool) {
	i, found := r.find(name)
	if !found {
		return "", false
	}
	return r.all[i].version, r.all[i].told
}

// tell notes that the client is sent a version of a name; empty: that there is none.
func (r *records) tell(name, version string) {
	one := r.at(name)
	one.version, one.told = version, true
}

// untell notes that the client has nothing under a name, and was told nothing.
func (r *records) untell(name string) {
	if i, found := r.find(name); found {
		r.all[i].version, r.all[i].told = "", false
		r.drop(i)
	}
}

// drop a record of which nothing is known.
func (r *records) drop(i int) {
	if !r.all[i].named && !r.all[i].told {
		r.all = slices.Delete(r.all, i, i+1)
	}
}

// names of those for which a condition holds.
func (r *records) names(is func(record) bool) []string {
	var out []string
	for _, one := range r.all {
		if is(one) {
			out = append(out, one.name)
		}
	}
	return out
}
