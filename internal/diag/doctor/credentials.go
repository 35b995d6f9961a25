package doctor

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// credentials is about how the control plane recognises this machine: the
// agent's certificate, and the node name that no other machine may have.
func credentials(ctx context.Context, agent *admin.NodeStatus) []Finding {
	if agent == nil || agent.Certificate == nil {
		return nil
	}
	c := agent.Certificate
	certificate := Finding{ID: checkCertificate, Check: "certificate"}
	if c.Problem != "" {
		certificate.fail(problem.CertificateNotValid, c.Problem, c.Fix)
	} else {
		certificate.Note = c.User + ", for " + duration.HumanDuration(time.Until(c.NotAfter))
		if c.RenewalError != "" {
			certificate.Note += "; not renewed since " + c.FailingSince.Format(time.RFC3339) + ": " + c.RenewalError
		}
	}
	name := Finding{ID: checkNodeName, Check: "node name " + agent.Agent.Node.Name}
	// Without a connection it cannot be otherwise, and that is said elsewhere.
	if m := agent.Membership; m != nil && agent.View != nil && agent.View.Connected {
		switch {
		case m.Problem != "":
			name.fail(problem.NodeNameTaken, m.Problem,
				"the agent tries again every 10 s; if another machine has the name, stop the agent on one of them, or give it another --node-name and token")
		case m.Conflict != "":
			name.fail(problem.NodeNameTaken, m.Conflict,
				"find that machine: the control plane's log names it; stop its agent, or give it another --node-name and token")
		case m.MachineID != "":
			name.Note = "machine " + m.MachineID
		}
	}
	return append([]Finding{certificate, name}, everywhereNote(ctx, agent)...)
}

// everywhereNote names a credential that registers workloads in every namespace on
// a machine that does not run its control plane; nothing else is said. The control
// plane's own machine has the administrator's kubeconfig besides.
func everywhereNote(ctx context.Context, agent *admin.NodeStatus) []Finding {
	if !agent.Certificate.Everywhere || isHere(ctx, agent.API) {
		return nil
	}
	return []Finding{{ID: checkBounds, Check: "bounds of the credential", Note: fmt.Sprintf("%s may register workloads in every namespace, from a machine that is not "+
		"the control plane's: a token with --namespaces limits it (proxima token create --kind node --name %s --namespaces a,b)",
		agent.Certificate.User, agent.Agent.Node.Name)}}
}

// lookupTimeout of the control plane's name, which may need a server that does not
// answer.
const lookupTimeout = 2 * time.Second

// isHere reports whether the host of a URL is this machine: by a loopback address,
// or by one of its interfaces. It blocks for a DNS lookup; false if that fails.
func isHere(ctx context.Context, api string) bool {
	u, err := url.Parse(api)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	hosts, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	own, ownErr := net.InterfaceAddrs()
	if err != nil || ownErr != nil {
		return false
	}
	return slices.ContainsFunc(hosts, func(h netip.Addr) bool {
		h = h.Unmap().WithZone("")
		return h.IsLoopback() || slices.ContainsFunc(own, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && p.Addr().Unmap() == h
		})
	})
}
