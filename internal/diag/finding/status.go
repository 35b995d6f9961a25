package finding

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// FixDisk is the fix for files that cannot be written.
const FixDisk = "free space on the disk, or mount it so that it can be written"

// Store is whether the store, or the cluster, of a control plane can be used.
func Store(s *admin.Status) []admin.Problem {
	switch text := s.Store.Problem; {
	case text == "":
		return nil
	case s.Preset != "":
		return []admin.Problem{failing(problem.StoreUnreachable, object{}, text+": answers are from what was read before, if anything was",
			"grant what it names, or check the way to that API; it goes on by itself")}
	default:
		return []admin.Problem{failing(problem.StoreUnwritable, object{}, "store: "+text+": reads go on, writes are refused until it is mended", FixDisk)}
	}
}

// Damage is the kinds of objects that cannot be read, as stored data is damaged.
func Damage(s admin.StoreStatus) []admin.Problem {
	var out []admin.Problem
	for _, resource := range slices.Sorted(maps.Keys(s.Unreadable)) {
		out = append(out, failing(problem.StoreDamaged, object{name: resource},
			fmt.Sprintf("%s cannot be read, and what depends on them waits: %s", resource, s.Unreadable[resource]),
			"restore a backup (proxima restore). Agents go on with what they have"))
	}
	return out
}

// Audit is the audit logs that cannot be written.
func Audit(logs audit.States, now time.Time) []admin.Problem {
	var out []admin.Problem
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		log := logs[name]
		if log.Problem == "" {
			continue
		}
		p := failing(problem.AuditUnwritable, object{name: name + ".log"}, "", "is there free space in the data directory, and is it writable?")
		p.Since = valueOf(log.Since)
		p.Problem = fmt.Sprintf("audit log %s.log cannot be written%s: %s: requests go on, %d records are lost", name, lasting(p.Since, now), log.Problem, log.Lost)
		out = append(out, p)
	}
	return out
}

// Traces is whether traces of changes can be sent, where they are on.
func Traces(t *tracing.Status) []admin.Problem {
	if t == nil || t.Error == "" {
		return nil
	}
	p := warning(problem.TracesLost, object{}, fmt.Sprintf("traces of changes cannot be sent to %s: %s: %d spans are lost", t.Endpoint, t.Error, t.Dropped), tracing.Hint)
	p.Since = t.Since
	return []admin.Problem{p}
}

// Feed is what is wrong with the change feed.
func Feed(f *admin.FeedStatus, now time.Time) []admin.Problem {
	if f == nil {
		return nil
	}
	var out []admin.Problem
	add := func(object object, fix, format string, args ...any) *admin.Problem {
		out = append(out, failing(problem.FeedUnwritable, object, fmt.Sprintf(format, args...), fix))
		return &out[len(out)-1]
	}
	const space = "free space on the disk, or give the feed another with --feed-root"
	if f.Problem != "" {
		since := valueOf(f.Since)
		add(object{}, space, "the change feed is not written%s: %s: requests go on, and the store keeps its changes for the feed for an hour",
			lasting(since, now), f.Problem).Since = since
	}
	for _, r := range f.Roots {
		if r.Problem != "" {
			add(object{name: r.Dir}, space, "root %s of the change feed takes no segments: %s", r.Dir, r.Problem)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.UnfollowedKinds)) {
		add(object{name: name}, "grant what it names; it is tried again", "%s of the cluster are not followed by the change feed now: %s", name, f.UnfollowedKinds[name])
	}
	for _, name := range slices.Sorted(maps.Keys(f.SinkProblems)) {
		add(object{name: name}, "see what receives it, and \"proxima feed sink list\"", "sink %s of the change feed does not deliver, and is tried again: %s", name, f.SinkProblems[name])
	}
	for _, text := range f.RedactionProblems {
		add(object{name: "redactions"}, "do what it names; \"proxima feed redact --list\" says what is left", "a redacted value may still be in the change feed: %s", text)
	}
	if f.Gap {
		p := add(object{name: "gap"}, "nothing brings it back; give the feed more space", "the change feed has a gap before %s, position %d: changes before it are not shown",
			f.Begins.UTC().Format(time.RFC3339), f.First)
		p.Severity, p.Since = admin.SeverityWarning, f.Begins
	}
	return out
}

