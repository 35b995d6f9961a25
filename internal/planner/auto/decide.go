package auto

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// DefaultOverload is the threshold of Kubernetes: how far above its fair share
// of the guessed traffic an endpoint may come.
const DefaultOverload = 0.2

// Hints of an endpoint: the zones and nodes that should use it.
type Hints struct {
	ForZones []locality.Zone
	ForNodes []string
}

func forZone(zone locality.Zone) *Hints { return &Hints{ForZones: []locality.Zone{zone}} }

// Endpoint is what the heuristic reads of an endpoint.
type Endpoint struct {
	// Zone is empty if it has none.
	Zone locality.Zone
	// Node is read by Distribute only.
	Node string
	// Ready is the condition, where absence counts as false.
	Ready bool
	// Hints are those it has now; nil is none.
	Hints *Hints
}

// State of a slice in the write that is being prepared.
type State uint8

const (
	// Create and Update: the slice will be written anyway.
	Create State = iota
	Update
	// Unchanged: it will be written only if its hints have to change.
	Unchanged
)

// Slice is one EndpointSlice.
type Slice struct {
	State     State
	Endpoints []Endpoint
}

// Request is one service and address type: all its slices, of all its ports.
type Request struct {
	Slices []Slice
	// AddressType closes the text of events, such as IPv4.
	AddressType string
	// Hinted says that the service has hints already, so enabling them is no news.
	Hinted bool
	// Overload replaces DefaultOverload if it is above 0.
	Overload float64
}

// Event to be recorded for the service.
type Event struct {
	Warning         bool
	Reason, Message string
}

// Result of a Request. Hints are all endpoints' hints as they have to be, in the
// shape of the slices. Write says which slices have to be written. Event is nil
// where there is none. Allocated counts the hints by zone; it is nil, and
// Hinted false, if they were refused.
type Result struct {
	Hints     [][]*Hints
	Write     []bool
	Event     *Event
	Hinted    bool
	Allocated map[locality.Zone]int
}

// Refusals, in the order in which they are checked.
const (
	insufficientNodes     = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
	insufficientEndpoints = "Insufficient number of endpoints"
	overloaded            = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold"
	noZone                = "One or more endpoints do not have a zone specified"
)

// Decide gives every ready endpoint one zone, or takes all hints away and says
// why. Hints of endpoints that are not ready are left alone unless they are refused.
func Decide(ratios Ratios, r Request) Result {
	ready := 0
	for _, s := range r.Slices {
		for _, e := range s.Endpoints {
			if e.Ready {
				ready++
			}
		}
	}
	allocations, refusal := allocate(ratios, ready, threshold(r.Overload))
	if refusal != "" {
		return refuse(r, refusal)
	}
	d := decision{allocations: allocations, hinted: map[locality.Zone]int{}, result: current(r)}
	d.keepUnchanged(r.Slices)
	if !d.sendHome(r.Slices) {
		return refuse(r, noZone)
	}
	d.redistribute(r.Slices)
	d.result.Hinted, d.result.Allocated = true, d.hinted
	if !r.Hinted {
		d.result.Event = &Event{Reason: "TopologyAwareHintsEnabled", Message: withType("Topology Aware Hints has been enabled", r.AddressType)}
	}
	return d.result
}

// Disabled is the event for a service that was hinted and does not ask for it any
// more.
func Disabled(addressType string) *Event {
	return &Event{
		Warning: true,
		Reason:  "TopologyAwareHintsDisabled",
		Message: withType("Topology Aware Hints has been disabled", addressType),
	}
}

// threshold is what a request asks for, if that is a number above 0.
func threshold(overload float64) float64 {
	if overload > 0 {
		return overload
	}
	return DefaultOverload
}

// Overloaded says whether a change of the ratios makes the hints of a service
// worth another look, given the counts of its last Result and its Overload.
func Overloaded(allocated map[locality.Zone]int, ratios Ratios, overload float64) bool {
	if len(allocated) == 0 || len(ratios) == 0 {
		return len(allocated) > 0
	}
	total := 0.0
	for _, n := range allocated {
		total += float64(n)
	}
	for zone, ratio := range ratios {
		n, ok := allocated[zone]
		if !ok || n < int(math.Ceil(total*ratio*(1/(1+threshold(overload))))) {
			return true
		}
	}
	return false
}

func withType(message, addressType string) string { return message + ", addressType: " + addressType }

// current is the Result that changes nothing.
func current(r Request) Result {
	result := Result{Hints: make([][]*Hints, len(r.Slices)), Write: make([]bool, len(r.Slices))}
	for i, s := range r.Slices {
		result.Write[i] = s.State != Unchanged
		result.Hints[i] = make([]*Hints, len(s.Endpoints))
		for k, e := range s.Endpoints {
			result.Hints[i][k] = e.Hints
		}
	}
	return result
}

// Remove is the Result that takes all hints away, without an event.
func Remove(slices []Slice) Result {
	result := current(Request{Slices: slices})
	for i := range slices {
		for k, h := range result.Hints[i] {
			if h != nil {
				result.Hints[i][k], result.Write[i] = nil, true
			}
		}
	}
	return result
}

func refuse(r Request, reason string) Result {
	result := Remove(r.Slices)
	result.Event = &Event{Warning: true, Reason: "TopologyAwareHintsDisabled", Message: withType(reason, r.AddressType)}
	return result
}

