package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/refusal"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/version"
)

// certificateLeft is the part of a certificate's life at whose end a proxy is in trouble: it is
// renewed after two thirds, and tried again until it succeeds.
const certificateLeft = 4

// maxNamedProxies of a finding.
const maxNamedProxies = 5

// Proxy is that of a workload or a gateway.
type Proxy struct {
	// Name as the commands "proxima proxy" want it: NAMESPACE/NAME, or */NAME of a gateway.
	Name string
	// Copied from another control plane, whose business it is: that may be older.
	Copied bool
	Status *meshv1alpha1.ClientInsightStatus
}

// program is the version of ours that the proxy is run by: its supervisor, or the process of a gateway
// without Envoy.
func (p *Proxy) program() string {
	if v := p.Status.Versions; v != nil {
		if v.Supervisor == "" && v.Proxy == "proxima" {
			return v.Version
		}
		return v.Supervisor
	}
	return ""
}

// proxies are the findings about the proxies of workloads and gateways; none where there are none.
func (x examiner) proxies(ctx context.Context, plane string) []Finding {
	insights, err := x.ControlPlane.Proxies(ctx)
	if err != nil || len(insights) == 0 {
		return nil // an API without the kind, or that does not let this user read it
	}
	out := proxyFindings(insights, plane, time.Now())
	return append(out, refusalFinding(x.ControlPlane.Refusals(ctx, insights), unsupervised(insights)))
}

// unsupervised are the proxies and programs of this control plane's workloads that are connected, and have no
// supervisor that could be asked what they refuse.
func unsupervised(all []Proxy) (n int) {
	for i := range all {
		if p := &all[i]; p.Status.Online && !p.Copied && !strings.HasPrefix(p.Name, "*/") && (p.Status.Versions == nil || p.Status.Versions.Supervisor == "") {
			n++
		}
	}
	return n
}

// Refusal is what the proxy of a workload refused within a moment.
type Refusal struct {
	// Workload, NAMESPACE/NAME.
	Workload string
	Counts   []refusal.Count
	// Policies by which it may refuse callers, as KIND NAMESPACE/NAME.
	Policies []string
}

// refusalFinding names who refuses connections now, and by what. So many proxies could not be asked.
func refusalFinding(all []Refusal, unsupervised int) Finding {
	f := Finding{ID: checkProxyRefusals, Check: "connections to proxies", Note: "none is refused now"}
	if unsupervised > 0 {
		f.Note = fmt.Sprintf("none is refused now by those that have a supervisor; %d have none, and are not asked", unsupervised)
	}
	var texts []string
	for i := range all {
		for _, c := range all[i].Counts {
			texts = append(texts, refusalText(&all[i], c))
		}
	}
	if len(texts) > 0 {
		f.fail(problem.ProxyRefuses, "are refused now: "+someOf(texts),
			"\"proxima explain connection CLIENT NAMESPACE/NAME\" says which policy decides about a client, and what would let it in")
	}
	return f
}

func refusalText(r *Refusal, c refusal.Count) string {
	port := ""
	if c.Port != 0 {
		port = fmt.Sprintf(" at port %d", c.Port)
	}
	var by string
	switch c.Cause {
	case refusal.Permission:
		by = "by a TrafficPermission"
		if len(r.Policies) > 0 {
			by = "by " + strings.Join(r.Policies[:min(len(r.Policies), maxNamedProxies)], ", ")
		}
	case refusal.Plain:
		by = "in mode Strict: the client begins no mutual TLS of the mesh, or its certificate does not hold"
	case refusal.Bypass:
		by = "in mode Strict: the connection comes past the proxy, as through the virtual IP on its own machine"
	case refusal.Outside:
		return fmt.Sprintf("%s calls addresses outside the mesh, which its passthrough refuses (%d)", r.Workload, c.Count)
	}
	return fmt.Sprintf("%s refuses%s %s (%d)", r.Workload, port, by, c.Count)
}

