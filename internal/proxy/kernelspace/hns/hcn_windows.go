package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/Microsoft/hnslib/hcn"
)

// Open the HNS of this machine. ErrUnsupported: it has no version 2 of the API.
func Open() (Service, error) {
	s := service{}
	if _, err := s.Features(); err != nil {
		return nil, err
	}
	return s, nil
}

// service is HNS by package hcn, which keeps no state.
type service struct{}

// schema of all objects that are made.
var schema = hcn.SchemaVersion{Major: 2}

// Win32 errors (winerror.h).
const (
	errorAlreadyExists   hcn.ErrorCode = 0xb7
	rpcUnknownInterface  hcn.ErrorCode = 0x6b5
	rpcServerUnavailable hcn.ErrorCode = 0x6ba
)

// classified wraps an error of hcn with the one that callers branch on.
func classified(op string, err error) error {
	if err == nil {
		return nil
	}
	var kind error
	missing := hcn.NetworkNotFoundError{}
	switch {
	case hcn.CheckErrorWithCode(err, rpcUnknownInterface), hcn.CheckErrorWithCode(err, rpcServerUnavailable):
		kind = ErrUnavailable
	case errors.As(err, &missing), hcn.IsNetworkNotFoundError(err):
		kind = ErrNetworkNotFound
	case hcn.CheckErrorWithCode(err, errorAlreadyExists), hcn.IsPortAlreadyExistsError(err):
		kind = ErrExists
	case hcn.IsNotImplemented(err):
		kind = ErrNotImplemented
	case hcn.IsNotFoundError(err), hcn.IsElementNotFoundError(err), hcn.IsEndpointNotFoundError(err), hcn.IsPortNotFoundError(err):
		kind = ErrNotFound
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
	return fmt.Errorf("%s: %w (%w)", op, kind, err)
}

// Features implements Service. hcn asks HNS once in a process.
func (service) Features() (Features, error) {
	f, err := hcn.GetCachedSupportedFeatures()
	if err != nil {
		return Features{}, fmt.Errorf("%w (%w)", ErrUnsupported, err)
	}
	if !f.Api.V2 {
		return Features{}, ErrUnsupported
	}
	return Features{
		DSR: f.DSR, RemoteSubnet: f.RemoteSubnet, IPv6DualStack: f.IPv6DualStack, SessionAffinity: f.SessionAffinity,
		ModifyLoadBalancer: f.ModifyLoadbalancer, NetworkACL: f.NetworkACL,
	}, nil
}

// NetworkByName implements Service.
func (service) NetworkByName(name string) (*Network, error) {
	n, err := hcn.GetNetworkByName(name)
	if err != nil {
		return nil, classified("get HNS network "+name, err)
	}
	out := &Network{ID: n.Id, Name: n.Name, Type: string(n.Type)}
	for _, p := range n.Policies {
		switch p.Type {
		case hcn.RemoteSubnetRoute:
			var route hcn.RemoteSubnetRoutePolicySetting
			if err := json.Unmarshal(p.Settings, &route); err != nil {
				return nil, fmt.Errorf("HNS network %s: policy RemoteSubnetRoute: %w", name, err)
			}
			prefix, err := netip.ParsePrefix(route.DestinationPrefix)
			if err != nil {
				return nil, fmt.Errorf("HNS network %s: policy RemoteSubnetRoute: %w", name, err)
			}
			provider, err := netip.ParseAddr(route.ProviderAddress)
			if err != nil {
				return nil, fmt.Errorf("HNS network %s: policy RemoteSubnetRoute: %w", name, err)
			}
			out.RemoteSubnets = append(out.RemoteSubnets, RemoteSubnet{Prefix: prefix, ProviderAddress: provider})
		case hcn.NetworkACL:
			var rule hcn.NetworkACLPolicySetting
			if json.Unmarshal(p.Settings, &rule) != nil {
				continue // of another program
			}
			if acl, ok := aclOf(rule); ok {
				out.ACLs = append(out.ACLs, acl)
			}
		}
	}
	return out, nil
}

// EndpointsOf implements Service.
func (service) EndpointsOf(networkID string) ([]Endpoint, error) {
	list, err := hcn.ListEndpointsOfNetwork(networkID)
	if err != nil {
		return nil, classified("list HNS endpoints of network "+networkID, err)
	}
	out := make([]Endpoint, 0, len(list))
	for i := range list {
		out = append(out, endpointOf(&list[i]))
	}
	return out, nil
}

// EndpointByName implements Service.
func (service) EndpointByName(name string) (*Endpoint, error) {
	e, err := hcn.GetEndpointByName(name)
	if err != nil {
		return nil, classified("get HNS endpoint "+name, err)
	}
	out := endpointOf(e)
	return &out, nil
}

func endpointOf(e *hcn.HostComputeEndpoint) Endpoint {
	out := Endpoint{
		ID: e.Id, Name: e.Name, Network: e.HostComputeNetwork, MAC: e.MacAddress,
		Remote: e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0,
	}
	for _, c := range e.IpConfigurations {
		if a, err := netip.ParseAddr(c.IpAddress); err == nil {
			out.Addrs = append(out.Addrs, a.Unmap())
		}
	}
	return out
}

// CreateEndpoint implements Service.
func (service) CreateEndpoint(e Endpoint) (*Endpoint, error) {
	made := &hcn.HostComputeEndpoint{Name: e.Name, HostComputeNetwork: e.Network, MacAddress: e.MAC, SchemaVersion: schema}
	for _, a := range e.Addrs {
		made.IpConfigurations = append(made.IpConfigurations, hcn.IpConfig{IpAddress: a.String()})
	}
	if e.Remote {
		made.Flags = hcn.EndpointFlagsRemoteEndpoint
	}
	if e.ProviderAddress.IsValid() {
		settings, err := json.Marshal(hcn.ProviderAddressEndpointPolicySetting{ProviderAddress: e.ProviderAddress.String()})
		if err != nil {
			return nil, err
		}
		made.Policies = []hcn.EndpointPolicy{{Type: hcn.NetworkProviderAddress, Settings: settings}}
	}
	made, err := made.Create()
	if err != nil {
		return nil, classified(fmt.Sprintf("create HNS endpoint %v", e.Addrs), err)
	}
	out := endpointOf(made)
	return &out, nil
}

// DeleteEndpoint implements Service.
func (service) DeleteEndpoint(id string) error {
	return classified("delete HNS endpoint "+id, (&hcn.HostComputeEndpoint{Id: id}).Delete())
}

// LoadBalancers implements Service.
func (service) LoadBalancers() ([]LoadBalancer, error) {
	list, err := hcn.ListLoadBalancers()
	if err != nil {
		return nil, classified("list HNS load balancers", err)
	}
	out := make([]LoadBalancer, 0, len(list))
	for i := range list {
		out = append(out, balancerOf(&list[i]))
	}
	return out, nil
}

// LoadBalancerByID implements Service.
func (service) LoadBalancerByID(id string) (*LoadBalancer, error) {
	b, err := hcn.GetLoadBalancerByID(id)
	if err != nil {
		return nil, classified("get HNS load balancer "+id, err)
	}
	out := balancerOf(b)
	return &out, nil
}

func balancerOf(b *hcn.HostComputeLoadBalancer) LoadBalancer {
	out := LoadBalancer{ID: b.Id, Endpoints: b.HostComputeEndpoints, Flags: BalancerFlags(b.Flags)}
	if a, err := netip.ParseAddr(b.SourceVIP); err == nil {
		out.SourceVIP = a
	}
	for _, v := range b.FrontendVIPs {
		if a, err := netip.ParseAddr(v); err == nil {
			out.VIPs = append(out.VIPs, a.Unmap())
		}
	}
	if len(b.PortMappings) > 0 { // HNS may have one that is half made
		m := b.PortMappings[0]
		out.Mapping = PortMapping{
			Protocol: m.Protocol, InternalPort: m.InternalPort, ExternalPort: m.ExternalPort,
			Distribution: Distribution(m.DistributionType), Flags: MappingFlags(m.Flags),
		}
	}
	return out
}

func settingsOf(b LoadBalancer) *hcn.HostComputeLoadBalancer {
	out := &hcn.HostComputeLoadBalancer{
		HostComputeEndpoints: b.Endpoints, Flags: hcn.LoadBalancerFlags(b.Flags), SchemaVersion: schema,
		PortMappings: []hcn.LoadBalancerPortMapping{{
			Protocol: b.Mapping.Protocol, InternalPort: b.Mapping.InternalPort, ExternalPort: b.Mapping.ExternalPort,
			DistributionType: hcn.LoadBalancerDistribution(b.Mapping.Distribution), Flags: hcn.LoadBalancerPortMappingFlags(b.Mapping.Flags),
		}},
	}
	if b.SourceVIP.IsValid() {
		out.SourceVIP = b.SourceVIP.String()
	}
	for _, v := range b.VIPs {
		out.FrontendVIPs = append(out.FrontendVIPs, v.String())
	}
	return out
}

// CreateLoadBalancer implements Service.
func (service) CreateLoadBalancer(b LoadBalancer) (string, error) {
	made, err := settingsOf(b).Create()
	if err != nil {
		return "", classified("create HNS load balancer", err)
	}
	return made.Id, nil
}

// UpdateLoadBalancer implements Service.
func (service) UpdateLoadBalancer(b LoadBalancer) error {
	settings := settingsOf(b)
	settings.Id = b.ID
	_, err := settings.Update(b.ID)
	return classified("update HNS load balancer "+b.ID, err)
}

// DeleteLoadBalancer implements Service.
func (service) DeleteLoadBalancer(id string) error {
	return classified("delete HNS load balancer "+id, (&hcn.HostComputeLoadBalancer{Id: id}).Delete())
}

// AddACLs implements Service.
func (service) AddACLs(networkID string, rules []ACL) error {
	return modifyACLs("add", networkID, rules, (*hcn.HostComputeNetwork).AddPolicy)
}

// RemoveACLs implements Service.
func (service) RemoveACLs(networkID string, rules []ACL) error {
	return modifyACLs("remove", networkID, rules, (*hcn.HostComputeNetwork).RemovePolicy)
}

func modifyACLs(verb, networkID string, rules []ACL, modify func(*hcn.HostComputeNetwork, hcn.PolicyNetworkRequest) error) error {
	var request hcn.PolicyNetworkRequest
	for _, r := range rules {
		settings, err := json.Marshal(ruleOf(r))
		if err != nil {
			return err
		}
		request.Policies = append(request.Policies, hcn.NetworkPolicy{Type: hcn.NetworkACL, Settings: settings})
	}
	return classified(verb+" access control lists of HNS network "+networkID, modify(&hcn.HostComputeNetwork{Id: networkID}, request))
}

// ruleOf and aclOf translate; they are inverse for the rules that ruleOf makes.
func ruleOf(a ACL) hcn.NetworkACLPolicySetting {
	out := hcn.NetworkACLPolicySetting{
		Action: hcn.ActionTypeBlock, Direction: hcn.DirectionTypeIn, RuleType: hcn.RuleTypeSwitch, Priority: a.Priority,
		Protocols: strconv.FormatUint(uint64(a.Protocol), 10), LocalAddresses: joined(a.Local), RemoteAddresses: joined(a.Remote),
		LocalPorts: portText(a.LocalPort), RemotePorts: portText(a.RemotePort),
	}
	if a.Allow {
		out.Action = hcn.ActionTypeAllow
	}
	if a.Out {
		out.Direction = hcn.DirectionTypeOut
	}
	return out
}

func aclOf(r hcn.NetworkACLPolicySetting) (ACL, bool) {
	out := ACL{Allow: r.Action == hcn.ActionTypeAllow, Out: r.Direction == hcn.DirectionTypeOut, Priority: r.Priority}
	protocol, err := strconv.ParseUint(r.Protocols, 10, 8)
	out.Protocol = uint32(protocol)
	var ok [4]bool
	out.Local, ok[0] = split(r.LocalAddresses)
	out.Remote, ok[1] = split(r.RemoteAddresses)
	out.LocalPort, ok[2] = portOf(r.LocalPorts)
	out.RemotePort, ok[3] = portOf(r.RemotePorts)
	return out, err == nil && ok == [4]bool{true, true, true, true}
}

func joined(list []netip.Prefix) string {
	texts := make([]string, 0, len(list))
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}

func split(text string) (out []netip.Prefix, ok bool) {
	if text == "" {
		return nil, true
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		p, err := netip.ParsePrefix(part)
		if a, single := netip.ParseAddr(part); err != nil && single == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, false
		}
		out = append(out, p)
	}
	return out, true
}

func portText(p uint16) string {
	if p == 0 {
		return ""
	}
	return strconv.Itoa(int(p))
}

func portOf(text string) (uint16, bool) {
	if text == "" {
		return 0, true
	}
	p, err := strconv.ParseUint(text, 10, 16)
	return uint16(p), err == nil
}
