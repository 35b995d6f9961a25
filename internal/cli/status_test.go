package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
	"github.com/proxima-mesh/proxima/internal/version"
)

func TestStatusPrints(t *testing.T) {
	cp := &admin.Status{Started: time.Now().Add(-time.Hour), Store: admin.StoreStatus{Name: "sqlite:", Revision: 7, Bytes: 4096, Problem: "disk full"},
		Agents:  []admin.AgentStatus{{Node: "a"}, {Node: "b", Rejected: "slice web: no address"}},
		Refused: []version.Refusal{{Name: "c", Reason: "too new"}}}
	cp.Version.Version = "v1"
	cp.Demand = demand.Coverage{Nodes: 3, Reporting: 1, Silent: 2, Ports: 5, SilentNodes: []demand.AgentDemand{{Node: "b", Age: 2 * time.Minute}, {Node: "c", Age: time.Minute}}}
	cp.Pulsar = &admin.PulsarStatus{Address: "192.0.2.1:6650", Consumers: 2, Subscriptions: 1, MaxConsumers: 1000}
	cp.Catalog.Objects = map[string]int{"services": 2, "nodes": 3}
	agent := &admin.NodeStatus{View: &admin.ViewStatus{}}
	agent.Agent.Mode, agent.Agent.Node.Name, agent.Agent.Node.Zone = "userspace", "a", "zone-a"
	agent.View.LastError = "connection refused"
	agent.LayerEstimate = &ebpf.Estimate{Unavailable: "no cgroup"}
	o := &overview{Server: "https://here", ControlPlane: cp, Agent: agent, Nodes: []nodeLine{
		{Name: "a", Zone: "zone-a", Ready: "True", Version: "v1.2.0", Following: true},
		{Name: "b", Ready: "False", Following: true, Behind: 3},
		{Name: "d", Ready: "Unknown", Cordoned: true, Drain: "Drained"},
		{Name: "e", Ready: "True", Cordoned: true},
	}}
	cp.Drains = []admin.DrainedNode{{
		Node: "d", State: "Drained", Since: time.Now().Add(-2 * time.Hour), By: "admin", Undo: "proxima node undrain d",
	}}
	o.findProblems()
	var out bytes.Buffer
	if err := o.print(&out); err != nil {
		t.Fatal(err)
	}
	want := `control plane https://here, v1, up 60m
store sqlite, revision 7, 4 kB
catalog 2 services, 0 slices, 0 dataplanes, 0 pods, 3 nodes
demand 1 of 3 nodes report, 5 service ports with traffic
pulsar 192.0.2.1:6650, 2 consumers of at most 1000, 1 subscriptions
this machine node a, zone zone-a, mode userspace, 0 service ports, 0 endpoints, not connected
eBPF layer mode ebpf would not work here: no cgroup

NODE ZONE READY VERSION FOLLOWING BEHIND
a zone-a True v1.2.0 true 0
b <none> False <none> true 3
d <none> Unknown, drained <none> false 0
e <none> True, cordoned <none> false 0

OUT OF USE STATE SINCE BY END IT WITH
d drained 120m ago admin proxima node undrain d

problems:
 - store: disk full: reads go on, writes are refused until it is mended: free space on the disk, or mount it so that it can be written
 - the control plane refuses an agent, which goes on with its last state: too new: upgrade in the order that the error names (proxima docs how-to/upgrade)
 - catalog: still reading the store; views follow when it has
 - node b refused a part of its view: slice web: no address: is its agent older than the control plane?
 - demand: 2 agents have stopped reporting, node b first, 2m ago; what is known of them is held: are they running? see their logs
 - node b is not ready: is its agent running? see its log
 - this machine's agent has no stream to the control plane, and serves its last state: connection refused
`
	if diff := cmp.Diff(want, regexp.MustCompile(` {2,}`).ReplaceAllString(out.String(), " ")); diff != "" {
		t.Error(diff)
	}

	out.Reset()
	if err := new(overview).print(&out); err != nil || strings.TrimSpace(out.String()) != "no problems found" {
		t.Errorf("got %q, %v", &out, err)
	}
}

// TestWaitingAgent: an agent that cannot begin yet says what it waits for.
func TestWaitingAgent(t *testing.T) {
	agent := &admin.NodeStatus{Waiting: "node a: it has no address yet", API: "https://there"}
	agent.Agent.Node.Name, agent.Agent.Mode = "a", "nftables"
	o := &overview{Agent: agent}
	o.findProblems()
	var out bytes.Buffer
	if err := o.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{", waiting\n", "- this machine's agent waits, and serves nothing yet: node a: it has no address yet"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q", &out, want)
		}
	}
}

// TestSilentInstance: where an agent may follow an instance that does not answer, status does
// not claim that it follows none.
func TestSilentInstance(t *testing.T) {
	var out bytes.Buffer
	o := &overview{
		ControlPlane: &admin.Status{SilentInstances: []string{"cp-2"}},
		Nodes:        []nodeLine{{Name: "b-1", Ready: "True", Unknown: true}},
	}
	o.ControlPlane.Catalog.Synced = true
	o.findProblems()
	if err := o.print(&out); err != nil || !regexp.MustCompile(`b-1 .* unknown `).MatchString(out.String()) ||
		!strings.Contains(out.String(), "instance cp-2 of the control plane does not say which agents follow there") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// TestSuspectNode: the table of nodes says which are suspect.
func TestSuspectNode(t *testing.T) {
	var out bytes.Buffer
	o := &overview{Nodes: []nodeLine{{Name: "b-1", Ready: "True", Suspect: true}}}
	if err := o.print(&out); err != nil || !strings.Contains(out.String(), "True, suspect") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// TestPrintLimits: each is a line, and not more than fit.
func TestPrintLimits(t *testing.T) {
	var out strings.Builder
	(&overview{}).printLimits(&out)
	o := &overview{Agent: &admin.NodeStatus{}}
	o.Agent.Agent.Mode = "kernelspace"
	for range maxLimitsShown + 2 {
		o.Agent.Limits = append(o.Agent.Limits, "shop/web: weights")
	}
	o.printLimits(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != maxLimitsShown+1 || lines[0] != "mode kernelspace does not do all of service port shop/web: weights" || !strings.Contains(lines[maxLimitsShown], "2 more") {
		t.Errorf("%q", lines)
	}
}
