package kernelspace

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns"
)

// pass is one synchronisation: what HNS has against what the service ports ask for.
type pass struct {
	*Mode
	node   netip.Addr // of this machine, in an overlay
	mac    string
	local  map[netip.Addr]hns.Endpoint
	remote map[netip.Addr]hns.Endpoint
	// doomed are remote endpoints with the address of a local one.
	doomed  []string
	gateway *hns.Endpoint
	want    map[key]wanted
	// kept are fronts that are left as they are, since looking up what they want failed.
	kept map[key]bool
	// vips are cluster addresses that have an endpoint in an overlay.
	vips   map[netip.Addr]bool
	failed map[proxy.PortName]error
}

type wanted struct {
	balancer   hns.LoadBalancer
	of         proxy.PortName
	restricted bool
}

// sync brings HNS to what the service ports ask for. failed are ports that failed alone. An error is
// about HNS as a whole: what was not done is done next time. m.mu is held.
func (m *Mode) sync() (failed map[proxy.PortName]error, err error) {
	m.again = false
	p := &pass{
		Mode: m, want: map[key]wanted{}, kept: map[key]bool{}, vips: map[netip.Addr]bool{}, failed: map[proxy.PortName]error{},
		local: map[netip.Addr]hns.Endpoint{}, remote: map[netip.Addr]hns.Endpoint{},
	}
	m.err = p.run()
	if m.err != nil {
		m.metrics.failures.Inc()
	}
	if m.err != nil || len(p.failed) > 0 {
		m.trusted, m.again = false, true
	}
	return p.failed, m.err
}

func (p *pass) run() error {
	if err := p.adopt(); err != nil {
		return err
	}
	if err := p.readEndpoints(); err != nil {
		return err
	}
	if !p.trusted {
		if err := p.readBalancers(); err != nil {
			return err
		}
	}
	if p.network.IsOverlay() && !p.removing {
		if err := p.ensureSourceVIP(); err != nil {
			return err
		}
	}
	if err := p.resolve(); err != nil {
		return err
	}
	return p.program()
}

// whole reports whether an error is about HNS, and not about one object.
func whole(err error) bool {
	return errors.Is(err, hns.ErrUnavailable) || errors.Is(err, hns.ErrNetworkNotFound)
}

// adopt the network of the name. One that is gone, or another one, has taken along what the mode knows.
func (p *pass) adopt() error {
	network, err := p.o.HNS.NetworkByName(p.o.Network)
	if errors.Is(err, hns.ErrNetworkNotFound) {
		p.forget()
		return fmt.Errorf("no HNS network has the name %q of --network-name, as long as the CNI plugin has not made it: %w", p.o.Network, err)
	}
	if err != nil {
		return err
	}
	if p.network != nil && !hns.SameID(p.network.ID, network.ID) {
		p.forget()
		return fmt.Errorf("HNS network %s was replaced: its load balancers and endpoints are made again", p.o.Network)
	}
	p.network = network
	if p.removing {
		return nil
	}
	return p.learnNetwork()
}

// forget what the network had. Load balancers may still be there, and are known by the record.
func (p *pass) forget() {
	p.network, p.trusted = nil, false
	clear(p.have)
	clear(p.leftovers)
}

// learnNetwork checks that the options fit the network, and which families it carries.
func (p *pass) learnNetwork() error {
	can := p.can
	can.ipv4, can.ipv6 = true, p.can.features.IPv6DualStack
	if p.network.IsOverlay() {
		switch {
		case !p.can.features.RemoteSubnet:
			return fmt.Errorf("HNS network %s is an overlay, for which this version of HNS lacks remote subnets: use one of type L2Bridge", p.network.Name)
		case !p.o.SourceVIP.IsValid():
			return fmt.Errorf("HNS network %s is an overlay: --source-vip must name the source address of translated connections", p.network.Name)
		}
		can.ipv4 = p.o.SourceVIP.Is4() // an overlay carries one family
		can.ipv6 = !can.ipv4
		for _, a := range p.o.NodeAddresses() {
			if a.Is4() == can.ipv4 {
				p.node = a
			}
		}
		if !p.node.IsValid() {
			return fmt.Errorf("HNS network %s is an overlay: this machine has no address of the family of --source-vip %s", p.network.Name, p.o.SourceVIP)
		}
		var err error
		if p.mac, err = p.o.HostMAC(p.node); err != nil {
			return fmt.Errorf("the link address of the interface with %s: %w", p.node, err)
		}
	}
	if can != p.can {
		p.can = can
		for _, port := range p.ports {
			port.plan = planOf(port.state, can)
		}
	}
	return nil
}

