// Package hnstest is HNS in memory, for tests of what uses package hns.
//
// It has the semantics that the kernelspace mode depends on: one load balancer per front, endpoints
// that load balancers refer to, addresses that are unique in a network among endpoints of a kind,
// features that a version lacks, and networks that vanish with all that is in them. Enter at [New].
package hnstest

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns"
)

// Fake implements hns.Service. Its methods may be called from several goroutines.
type Fake struct {
	mu        sync.Mutex
	features  hns.Features
	networks  map[string]*hns.Network
	endpoints map[string]hns.Endpoint
	balancers map[string]hns.LoadBalancer
	next      int
	calls     []string
	fail      func(n int, call string) (err error, done bool)
}

// New is an HNS with all features, and without a network.
func New() *Fake {
	return &Fake{
		features: hns.Features{DSR: true, RemoteSubnet: true, IPv6DualStack: true, SessionAffinity: true, ModifyLoadBalancer: true, NetworkACL: true},
		networks: map[string]*hns.Network{}, endpoints: map[string]hns.Endpoint{}, balancers: map[string]hns.LoadBalancer{},
	}
}

// SetFeatures of this version.
func (f *Fake) SetFeatures(features hns.Features) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.features = features
}

// Fail lets calls fail: decide gets the number of the call since then, from 0, and its name, as
// "CreateLoadBalancer". done: the call has its effect all the same. nil: none fails.
func (f *Fake) Fail(decide func(n int, call string) (err error, done bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.calls = decide, nil
}

// Calls since the start or the last Fail, by name.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// AddNetwork, or replace the one of that name by one with another ID: what was in that is gone.
func (f *Fake) AddNetwork(n hns.Network) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeNetwork(n.Name)
	n.ID = f.id()
	f.networks[n.Name] = &n
}

// RemoveNetwork with its endpoints, and the load balancers that refer to them.
func (f *Fake) RemoveNetwork(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeNetwork(name)
}

func (f *Fake) removeNetwork(name string) {
	n, ok := f.networks[name]
	if !ok {
		return
	}
	delete(f.networks, name)
	for id, e := range f.endpoints {
		if e.Network != n.ID {
			continue
		}
		delete(f.endpoints, id)
		for balancer, b := range f.balancers {
			if slices.Contains(b.Endpoints, id) {
				delete(f.balancers, balancer)
			}
		}
	}
}

// AddLocal endpoint of a network, as a CNI plugin makes it for a Pod.
func (f *Fake) AddLocal(network, name string, addrs ...netip.Addr) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.id()
	f.endpoints[id] = hns.Endpoint{ID: id, Name: name, Network: f.networks[network].ID, Addrs: addrs, MAC: "00-15-5d-00-00-01"}
	return id
}

// AddRemote endpoint of a network, as another program makes it, or as a known fault of Windows leaves
// it beside a local one with its address.
func (f *Fake) AddRemote(network string, addr netip.Addr) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.id()
	f.endpoints[id] = hns.Endpoint{ID: id, Network: f.networks[network].ID, Addrs: []netip.Addr{addr}, Remote: true}
	return id
}

// RemoveEndpoint of an ID, whoever made it.
func (f *Fake) RemoveEndpoint(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.endpoints, id)
}

// AddBalancer of another program.
func (f *Fake) AddBalancer(b hns.LoadBalancer) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	b.ID = f.id()
	f.balancers[b.ID] = b
	return b.ID
}

// Balancers and Endpoints are what there is, by ID; ACLs those of a network.
func (f *Fake) Balancers() map[string]hns.LoadBalancer {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]hns.LoadBalancer{}
	for id, b := range f.balancers {
		out[id] = b
	}
	return out
}

// Endpoints that there are, by ID.
func (f *Fake) Endpoints() map[string]hns.Endpoint {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]hns.Endpoint{}
	for id, e := range f.endpoints {
		out[id] = e
	}
	return out
}

// ACLs of a network.
func (f *Fake) ACLs(network string) []hns.ACL {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.networks[network]; n != nil {
		return slices.Clone(n.ACLs)
	}
	return nil
}

func (f *Fake) id() string {
	f.next++
	return fmt.Sprintf("00000000-0000-0000-0000-%012d", f.next)
}

// call notes a call, and runs it unless it is to fail before.
func (f *Fake) call(name string, do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.calls)
	f.calls = append(f.calls, name)
	if f.fail == nil {
		return do()
	}
	err, done := f.fail(n, name)
	if err == nil || done {
		if own := do(); err == nil {
			return own
		}
	}
	return err
}

// Features implements hns.Service.
func (f *Fake) Features() (out hns.Features, err error) {
	err = f.call("Features", func() error { out = f.features; return nil })
	return out, err
}