// proxyFindings of insights, at a control plane of this version.
func proxyFindings(all []Proxy, plane string, now time.Time) []Finding {
	var ending, rejecting, outdated []string
	for k := range all {
		i, who := &all[k], all[k].Name
		if c := i.Status.Certificate; c != nil {
			left, life := c.Expiry.Sub(now), c.Expiry.Sub(c.LastIssue.Time)
			switch {
			case left <= 0:
				ending = append(ending, who+" (expired)")
			case left < life/certificateLeft:
				ending = append(ending, fmt.Sprintf("%s (%s left)", who, duration.HumanDuration(left)))
			}
		}
		for _, r := range i.Status.Rejected {
			from := ""
			if r.Policy != "" {
				from = " of " + r.Policy
			}
			rejecting = append(rejecting, fmt.Sprintf("%s: %s %s%s", who, r.Type, r.Name, from))
		}
		if v := i.program(); i.Status.Online && !i.Copied && version.Older(v, plane) {
			outdated = append(outdated, fmt.Sprintf("%s (%s)", who, v))
		}
	}
	certificates := Finding{ID: checkProxyCertificates, Check: "certificates of proxies", Note: "are renewed"}
	if len(ending) > 0 {
		certificates.fail(problem.ProxyCertificateEnds, "less than a quarter of their life is left: "+someOf(ending),
			"\"proxima proxy status NAMESPACE/NAME\" says why the renewal fails; without a certificate connections of the mesh are refused")
	}
	config := Finding{ID: checkProxyConfig, Check: "configuration of proxies", Note: "is accepted by all"}
	if len(rejecting) > 0 {
		config.fail(problem.ProxyRejects, "rejected: "+someOf(rejecting),
			"change the policy or object that it is made from; \"proxima proxy config NAMESPACE/NAME --diff\" has the reasons")
	}
	versions := Finding{ID: checkProxyVersions, Check: "versions of proxies", Note: "are those of the control plane, or newer"}
	if len(outdated) > 0 {
		versions.fail(problem.ProxyOutdated, fmt.Sprintf("supervisors, or gateways, are older than the control plane (%s): %s", plane, someOf(outdated)),
			"install the new release on their machines, and start the workloads and gateways again")
	}
	return []Finding{certificates, config, versions}
}

// sidecars are the findings about Pods of a cluster whose sidecars are missing, or not used; none where
// Pods have no sidecars.
func sidecars(p *admin.ProxiesStatus) []Finding {
	if p == nil {
		return nil
	}
	f := Finding{ID: checkSidecars, Check: "sidecars of Pods", Note: "are there, and connections are led to them"}
	if p.Missing > 0 {
		f.fail(problem.SidecarMissing, fmt.Sprintf("%d Pods should have one and have none: %s", p.Missing, firstOf(p.Without, p.Missing)),
			"create them again, as by kubectl rollout restart; kubectl describe pod says what else is needed")
	}
	out := []Finding{f}
	if p.Unredirected > 0 {
		var first []string
		for _, w := range p.Waiting {
			first = append(first, fmt.Sprintf("%s on node %s (%s)", w.Pod, w.Node, w.Reason))
		}
		led := Finding{ID: checkSidecars, Check: "connections of Pods"}
		led.fail(problem.SidecarNotRedirected, "are not led to their sidecars, and they do not start: "+firstOf(first, p.Unredirected),
			"do what the reason says; the log of the agent of that node has more")
		out = append(out, led)
	}
	return out
}

// firstOf a number of things.
func firstOf(some []string, all int) string {
	some = some[:min(len(some), maxNamedProxies)]
	if n := all - len(some); n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(some, "; "), n)
	}
	return strings.Join(some, "; ")
}

// someOf a list, in order.
func someOf(all []string) string {
	slices.Sort(all)
	return firstOf(all, len(all))
}