// endpointPrefix begins the names of endpoints that the mode made.
const endpointPrefix = "proxima-"

func endpointName(a netip.Addr) string {
	return endpointPrefix + strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

func own(e hns.Endpoint) bool { return strings.HasPrefix(e.Name, endpointPrefix) }

func (p *pass) readEndpoints() error {
	list, err := p.o.HNS.EndpointsOf(p.network.ID)
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b hns.Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	for _, e := range list {
		kind := p.local
		if e.Remote {
			kind = p.remote
		}
		for _, a := range e.Addrs {
			if _, twice := kind[a]; !twice {
				kind[a] = e
			}
		}
	}
	for a, e := range p.remote {
		if _, both := p.local[a]; both {
			p.doomed = append(p.doomed, e.ID)
			delete(p.remote, a)
		}
	}
	if !p.can.forward {
		return nil
	}
	e, err := p.o.HNS.EndpointByName(p.o.Gateway)
	if whole(err) {
		return err
	}
	if err != nil {
		p.o.Logger.Debug("health checks at ingress addresses are not forwarded", "error", err)
		return nil
	}
	p.gateway = e
	return nil
}

// readBalancers finds the mode's load balancers: those of the record.
func (p *pass) readBalancers() error {
	list, err := p.o.HNS.LoadBalancers()
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b hns.LoadBalancer) int { return cmp.Compare(a.ID, b.ID) })
	recorded := map[string]bool{}
	for _, id := range p.record.Balancers {
		recorded[hns.CanonicalID(id)] = true
	}
	clear(p.have)
	clear(p.leftovers)
	for _, b := range list {
		k := keyOf(b)
		if !recorded[hns.CanonicalID(b.ID)] && !slices.Contains(p.record.Creating, k.String()) {
			continue
		}
		if _, twice := p.have[k]; twice {
			p.leftovers[b.ID] = true
			continue
		}
		p.have[k] = b
	}
	p.trusted = true
	return nil
}

// ensureSourceVIP makes the endpoint that translated connections come from.
func (p *pass) ensureSourceVIP() error {
	if _, ok := p.local[p.o.SourceVIP]; ok {
		return nil
	}
	e, err := p.o.HNS.CreateEndpoint(hns.Endpoint{
		Name: endpointName(p.o.SourceVIP), Network: p.network.ID, Addrs: []netip.Addr{p.o.SourceVIP}, MAC: p.mac,
	})
	if err != nil {
		return fmt.Errorf("endpoint of --source-vip: %w", err)
	}
	p.local[p.o.SourceVIP] = *e
	return nil
}

// resolve looks up, and makes, the endpoints of all fronts.
func (p *pass) resolve() error {
	for _, name := range slices.SortedFunc(maps.Keys(p.ports), func(a, b proxy.PortName) int { return strings.Compare(a.String(), b.String()) }) {
		for _, f := range p.ports[name].plan.fronts {
			if w, taken := p.want[f.key]; taken {
				if !f.gateway || w.of.ServiceName != name.ServiceName {
					p.failed[name] = fmt.Errorf("%s is that of service port %s already", f.key, w.of)
				}
				continue
			}
			b, ok, err := p.balancerOf(f)
			switch {
			case whole(err):
				return err
			case err != nil:
				p.failed[name], p.kept[f.key] = err, true
			case ok:
				p.want[f.key] = wanted{b, name, f.restricted}
			}
		}
	}
	return nil
}