// NetworkByName implements hns.Service.
func (f *Fake) NetworkByName(name string) (out *hns.Network, err error) {
	err = f.call("NetworkByName", func() error {
		n, ok := f.networks[name]
		if !ok {
			return fmt.Errorf("%w: %s", hns.ErrNetworkNotFound, name)
		}
		found := *n
		found.ACLs = slices.Clone(n.ACLs)
		out = &found
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (f *Fake) network(id string) (*hns.Network, error) {
	for _, n := range f.networks {
		if hns.SameID(n.ID, id) {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", hns.ErrNetworkNotFound, id)
}

// EndpointsOf implements hns.Service. The order is random, as that of HNS is not known.
func (f *Fake) EndpointsOf(networkID string) (out []hns.Endpoint, err error) {
	err = f.call("EndpointsOf", func() error {
		for _, e := range f.endpoints {
			if hns.SameID(e.Network, networkID) {
				out = append(out, e)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// EndpointByName implements hns.Service.
func (f *Fake) EndpointByName(name string) (out *hns.Endpoint, err error) {
	err = f.call("EndpointByName", func() error {
		for _, e := range f.endpoints {
			if e.Name == name {
				out = &e
				return nil
			}
		}
		return fmt.Errorf("%w: endpoint %s", hns.ErrNotFound, name)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// CreateEndpoint implements hns.Service.
func (f *Fake) CreateEndpoint(e hns.Endpoint) (out *hns.Endpoint, err error) {
	err = f.call("CreateEndpoint", func() error {
		if _, err := f.network(e.Network); err != nil {
			return err
		}
		for _, other := range f.endpoints {
			if other.Network == e.Network && slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return slices.Contains(other.Addrs, a) }) {
				return fmt.Errorf("%w: endpoint %v", hns.ErrExists, e.Addrs)
			}
		}
		made := e
		made.ID = f.id()
		f.endpoints[made.ID] = made
		out = &made
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// DeleteEndpoint implements hns.Service.
func (f *Fake) DeleteEndpoint(id string) error {
	return f.call("DeleteEndpoint", func() error {
		if _, ok := f.endpoints[id]; !ok {
			return fmt.Errorf("%w: endpoint %s", hns.ErrNotFound, id)
		}
		delete(f.endpoints, id)
		return nil
	})
}

// LoadBalancers implements hns.Service.
func (f *Fake) LoadBalancers() (out []hns.LoadBalancer, err error) {
	err = f.call("LoadBalancers", func() error {
		for _, b := range f.balancers {
			out = append(out, b)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// LoadBalancerByID implements hns.Service.
func (f *Fake) LoadBalancerByID(id string) (out *hns.LoadBalancer, err error) {
	err = f.call("LoadBalancerByID", func() error {
		b, ok := f.balancers[id]
		if !ok {
			return fmt.Errorf("%w: load balancer %s", hns.ErrNotFound, id)
		}
		out = &b
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// check what HNS checks of a load balancer; one with the front is nothing if it is itself.
func (f *Fake) check(b hns.LoadBalancer, itself string) error {
	for _, id := range b.Endpoints {
		if _, ok := f.endpoints[id]; !ok {
			return fmt.Errorf("%w: endpoint %s", hns.ErrNotFound, id)
		}
	}
	for id, other := range f.balancers {
		m, n := b.Mapping, other.Mapping
		if id == itself || m.Protocol != n.Protocol || m.ExternalPort != n.ExternalPort || b.Flags&hns.IPv6 != other.Flags&hns.IPv6 {
			continue
		}
		if len(b.VIPs)+len(other.VIPs) == 0 || slices.ContainsFunc(b.VIPs, func(a netip.Addr) bool { return slices.Contains(other.VIPs, a) }) {
			return fmt.Errorf("%w: load balancer %v port %d", hns.ErrExists, b.VIPs, m.ExternalPort)
		}
	}
	return nil
}

// CreateLoadBalancer implements hns.Service.
func (f *Fake) CreateLoadBalancer(b hns.LoadBalancer) (id string, err error) {
	err = f.call("CreateLoadBalancer", func() error {
		if err := f.check(b, ""); err != nil {
			return err
		}
		b.ID = f.id()
		f.balancers[b.ID] = b
		id = b.ID
		return nil
	})
	if err != nil {
		return "", err
	}
	return id, nil
}

// UpdateLoadBalancer implements hns.Service.
func (f *Fake) UpdateLoadBalancer(b hns.LoadBalancer) error {
	return f.call("UpdateLoadBalancer", func() error {
		if !f.features.ModifyLoadBalancer {
			return hns.ErrNotImplemented
		}
		if _, ok := f.balancers[b.ID]; !ok {
			return fmt.Errorf("%w: load balancer %s", hns.ErrNotFound, b.ID)
		}
		if len(b.Endpoints) == 0 {
			return fmt.Errorf("load balancer %s: no endpoint", b.ID)
		}
		if err := f.check(b, b.ID); err != nil {
			return err
		}
		f.balancers[b.ID] = b
		return nil
	})
}

// DeleteLoadBalancer implements hns.Service.
func (f *Fake) DeleteLoadBalancer(id string) error {
	return f.call("DeleteLoadBalancer", func() error {
		if _, ok := f.balancers[id]; !ok {
			return fmt.Errorf("%w: load balancer %s", hns.ErrNotFound, id)
		}
		delete(f.balancers, id)
		return nil
	})
}

// AddACLs implements hns.Service.
func (f *Fake) AddACLs(networkID string, rules []hns.ACL) error {
	return f.call("AddACLs", func() error {
		n, err := f.aclNetwork(networkID)
		if err == nil {
			n.ACLs = append(n.ACLs, rules...)
		}
		return err
	})
}

// RemoveACLs implements hns.Service.
func (f *Fake) RemoveACLs(networkID string, rules []hns.ACL) error {
	return f.call("RemoveACLs", func() error {
		n, err := f.aclNetwork(networkID)
		if err == nil {
			n.ACLs = slices.DeleteFunc(n.ACLs, func(a hns.ACL) bool { return slices.ContainsFunc(rules, a.Equal) })
		}
		return err
	})
}

func (f *Fake) aclNetwork(id string) (*hns.Network, error) {
	if !f.features.NetworkACL {
		return nil, hns.ErrNotImplemented
	}
	return f.network(id)
}
