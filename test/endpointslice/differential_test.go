package endpointslice

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// histories to live through; a failure names the number of the one it is in.
func histories() uint64 {
	if os.Getenv("PROXIMA_SOAK") != "" {
		return 10_000
	}
	return 500
}

// In every situation that random histories lead to, and from the same slices, we
// come to the same endpoints in the same groups, with the same conditions, hints
// and labels, with no more slices and no more writes than theirs may need, and
// all in all with no more than it did. The history then goes on
// from what one side or the other left behind, so each also takes over from the
// other.
func TestSameAsKubernetes(t *testing.T) {
	totals := map[string]int{}
	for seed := range histories() {
		h := newHistory(seed)
		at := &world{slices: map[string]*discoveryv1.EndpointSlice{}}
		for range 12 {
			s := h.next()
			our, their := at.copied(), at.copied()
			compare(t, fmt.Sprintf("history %d, step %d", seed, h.step), s, at, our, their)
			if t.Failed() {
				return
			}
			totals["steps"]++
			totals["our writes"] += our.writes
			totals["their writes"] += their.writes
			totals["our slices"] += len(our.slices)
			totals["their slices"] += len(their.slices)
			if h.chance(2) {
				at = our
			} else {
				at = their
			}
		}
		atEnd(t, seed, h, at)
	}
	t.Log(totals)
	// Theirs is lucky in one step of thousands; a thousandth is no trend.
	if totals["our writes"]*1000 > totals["their writes"]*1001 || totals["our slices"]*1000 > totals["their slices"]*1001 {
		t.Errorf("all in all ours takes more than theirs: %v", totals)
	}
}

// luck is how often theirs may try to need as much as ours did.
const luck = 50

// worst is the most that theirs writes, and leaves, from one start: it goes
// through its endpoints in the order of a map, so that differs from run to run.
// It stops as soon as it has seen as much as ours needed.
func worst(t *testing.T, s *situation, start, our *world) (writes, left int) {
	t.Helper()
	for range luck {
		their := start.copied()
		if _, err := their.runTheirs(s); err != nil {
			t.Fatal(err)
		}
		writes, left = max(writes, their.writes), max(left, len(their.slices))
		if writes >= our.writes && left >= len(our.slices) {
			break
		}
	}
	return writes, left
}

// atEnd checks a Service that is being deleted: nothing is created any more. Which
// endpoints fit then depends on how the others are spread, so only that is
// compared.
func atEnd(t *testing.T, seed uint64, h *history, at *world) {
	t.Helper()
	s := h.next()
	s.service.DeletionTimestamp = &metav1.Time{}
	our, their := at.copied(), at.copied()
	if _, err := our.runOurs(s); err != nil {
		t.Errorf("history %d, at its end: ours: %v", seed, err)
	}
	if _, err := their.runTheirs(s); err != nil {
		t.Errorf("history %d, at its end: theirs: %v", seed, err)
	}
	if our.named != at.named || their.named != at.named {
		t.Errorf("history %d, at its end: created %d slices, theirs %d", seed, our.named-at.named, their.named-at.named)
	}
}

func compare(t *testing.T, where string, s *situation, start, our, their *world) {
	t.Helper()
	before := len(our.slices)
	skipped, err := our.runOurs(s)
	if err != nil {
		t.Errorf("%s: ours: %v", where, err)
	}
	theySkipped, err := their.runTheirs(s)
	if err != nil {
		t.Errorf("%s: theirs: %v", where, err)
	}
	if skipped != theySkipped {
		t.Errorf("%s: pods were left out: ours %v, theirs %v", where, skipped, theySkipped)
	}
	if diff := cmp.Diff(facts(their), facts(our)); diff != "" {
		t.Errorf("%s: -theirs +ours %s", where, diff)
	}
	if len(our.slices) > len(their.slices) || our.writes > their.writes {
		writes, left := worst(t, s, start, our)
		if len(our.slices) > left || our.writes > writes {
			t.Errorf("%s: %d writes and %d slices, theirs at most %d and %d", where, our.writes, len(our.slices), writes, left)
		}
	}
	if t.Failed() {
		t.Logf("%d slices before, at most %d endpoints each, service %+v", before, s.max, s.service.Spec)
	}
}

// facts are the contents of slices, except how endpoints are spread over them. An
// empty slice counts only if there is no other: Kubernetes' controller sometimes
// leaves one next to others.
func facts(w *world) []string {
	var out []string
	endpoints := map[discoveryv1.AddressType]int{}
	for _, s := range w.slices {
		endpoints[s.AddressType] += len(s.Endpoints)
	}
	for _, s := range w.slices {
		head := fmt.Sprintf("%s %s labels=%v owner=%s", s.AddressType, ports(s), s.Labels, owners(s))
		if endpoints[s.AddressType] == 0 {
			out = append(out, head+" empty")
		}
		for _, e := range s.Endpoints {
			out = append(out, head+" "+endpoint(&e))
		}
	}
	slices.Sort(out)
	return out
}

func owners(s *discoveryv1.EndpointSlice) string {
	var out []string
	for _, ref := range s.OwnerReferences {
		out = append(out, ref.String())
	}
	return strings.Join(out, ",")
}

func ports(s *discoveryv1.EndpointSlice) string {
	var out []string
	for _, p := range s.Ports {
		out = append(out,
			fmt.Sprintf("%s:%d/%s/%s", ptr.Deref(p.Name, "-"), ptr.Deref(p.Port, -1), ptr.Deref(p.Protocol, "-"), ptr.Deref(p.AppProtocol, "-")))
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func endpoint(e *discoveryv1.Endpoint) string {
	line := fmt.Sprintf("%v ready=%v serving=%v terminating=%v", e.Addresses,
		*e.Conditions.Ready, *e.Conditions.Serving, *e.Conditions.Terminating)
	line += fmt.Sprintf(" node=%s zone=%s host=%s", ptr.Deref(e.NodeName, "-"), ptr.Deref(e.Zone, "-"), ptr.Deref(e.Hostname, "-"))
	if e.TargetRef != nil {
		line += fmt.Sprintf(" target=%+v", corev1.ObjectReference(*e.TargetRef))
	}
	if e.Hints != nil {
		line += fmt.Sprintf(" hints=%v%v", e.Hints.ForZones, e.Hints.ForNodes)
	}
	return line
}