// balancerOf a front; false: none of its endpoints is there.
func (p *pass) balancerOf(f front) (b hns.LoadBalancer, ok bool, err error) {
	b = hns.LoadBalancer{
		Mapping: hns.PortMapping{
			Protocol: f.protocol, InternalPort: f.internalPort, ExternalPort: f.port, Distribution: f.distribution, Flags: f.flags,
		},
		SourceVIP: p.sourceVIP(f),
	}
	if f.vip.IsValid() {
		b.VIPs = []netip.Addr{f.vip}
	}
	if f.dsr {
		b.Flags |= hns.DSR
	}
	if f.ipv6 {
		b.Flags |= hns.IPv6
	}
	if f.gateway {
		if p.gateway == nil {
			return b, false, nil
		}
		b.Endpoints = []string{p.gateway.ID}
		return b, true, nil
	}
	for _, t := range f.targets {
		e, ok, err := p.endpointAt(t.Addr(), f.local[t.Addr()])
		if err != nil {
			return b, false, err
		}
		if ok && !slices.Contains(b.Endpoints, e.ID) {
			b.Endpoints = append(b.Endpoints, e.ID)
		}
	}
	slices.Sort(b.Endpoints)
	if len(b.Endpoints) > 0 && f.clusterIP && p.network.IsOverlay() {
		p.vips[f.vip] = true
		if err := p.ensureVIP(f.vip); err != nil {
			return b, false, err
		}
	}
	return b, len(b.Endpoints) > 0, nil
}

// sourceVIP of a front: in an overlay the node's address, if an endpoint is a node or outside.
func (p *pass) sourceVIP(f front) netip.Addr {
	if p.network.IsOverlay() {
		for _, t := range f.targets {
			at := p.network.Provider(t.Addr())
			if !f.local[t.Addr()] && (!at.IsValid() || at == t.Addr()) {
				return p.node
			}
		}
	}
	if p.o.SourceVIP.IsValid() && p.o.SourceVIP.Is4() == f.ipv6 {
		return netip.Addr{}
	}
	return p.o.SourceVIP
}

// endpointAt an address. A local one is made by the CNI plugin; false: it has not made it yet.
func (p *pass) endpointAt(a netip.Addr, local bool) (e hns.Endpoint, ok bool, err error) {
	if e, ok := p.local[a]; ok {
		return e, true, nil
	}
	if e, ok := p.remote[a]; ok {
		return e, true, nil
	}
	if local {
		p.again = true
		return e, false, nil
	}
	e = hns.Endpoint{Name: endpointName(a), Network: p.network.ID, Addrs: []netip.Addr{a}, Remote: true}
	if p.network.IsOverlay() {
		e.MAC = remoteMAC(a)
		if e.ProviderAddress = p.network.Provider(a); !e.ProviderAddress.IsValid() {
			e.ProviderAddress = p.node
		}
	}
	return p.createRemote(e)
}

// ensureVIP makes the endpoint of a cluster address.
func (p *pass) ensureVIP(a netip.Addr) error {
	if _, ok := p.local[a]; ok {
		return nil
	}
	if _, ok := p.remote[a]; ok {
		return nil
	}
	_, _, err := p.createRemote(hns.Endpoint{
		Name: endpointName(a), Network: p.network.ID, Addrs: []netip.Addr{a}, Remote: true, MAC: p.mac, ProviderAddress: p.node,
	})
	return err
}

func (p *pass) createRemote(e hns.Endpoint) (hns.Endpoint, bool, error) {
	made, err := p.o.HNS.CreateEndpoint(e)
	if err != nil {
		return e, false, err
	}
	p.remote[e.Addrs[0]] = *made
	return *made, true, nil
}

// remoteMAC of an endpoint of another node: any address that is unique will do (as kube-proxy's).
func remoteMAC(a netip.Addr) string {
	b := a.AsSlice()
	b = b[len(b)-4:]
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
}

// same reports whether a load balancer is as it should be; but for endpoints, if only they differ.
func same(have, want hns.LoadBalancer) (all, butEndpoints bool) {
	butEndpoints = have.Mapping == want.Mapping && have.Flags == want.Flags && slices.Equal(have.VIPs, want.VIPs)
	return butEndpoints && have.SourceVIP == want.SourceVIP && slices.Equal(canonical(have.Endpoints), canonical(want.Endpoints)), butEndpoints
}

func canonical(ids []string) []string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, hns.CanonicalID(id))
	}
	slices.Sort(out)
	return out
}