// maxExpiries are listed one by one; more are summed up.
const maxExpiries = 5

// Machines are those that are gone, or may be.
func (f Finder) Machines(s *admin.Status) []admin.Problem {
	var out []admin.Problem
	now := f.now()
	for _, m := range s.Suspects {
		p := failing(problem.NodeSuspect, object{kind: "Node", name: m.Node},
			fmt.Sprintf("node %s has been suspect for %s: its stream stalled and it does not answer %s; its endpoints are used last until it comes back or its lease runs out",
				m.Node, duration.HumanDuration(max(now.Sub(m.Since), 0)), strings.Join(m.Witnesses, ", ")),
			"is the machine on, and its agent not stopped?")
		p.Since = m.Since
		out = append(out, p)
	}
	for _, r := range s.Refused {
		out = append(out, failing(problem.AgentRefused, object{kind: "Node", name: r.Name},
			"the control plane refuses an agent, which goes on with its last state: "+r.Reason, "upgrade in the order that the error names (proxima docs how-to/upgrade)"))
	}
	const start = "switch the machine on, or start its agent; if it is gone for good: kubectl delete node NAME"
	if s.Leases.Held {
		out = append(out, warning(problem.LeasesHeld, object{}, "leases: "+s.Leases.Reason, start))
	}
	for i, h := range s.Leases.Expiries {
		if i == maxExpiries {
			out = append(out, warning(problem.LeasesHeld, object{}, fmt.Sprintf("leases: %d more expiries are held", len(s.Leases.Expiries)-i), "see proxima status -o json"))
			break
		}
		until := "until it renews its lease"
		if !h.Until.IsZero() {
			until = "for " + duration.HumanDuration(max(h.Until.Sub(now), 0)) + " at most"
		}
		out = append(out, warning(problem.LeasesHeld, leaseholder(h.Object),
			fmt.Sprintf("%s%s has not renewed its lease and is not marked not ready %s: %s", h.Object, inZone(h.Zone), until, h.Reason), start))
	}
	if len(s.Unreachable) > 0 {
		out = append(out, warning(problem.ProbesBlocked, object{kind: "Node", name: s.Unreachable[0]},
			fmt.Sprintf("probes of other agents do not reach node %s: should a machine of these die, that is noticed by its lease only", strings.Join(s.Unreachable, ", ")),
			fmt.Sprintf("let UDP port %d (--probe-port) pass between the nodes", f.ProbePort)))
	}
	return out
}

// leaseholder of a text such as "node a" or "dataplane shop/web".
func leaseholder(text string) object {
	kind, name, _ := strings.Cut(text, " ")
	if kind == "dataplane" {
		return inNamespace("Dataplane", name)
	}
	return object{kind: "Node", name: name}
}

func inZone(zone locality.Zone) string {
	if zone == "" {
		return ""
	}
	return " in zone " + string(zone)
}

// Node is what is wrong with a Node: ready is the status of its condition, conflict why a second machine has its name.
func Node(name, ready string, drained bool, conflict string, since time.Time) []admin.Problem {
	var out []admin.Problem
	if conflict != "" {
		out = append(out, failing(problem.NodeNameTaken, object{kind: "Node", name: name}, "node "+name+": "+conflict, "stop one of the agents, or give it another name and token"))
	}
	if ready != "True" && !drained { // a drained one may be switched off
		p := failing(problem.NodeNotReady, object{kind: "Node", name: name}, "node "+name+" is not ready", "is its agent running? see its log")
		p.Since = since
		out = append(out, p)
	}
	return out
}

