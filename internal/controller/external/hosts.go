package external

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// maxShown hosts in a message.
const maxShown = 10

func shown(hosts []string) string {
	text := strings.Join(hosts[:min(len(hosts), maxShown)], ", ")
	if more := len(hosts) - maxShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// hosts is the condition of what agents answer for spec.hosts.
func (in Input) hosts(ips []string) metav1.Condition {
	const typ = meshv1alpha1.ExternalServiceHostsEnforced
	hosts := in.External.Spec.Hosts
	var taken, others, reserved []string
	for _, host := range hosts {
		if rival := in.Rivals[host]; rival != "" {
			taken = append(taken, host)
			if !slices.Contains(others, rival) {
				others = append(others, rival)
			}
		}
		if isOurs(host) {
			reserved = append(reserved, host)
		}
	}
	mesh := MeshOf(in.External, in.Namespace)
	switch {
	case len(hosts) == 0:
		return condition(typ, true, notAsked, "spec.hosts is empty")
	case len(ips) == 0:
		return condition(typ, false, "NoAddress", "there are no virtual IPs to answer with: "+shown(hosts)+" lead where they did before")
	case !in.reached():
		return condition(typ, false, "NoWay",
			"there is no way to the service (see Addressed), or it has no TCP port: "+shown(hosts)+" lead where they did before")
	case len(reserved) > 0:
		return condition(typ, false, "Reserved", shown(reserved)+": agents answer this domain otherwise; remove it from spec.hosts")
	case len(taken) > 0:
		return condition(typ, false, "HostTaken", fmt.Sprintf("in mesh %s %s leads to external service %s, which was there before: remove it from one of them",
			mesh, shown(taken), strings.Join(others, ", ")))
	}
	return condition(typ, true, enforced, fmt.Sprintf("agents answer %s with the virtual IPs, to workloads of mesh %s that ask them", shown(hosts), mesh))
}

// isOurs reports whether agents answer a host as one of their own domains.
func isOurs(host string) bool {
	for _, domain := range []string{"cluster.local", "clusterset.local", meshname.Domain} {
		if host == domain || strings.HasSuffix(host, "."+domain) {
			return true
		}
	}
	return false
}

// reached reports whether workloads of this zone have a way to the service.
func (in Input) reached() bool {
	e := in.External
	tcp := slices.ContainsFunc(e.Spec.Ports, func(p meshv1alpha1.ExternalServicePort) bool { return p.Protocol != meshv1alpha1.ProtocolUDP })
	return tcp && (sites.ReachedFrom(e, in.Site) || slices.ContainsFunc(e.Spec.Zones, func(zone string) bool { return in.Ingresses[zone] }))
}