// program writes to HNS what differs. The order closes before it opens: rules that block are there
// before a load balancer goes or comes, and go after it.
func (p *pass) program() error {
	closed, rules, err := p.addACLs()
	if err != nil {
		return err
	}
	for k, w := range p.want {
		if w.restricted && !closed {
			delete(p.want, k)
			p.failed[w.of] = fmt.Errorf("%s is not served, as its source ranges could not be set", k)
		}
	}
	p.saveRecord(p.changing(), rules)
	for _, k := range sortedKeys(p.have) {
		if _, ok := p.want[k]; ok || p.kept[k] {
			continue
		}
		if err := p.remove(k); err != nil {
			return err
		}
	}
	for _, k := range sortedKeys(p.want) {
		if err := p.put(k, p.want[k]); whole(err) {
			return err
		} else if err != nil {
			p.failed[p.want[k].of] = err
			p.metrics.failures.Inc()
		}
	}
	if err := p.deleteLeftovers(); err != nil {
		return err
	}
	if err := p.removeACLs(&rules); err != nil {
		return err
	}
	if err := p.deleteEndpoints(); err != nil {
		return err
	}
	p.saveRecord(p.changing(), rules) // none, but for those of which it is not known whether they were made
	return nil
}

func sortedKeys[V any](m map[key]V) []key {
	return slices.SortedFunc(maps.Keys(m), func(a, b key) int { return strings.Compare(a.String(), b.String()) })
}

// changing are the fronts that get another load balancer.
func (p *pass) changing() (out []string) {
	for k, w := range p.want {
		have, ok := p.have[k]
		if all, _ := same(have, w.balancer); !ok || !all {
			out = append(out, k.String())
		}
	}
	return out
}

// saveRecord; an error is logged, since traffic matters more. It is tried again.
func (p *pass) saveRecord(creating []string, rules []hns.ACL) {
	r := record{Network: p.o.Network, Creating: creating, ACLs: rules}
	for _, b := range p.have {
		r.Balancers = append(r.Balancers, b.ID)
	}
	for id := range p.leftovers {
		r.Balancers = append(r.Balancers, id)
	}
	if err := p.save(r); err != nil {
		p.again = true
		p.o.Logger.Warn("what is in HNS could not be noted: a crash would leave load balancers behind", "error", err)
	}
}

