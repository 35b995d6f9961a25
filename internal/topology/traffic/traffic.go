// Package traffic reads what others know of the traffic of Services: so many bytes, or
// connections, in a month, perhaps by zone.
//
// It owns the form of the answer (Entry), the reading of files (Parse), and the query of a
// Prometheus (Prometheus.Query). It decides nothing; package topology works out what a plan
// would make of it.
package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// Entry is the traffic of a Service in a month, or a part of it: between two zones.
type Entry struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// From is the zone of clients and To that of endpoints; both empty: all zones together.
	From locality.Zone `json:"fromZone,omitempty"`
	To   locality.Zone `json:"toZone,omitempty"`
	// GB (10⁹ bytes), both ways, and Connections in a month; nil: not known.
	GB          *float64 `json:"gbPerMonth,omitempty"`
	Connections *float64 `json:"connectionsPerMonth,omitempty"`
}

const (
	// maxAmount in a month: 10¹² GB are some 3 Pbit/s.
	maxAmount = 1e12
	// maxEntries of a question: 10,000 Services between three zones each are 90,000.
	maxEntries = 200_000
)

// name of what an entry is about.
func (e *Entry) name() string {
	s := e.Namespace + "/" + e.Service
	if e.From != "" {
		s += " from " + string(e.From) + " to " + string(e.To)
	}
	return s
}

// check one entry.
func (e *Entry) check() error {
	switch {
	case e.Namespace == "":
		return errors.New("namespace: missing")
	case e.Service == "":
		return errors.New("service: missing")
	case (e.From == "") != (e.To == ""):
		return errors.New("fromZone, toZone: give both, or neither")
	case e.GB == nil && e.Connections == nil:
		return errors.New("gbPerMonth, connectionsPerMonth: give one of them")
	}
	for _, amount := range []struct {
		field string
		value *float64
	}{{"gbPerMonth", e.GB}, {"connectionsPerMonth", e.Connections}} {
		if v := amount.value; v != nil && !(*v >= 0 && *v <= maxAmount) { // NaN fails, too
			return fmt.Errorf("%s: %g: must be from 0 to %g", amount.field, *v, maxAmount)
		}
	}
	return nil
}

// Check entries that came from elsewhere: each by itself, and that no two are about the same,
// or a Service has some with zones and some without.
func Check(entries []Entry) error {
	if len(entries) > maxEntries {
		return fmt.Errorf("%d entries of traffic: at most %d", len(entries), maxEntries)
	}
	return checkAll(entries, func(i int) string { return fmt.Sprintf("entry %d of traffic", i+1) })
}

// checkAll entries; at says where one stands.
func checkAll(entries []Entry, at func(i int) string) error {
	type way struct{ namespace, service, from, to string }
	seen := map[way]int{}
	zoned := map[[2]string]int{} // the first entry of each Service
	for i := range entries {
		e := &entries[i]
		if err := e.check(); err != nil {
			return fmt.Errorf("%s: %w", at(i), err)
		}
		w := way{e.Namespace, e.Service, string(e.From), string(e.To)}
		if first, twice := seen[w]; twice {
			return fmt.Errorf("%s: service: %s is there already (%s)", at(i), e.name(), at(first))
		}
		seen[w] = i
		of := [2]string{e.Namespace, e.Service}
		first, known := zoned[of]
		if !known {
			zoned[of] = i
		} else if (entries[first].From == "") != (e.From == "") {
			return fmt.Errorf("%s: fromZone: %s/%s has an entry with zones and one without (%s)", at(i), e.Namespace, e.Service, at(first))
		}
	}
	return nil
}

// Sum of the entries of a Service: nil where no entry knows of it.
func Sum(entries []Entry) (gb, connections *float64) {
	add := func(to **float64, value *float64) {
		if value == nil {
			return
		}
		if *to == nil {
			*to = new(float64)
		}
		**to += *value
	}
	for i := range entries {
		add(&gb, entries[i].GB)
		add(&connections, entries[i].Connections)
	}
	return gb, connections
}

// sorted by namespace, service and zones.
func sorted(entries []Entry) []Entry {
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Service, b.Service),
			strings.Compare(string(a.From), string(b.From)), strings.Compare(string(a.To), string(b.To)))
	})
	return entries
}

// finite reports whether a number can be used.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
