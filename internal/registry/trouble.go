package registry

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TroubleReason is what is wrong with instances.
type TroubleReason string

const (
	// NotServed: the protocol is not served here, so their clients cannot renew them, or register again.
	NotServed TroubleReason = "NotServed"
	// Orphaned: no session keeps them alive; they are deleted when their clients do not come back.
	Orphaned TroubleReason = "Orphaned"
	// Loopback: their address is one of the machine that they were registered on, and there are others.
	Loopback TroubleReason = "Loopback"
	// NameTaken: the Service of their name is somebody's own, and does not select them.
	NameTaken TroubleReason = "NameTaken"
	// Full: the protocol's server has, or nearly has, as many clients as it admits.
	Full TroubleReason = "Full"
	// QuotaUsed: nodes beside instances and configuration take nearly all of their quota, or all.
	QuotaUsed TroubleReason = "QuotaUsed"
)

// Trouble is something that is wrong with what clients of a registry protocol registered, or with its server.
type Trouble struct {
	Reason   TroubleReason `json:"reason"`
	Protocol Protocol      `json:"protocol"`
	// Count of what it concerns: instances, clients, or nodes. Examples are the first ones, in order: Dataplanes, or
	// Services, as NAMESPACE/NAME.
	Count    int      `json:"count"`
	Examples []string `json:"examples,omitempty"`
}

// maxExamples of a Trouble.
const maxExamples = 5

// Examination is what Examine needs to know of a control plane.
type Examination struct {
	Snapshot *catalog.Snapshot
	// Served are the protocols that this instance of the control plane serves.
	Served []Status
	// Owner is this instance, and Running are the owners that run; nil: this one alone.
	Owner   string
	Running map[string]bool
	// Claimed reports whether a session of this instance keeps an instance alive; nil: none is.
	Claimed func(resource.Key) bool
}

// Examine the instances that clients registered, and the servers of registries. It takes time in proportion to the
// instances.
func Examine(x Examination) []Trouble {
	type of struct {
		reason   TroubleReason
		protocol Protocol
	}
	found := map[of]map[string]struct{}{}
	counts := map[of]int{}
	note := func(reason TroubleReason, protocol Protocol, example string) {
		key := of{reason, protocol}
		if found[key] == nil {
			found[key] = map[string]struct{}{}
		}
		found[key][example] = struct{}{}
		counts[key]++
	}
	served := map[Protocol]bool{}
	for _, s := range x.Served {
		served[s.Protocol] = true
	}
	for key, d := range x.Snapshot.Dataplanes.All() {
		if !Registered(d) {
			continue
		}
		protocol := Protocol(d.Labels[LabelProtocol])
		if !served[protocol] {
			note(NotServed, protocol, key.String())
		}
		if owner := d.Annotations[AnnotationOwner]; owner != "" && served[protocol] && x.orphaned(owner, key) {
			note(Orphaned, protocol, key.String())
		}
		if len(d.Spec.Addresses) > 0 && x.Snapshot.Nodes.Len() > 1 {
			if at, err := netip.ParseAddr(d.Spec.Addresses[0]); err == nil && at.IsLoopback() {
				note(Loopback, protocol, key.String())
			}
		}
		if name := (resource.Key{Namespace: key.Namespace, Name: d.Labels[LabelService]}); name.Name != "" {
			if s, ok := x.Snapshot.Services.Get(name); ok && !selects(s, d) {
				note(NameTaken, protocol, name.String())
			}
		}
	}
	var out []Trouble
	for key, examples := range found {
		t := Trouble{Reason: key.reason, Protocol: key.protocol, Count: counts[key]}
		for text := range examples {
			t.Examples = append(t.Examples, text)
		}
		slices.Sort(t.Examples)
		t.Examples = t.Examples[:min(len(t.Examples), maxExamples)]
		out = append(out, t)
	}
	for _, s := range x.Served {
		if s.Limit > 0 && s.Clients*10 >= s.Limit*9 {
			out = append(out, Trouble{Reason: Full, Protocol: s.Protocol, Count: s.Clients})
		}
	}
	for _, s := range x.Served {
		if n := s.Nodes; n != nil && n.Bytes >= n.Quota/10*9 {
			out = append(out, Trouble{Reason: QuotaUsed, Protocol: s.Protocol, Count: n.Count})
		}
	}
	slices.SortFunc(out, func(a, b Trouble) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out
}

// orphaned reports whether an instance of an owner has no session.
func (x Examination) orphaned(owner string, key resource.Key) bool {
	if owner == x.Owner {
		return x.Claimed == nil || !x.Claimed(key)
	}
	return !x.Running[owner]
}

// selects reports whether a Service has a Dataplane as an endpoint, or has a selector of none.
func selects(s *corev1.Service, d *meshv1alpha1.Dataplane) bool {
	if len(s.Spec.Selector) == 0 {
		return false
	}
	for key, value := range s.Spec.Selector {
		if d.Labels[key] != value {
			return false
		}
	}
	return true
}