// put a load balancer at its front.
func (p *pass) put(k key, w wanted) error {
	have, there := p.have[k]
	all, butEndpoints := same(have, w.balancer)
	switch {
	case there && all:
		return nil
	case there && butEndpoints && p.can.features.ModifyLoadBalancer && !p.rejected:
		b := w.balancer
		b.ID = have.ID
		err := p.o.HNS.UpdateLoadBalancer(b)
		if err == nil {
			p.have[k] = b
			return nil
		}
		if whole(err) {
			return err
		}
		if errors.Is(err, hns.ErrNotImplemented) {
			p.rejected = true
		}
		p.o.Logger.Debug("a load balancer is made again, as it could not be modified", "front", k.String(), "error", err)
	}
	if there {
		if err := p.remove(k); err != nil {
			return err
		}
	}
	id, err := p.o.HNS.CreateLoadBalancer(w.balancer)
	if errors.Is(err, hns.ErrExists) {
		if err = p.takeOver(k); err == nil {
			id, err = p.o.HNS.CreateLoadBalancer(w.balancer)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", k, err)
	}
	b := w.balancer
	b.ID = id
	p.have[k] = b
	return nil
}

// takeOver deletes the load balancer that has a front of ours.
func (p *pass) takeOver(k key) error {
	list, err := p.o.HNS.LoadBalancers()
	if err != nil {
		return err
	}
	for _, b := range list {
		if keyOf(b) != k {
			continue
		}
		p.o.Logger.Warn("a load balancer that this agent has not noted is replaced, as a service port needs its front", "front", k.String(), "id", b.ID)
		if err := p.o.HNS.DeleteLoadBalancer(b.ID); err != nil {
			return err
		}
		delete(p.leftovers, b.ID)
	}
	return nil
}

// remove the load balancer of a front; one that stays becomes a leftover. One that is not there is
// a leftover until a list of all agrees: its identifier must not be lost.
func (p *pass) remove(k key) error {
	id := p.have[k].ID
	err := p.deleteBalancer(id)
	if err != nil && !whole(err) && !errors.Is(err, hns.ErrNotFound) {
		err = p.deleteBalancer(id)
	}
	if whole(err) {
		return err
	}
	delete(p.have, k)
	if err != nil {
		p.leftovers[id], p.again = true, true
	}
	if errors.Is(err, hns.ErrNotFound) {
		p.trusted = false
	} else if err != nil {
		p.metrics.failures.Inc()
		p.o.Logger.Warn("HNS did not delete a load balancer; it is tried again", "front", k.String(), "id", id, "error", err)
	}
	return nil
}

func (p *pass) deleteBalancer(id string) error {
	if _, err := p.o.HNS.LoadBalancerByID(id); err != nil {
		return err
	}
	return p.o.HNS.DeleteLoadBalancer(id)
}

func (p *pass) deleteLeftovers() error {
	ids := slices.Sorted(maps.Keys(p.leftovers))
	for _, id := range ids[:min(len(ids), deletesPerSync)] {
		switch err := p.deleteBalancer(id); {
		case whole(err):
			return err
		case err == nil:
			delete(p.leftovers, id)
		case errors.Is(err, hns.ErrNotFound):
			p.trusted = false // a list of all decides
		}
	}
	p.again = p.again || len(p.leftovers) > 0
	return nil
}

// deleteAll load balancers of the record, where the network is gone.
func (m *Mode) deleteAll() error {
	p := &pass{Mode: m}
	if err := p.readBalancers(); err != nil {
		return err
	}
	for _, k := range sortedKeys(p.have) {
		if err := p.remove(k); err != nil {
			return err
		}
	}
	if err := p.deleteLeftovers(); err != nil {
		return err
	}
	if p.trusted {
		p.saveRecord(nil, nil)
	}
	return nil
}

// deleteEndpoints that nothing refers to: remote ones of the mode, and those with the address of a
// local one, whoever made them.
func (p *pass) deleteEndpoints() error {
	used := map[string]bool{}
	for _, b := range p.have {
		for _, id := range b.Endpoints {
			used[hns.CanonicalID(id)] = true
		}
	}
	ids := slices.Clone(p.doomed)
	for a, e := range p.remote {
		if own(e) && !p.vips[a] {
			ids = append(ids, e.ID)
		}
	}
	for _, e := range p.local { // that of --source-vip
		if p.removing && own(e) {
			ids = append(ids, e.ID)
		}
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if used[hns.CanonicalID(id)] {
			continue
		}
		switch err := p.o.HNS.DeleteEndpoint(id); {
		case whole(err):
			return err
		case err != nil:
			p.again = true
			p.o.Logger.Debug("HNS did not delete an endpoint; it is tried again", "id", id, "error", err)
		}
	}
	return nil
}

// addACLs that are missing. complete: all that are wanted are there. rules are those of the mode that
// the network has, or may have.
func (p *pass) addACLs() (complete bool, rules []hns.ACL, err error) {
	var missing, stale []hns.ACL
	for _, port := range p.ports {
		for _, a := range port.plan.acls {
			if !slices.ContainsFunc(p.network.ACLs, a.Equal) && !slices.ContainsFunc(missing, a.Equal) {
				missing = append(missing, a)
			}
		}
	}
	for _, a := range p.record.ACLs {
		if slices.ContainsFunc(missing, a.Equal) {
			stale = append(stale, a) // HNS may show it in other words: it is not to be there twice
		}
	}
	rules = p.record.ACLs
	if len(missing) == 0 {
		return true, rules, nil
	}
	for _, a := range missing {
		if !slices.ContainsFunc(rules, a.Equal) {
			rules = append(slices.Clip(rules), a)
		}
	}
	p.saveRecord(p.record.Creating, rules)
	if len(stale) > 0 {
		if err := p.o.HNS.RemoveACLs(p.network.ID, stale); whole(err) {
			return false, rules, err
		}
	}
	if err := p.o.HNS.AddACLs(p.network.ID, missing); whole(err) {
		return false, rules, err
	} else if err != nil {
		p.again = true
		p.metrics.failures.Inc()
		p.o.Logger.Warn("HNS did not set access control lists; it is tried again", "error", err)
		return false, rules, nil
	}
	return true, rules, nil
}

// removeACLs that nothing asks for any more, unless something that they close may still be there.
func (p *pass) removeACLs(rules *[]hns.ACL) error {
	if len(p.failed) > 0 || len(p.leftovers) > 0 {
		return nil
	}
	var gone, stay []hns.ACL
	for _, a := range *rules {
		asked := false
		for _, port := range p.ports {
			asked = asked || slices.ContainsFunc(port.plan.acls, a.Equal)
		}
		if asked {
			stay = append(stay, a)
		} else {
			gone = append(gone, a)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	switch err := p.o.HNS.RemoveACLs(p.network.ID, gone); {
	case whole(err):
		return err
	case err != nil:
		p.again = true
		p.o.Logger.Warn("HNS did not remove access control lists; it is tried again", "error", err)
	default:
		*rules = stay
	}
	return nil
}