// allocation is how many endpoints a zone must, may and should have.
type allocation struct {
	minimum, maximum int
	desired          float64
}

// allocate divides endpoints among zones, or says why it cannot. The order of
// the floating-point operations is Kubernetes'; another could round a minimum to
// the next endpoint.
func allocate(ratios Ratios, endpoints int, overload float64) (map[locality.Zone]allocation, string) {
	if ratios == nil {
		return nil, insufficientNodes
	}
	counts := fmt.Sprintf(" (%d endpoints, %d zones)", endpoints, len(ratios))
	if len(ratios) > endpoints {
		return nil, insufficientEndpoints + counts
	}
	allocations := make(map[locality.Zone]allocation, len(ratios))
	sum := 0
	for zone, ratio := range ratios {
		desired := ratio * float64(endpoints)
		minimum := int(math.Ceil(desired * (1 / (1 + overload))))
		allocations[zone] = allocation{minimum: minimum, desired: math.Max(desired, float64(minimum))}
		sum += minimum
	}
	if sum > endpoints {
		return nil, overloaded + counts
	}
	for zone, a := range allocations {
		a.maximum = a.minimum + endpoints - sum
		allocations[zone] = a
	}
	return allocations, ""
}

// decision is the work on one request.
type decision struct {
	allocations map[locality.Zone]allocation
	hinted      map[locality.Zone]int // by zone, in slices decided so far
	result      Result
}

// keepUnchanged leaves slices alone that would not be written otherwise and whose
// hints still do, in their order; later ones use what earlier ones leave.
func (d *decision) keepUnchanged(slices []Slice) {
	for i, s := range slices {
		if s.State != Unchanged {
			continue
		}
		counts, ok := d.countKept(s)
		if !ok {
			d.result.Write[i] = true
			continue
		}
		for zone, n := range counts {
			d.hinted[zone] += n
		}
	}
}

func (d *decision) countKept(s Slice) (map[locality.Zone]int, bool) {
	counts := map[locality.Zone]int{}
	for _, e := range s.Endpoints {
		if !e.Ready {
			continue
		}
		if e.Hints == nil || len(e.Hints.ForZones) == 0 {
			return nil, false
		}
		for _, zone := range e.Hints.ForZones {
			if _, known := d.allocations[zone]; !known {
				return nil, false
			}
			counts[zone]++
		}
	}
	for zone, n := range counts {
		if n+d.hinted[zone] > d.allocations[zone].maximum {
			return nil, false
		}
	}
	return counts, true
}

// order lists the slices to be written: created, updated, then those that were
// unchanged. Endpoints are moved from the front.
func (d *decision) order(slices []Slice) []int {
	var order []int
	for _, state := range []State{Create, Update, Unchanged} {
		for i, s := range slices {
			if s.State == state && d.result.Write[i] {
				order = append(order, i)
			}
		}
	}
	return order
}

// sendHome hints every ready endpoint to its own zone, unless one has none.
func (d *decision) sendHome(slices []Slice) bool {
	for _, i := range d.order(slices) {
		for k, e := range slices[i].Endpoints {
			switch {
			case !e.Ready:
			case e.Zone == "":
				return false
			default:
				d.hinted[e.Zone]++
				d.result.Hints[i][k] = forZone(e.Zone)
			}
		}
	}
	return true
}

// redistribute moves endpoints from zones with too many to zones with too few.
func (d *decision) redistribute(slices []Slice) {
	giving, receiving := d.moves()
	receivers := sorted(receiving)
	for _, i := range d.order(slices) {
		for k, e := range slices[i].Endpoints {
			if len(receivers) == 0 {
				return
			}
			if !e.Ready || giving[e.Zone] == 0 {
				continue
			}
			to := receivers[0]
			d.result.Hints[i][k] = forZone(to)
			giving[e.Zone]--
			receiving[to]--
			if receiving[to] == 0 {
				receivers = receivers[1:]
			}
			d.hinted[e.Zone]--
			d.hinted[to]++
		}
	}
}

// moves says how many endpoints each zone should give and receive: always one
// from the largest surplus to the largest deficit, as long as that helps.
func (d *decision) moves() (giving, receiving map[locality.Zone]int) {
	surplus, deficit := map[locality.Zone]float64{}, map[locality.Zone]float64{}
	for zone, a := range d.allocations {
		has := float64(d.hinted[zone])
		if has > a.desired {
			surplus[zone] = has - a.desired
		} else if has < a.desired {
			deficit[zone] = a.desired - has
		}
	}
	giving, receiving = map[locality.Zone]int{}, map[locality.Zone]int{}
	for {
		from, give := largest(surplus)
		to, receive := largest(deficit)
		if from == "" || to == "" || (give < 1 && receive < 1) || give < 0.5 || receive < 0.5 {
			return giving, receiving
		}
		giving[from]++
		surplus[from]--
		receiving[to]++
		deficit[to]--
	}
}

// largest returns the zone with the highest value above 0, of equal ones the
// first by name.
func largest(zones map[locality.Zone]float64) (zone locality.Zone, most float64) {
	for z, v := range zones {
		if v > most || v == most && v > 0 && z < zone {
			zone, most = z, v
		}
	}
	return zone, most
}

func sorted(zones map[locality.Zone]int) []locality.Zone { return slices.Sorted(maps.Keys(zones)) }