// workloads that nobody can reach by their address.
func workloads(s *admin.Status) (out []admin.Problem) {
	for _, d := range s.InServiceRanges {
		out = append(out, failing(problem.AddressInServiceRange, inNamespace("Dataplane", d),
			fmt.Sprintf("dataplane %s has an address in a service range, which agents do not use as an endpoint", d), "give it another"))
	}
	return out
}

func tables(s *admin.Status) []admin.Problem {
	if s.Catalog.Synced {
		return nil
	}
	return []admin.Problem{warning(problem.CatalogPending, object{}, "catalog: still reading the store; views follow when it has", "")}
}

func ranges(s *admin.Status) (out []admin.Problem) {
	for _, u := range s.Ranges {
		if u.Size > 0 && u.Taken >= u.Size-u.Size/10 {
			out = append(out, warning(problem.RangeNearlyFull, object{name: u.Range}, fmt.Sprintf("range %s is nearly full: %d of %d are taken", u.Range, u.Taken, u.Size),
				"add a ServiceCIDR (for node ports, delete Services of type NodePort)"))
		}
	}
	return out
}

func agents(s *admin.Status) (out []admin.Problem) {
	for _, name := range s.SilentInstances {
		out = append(out, failing(problem.InstanceSilent, object{name: name},
			fmt.Sprintf("instance %s of the control plane does not say which agents follow there", name), "is it running? see its log"))
	}
	for _, a := range s.Agents {
		if a.Rejected != "" {
			out = append(out, failing(problem.AgentRejects, object{kind: "Node", name: a.Node},
				fmt.Sprintf("node %s refused a part of its view: %s", a.Node, a.Rejected), "is its agent older than the control plane?"))
		}
	}
	return out
}

// Proxies are those that do not have a resource as it is now, and Pods whose sidecars are missing, or not used.
func Proxies(s *admin.ProxiesStatus) (out []admin.Problem) {
	if s == nil {
		return nil
	}
	for _, r := range s.Rejected {
		out = append(out, failing(problem.ProxyRejects, inNamespace("Dataplane", r.Dataplane),
			fmt.Sprintf("the proxy of dataplane %s goes on without the present version of %s %s, which was rejected: %s", r.Dataplane, r.Type, r.Name, r.Reason),
			"change the object or policy that it is made from"))
	}
	if s.Missing > 0 {
		first := ""
		if len(s.Without) > 0 {
			first = s.Without[0]
		}
		out = append(out, failing(problem.SidecarMissing, inNamespace("Pod", first),
			fmt.Sprintf("%d Pods should have a sidecar and have none, first %s: they were created before their namespace was labelled, while no control plane answered, "+
				"or with something that the answer to their creation named", s.Missing, first),
			"create them again, as by kubectl rollout restart; an Event of each says more"))
	}
	if s.Unredirected > 0 && len(s.Waiting) > 0 {
		first := s.Waiting[0]
		out = append(out, failing(problem.SidecarNotRedirected, inNamespace("Pod", first.Pod),
			fmt.Sprintf("connections of %d Pods are not led to their sidecars, and they do not start, first %s on node %s: %s", s.Unredirected, first.Pod, first.Node, first.Reason),
			"do what the reason says; the log of the agent of that node has more"))
	}
	return out
}

// silent agents have reported their demand, and do not any more.
func silent(s *admin.Status) []admin.Problem {
	d := s.Demand
	if d.Silent == 0 || len(d.SilentNodes) == 0 {
		return nil
	}
	first := d.SilentNodes[0]
	return []admin.Problem{warning(problem.DemandSilent, object{kind: "Node", name: first.Node},
		fmt.Sprintf("demand: %d agents have stopped reporting, node %s first, %s ago; what is known of them is held", d.Silent, first.Node, duration.HumanDuration(first.Age)),
		"are they running? see their logs")}
}

func valueOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// lasting says how long something has been so; empty: that is not known.
func lasting(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return " for " + duration.HumanDuration(max(now.Sub(since), 0))
}
