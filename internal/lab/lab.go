// Package lab runs a whole mesh on one machine: zones with nodes, each a network
// namespace with an agent and a sample workload in it, a control plane, and a
// client in every zone. Cables between them can be cut, and agents killed.
//
// Enter at [Start], or at [Open] for a lab that another process started. It uses
// nothing but the commands that a user has. Everything it makes carries the
// lab's name: namespaces "pxlab-NAME-…", with every process of the lab in one of
// them, and the folder of its files. [Down] needs only these names, so it works
// whatever died before. No namespace has a way out of the lab.
//
// Addresses, service ranges, workloads and questions are of both families, but for
// machines whose kernel has no IPv6.
//
// It needs root and Linux.
package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// Spec is what a lab is to be.
type Spec struct {
	// Name, of at most 8 lower-case letters and digits, so that several labs do not
	// meet. Default: "lab".
	Name string
	// Zones, 1 to 9, of Nodes each, 1 to 9. Default: 3 zones of 2 nodes.
	Zones, Nodes int
	// Mode of the agents, as --mode names it. Default: "auto". The kernel's modes
	// load their rules in the nodes' namespaces, nowhere else.
	Mode string
	// Global makes every zone a site: a control plane and an ingress for each, and a global
	// control plane. Otherwise one control plane serves all zones.
	Global bool
	// Egress gives every zone an egress, too, by which alone traffic leaves for other zones
	// (spec.routing.zoneEgress of the default mesh). Only with Global.
	Egress bool
	// IPv4Only leaves IPv6 out. Without IPv6 in the kernel it is always set.
	IPv4Only bool
	// IPv6Only leaves IPv4 out: no machine has an address of it, but for 127.0.0.1.
	IPv6Only bool
	// DNSCapture has agents capture port 53 of their nodes and of the clients behind them
	// (--dns-capture). Names of others are asked of the router, where nothing answers unless
	// somebody puts a resolver there.
	DNSCapture bool
	// Sidecars puts an Envoy before each workload. On the first node of each zone, of which there
	// are at least two then, the workload is a client, "shop-LETTER". The mesh has mTLS of mode
	// Permissive, so that clients without a sidecar go on. Not with Global.
	Sidecars bool
	// EnvoyGateways has Envoys listen in place of ingresses and egresses (--engine envoy). Only with Global.
	EnvoyGateways bool
	// Envoy of sidecars and gateways: a path, or a name in $PATH. Default: "envoy".
	Envoy string
	// Lease of nodes and workloads, as --lease-duration takes it; 0: the default.
	Lease time.Duration
	// Executable is Proxima's.
	Executable string
	// Temporary: the lab belongs to this process. If that dies without taking it
	// down, the next Start of any lab does.
	Temporary bool
	// Progress gets a line for each step; may be nil.
	Progress func(string)
}

// timeout with processes that start on a busy machine.
const timeout = 90 * time.Second

// The sample service of a lab.
const (
	serviceName = "web"
	servicePort = 8080
)

var namePattern = regexp.MustCompile(`^[a-z0-9]{1,8}$`)

// Check reports what of a spec can't be.
func (s Spec) Check() error {
	_, err := s.withDefaults()
	return err
}

func (s Spec) withDefaults() (Spec, error) {
	if s.Name == "" {
		s.Name = "lab"
	}
	if s.Zones == 0 {
		s.Zones = 3
	}
	if s.Nodes == 0 {
		s.Nodes = 2
	}
	if s.Mode == "" {
		s.Mode = "auto"
	}
	if s.IPv6Only && (s.IPv4Only || !netns.HasIPv6()) {
		return s, errors.New("a lab of IPv6 only: this kernel has no IPv6, or IPv4 only was asked for, too")
	}
	s.IPv4Only = s.IPv4Only || !netns.HasIPv6()
	if s.Progress == nil {
		s.Progress = func(string) {}
	}
	if s.Envoy == "" {
		s.Envoy = "envoy"
	}
	switch {
	case !namePattern.MatchString(s.Name):
		return s, fmt.Errorf("lab name %q: want 1 to 8 lower-case letters and digits", s.Name)
	case s.Zones < 1 || s.Zones > 9:
		return s, fmt.Errorf("%d zones: want 1 to 9", s.Zones)
	case s.Nodes < 1 || s.Nodes > 9:
		return s, fmt.Errorf("%d nodes a zone: want 1 to 9", s.Nodes)
	case s.Egress && !s.Global:
		return s, errors.New("an egress is between zones with control planes of their own: it needs a global one")
	case s.Sidecars && s.Global:
		return s, errors.New("sidecars are in a lab with one control plane: leave out the global one")
	case s.EnvoyGateways && !s.Global:
		return s, errors.New("gateways are between zones with control planes of their own: --envoy-gateways needs a global one")
	case s.Sidecars && s.Nodes < 2:
		return s, errors.New("sidecars need two nodes in each zone: the workload of the first one is a client")
	case s.Lease < 0 || s.Lease%time.Second != 0:
		return s, fmt.Errorf("a lease of %s: want whole seconds", s.Lease)
	case s.Executable == "":
		return s, errors.New("the lab needs an executable of Proxima")
	}
	return s, nil
}

// Names that a lab consists of.
const (
	// prefix of namespaces of all labs.
	prefix = "pxlab-"
	// core is the router between the zones.
	core = "core"
	// control is where the control plane runs, or global.
	control = "control"
	// global is the name of that machine where zones have control planes.
	global = "global"
)

// root holds a folder per lab.
const root = "/run/proxima/lab"

func dirOf(name string) string { return filepath.Join(root, name) }

// namespacePrefix of one lab. Its name has no dash, so no other lab's begins so.
func namespacePrefix(name string) string { return prefix + name + "-" }

// zone is its index from 0.
type zone int

func (z zone) name() string   { return "zone-" + z.letter() }
func (z zone) letter() string { return string(rune('a' + z)) }
func (z zone) client() string { return "client-" + z.letter() }

// addr in the zone's network.
func (z zone) addr(host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 200, byte(z) + 1, host}) }

// clientAddr in the network between the zone's client, which is 2, and its first
// node, which is 1.
func (z zone) clientAddr(host byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 201, byte(z) + 1, host})
}

// node is its zone and its index there, from 0.
type node struct {
	zone  zone
	index int
}

func (n node) name() string     { return fmt.Sprintf("%s-%d", n.zone.letter(), n.index+1) }
func (n node) workload() string { return serviceName + "-" + n.name() }
func (n node) addr() netip.Addr { return n.zone.addr(byte(11 + n.index)) }

// firstOf a zone's nodes: its client is behind it.
func firstOf(z zone) node { return node{zone: z} }

func (s Spec) zones() []zone {
	var out []zone
	for i := range s.Zones {
		out = append(out, zone(i))
	}
	return out
}

func (s Spec) nodes() []node {
	var out []node
	for _, z := range s.zones() {
		for i := range s.Nodes {
			out = append(out, node{z, i})
		}
	}
	return out
}

// twin is the IPv6 address that goes with an IPv4 one of the lab: it has the same
// numbers as decimal digits, fd00:200:1::11 with 10.200.1.11.
func twin(a netip.Addr) netip.Addr {
	b := a.As4()
	return netip.MustParseAddr(fmt.Sprintf("fd00:%d:%d::%d", b[1], b[2], b[3]))
}

// networks are as wide as a lab has them.
const (
	bits4 = 24
	bits6 = 64
)

// primary of an address and its twin: the first that the lab has.
func (s Spec) primary(a netip.Addr) netip.Addr { return s.addrs(a)[0].Addr() }

// addrs of a link: an address and its twin, as far as the lab has their families.
func (s Spec) addrs(a netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	if !s.IPv6Only {
		out = append(out, netip.PrefixFrom(a, bits4))
	}
	if !s.IPv4Only {
		out = append(out, netip.PrefixFrom(twin(a), bits6))
	}
	return out
}

// hosts are addrs as ranges of one address each.
func (s Spec) hosts(a netip.Addr) []netip.Prefix {
	out := s.addrs(a)
	for i, p := range out {
		out[i] = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	}
	return out
}

// controlAddr in the network between router (1) and control plane (2).
func controlAddr(host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 200, 0, host}) }

// serviceRanges of virtual addresses, as --service-cidr takes them.
func (s Spec) serviceRanges() string {
	switch {
	case s.IPv4Only:
		return "10.96.0.0/16"
	case s.IPv6Only:
		return "fd00:96::/108"
	}
	return "10.96.0.0/16,fd00:96::/108"
}

// target is what cut, heal and kill are about: a zone, a node, another machine of a zone,
// or the machine of global, or of the only control plane.
type target struct {
	zone zone
	node *node
	// machine of a zone's control plane or gateways, or "control".
	machine string
}

// find a zone or node by its name.
func (s Spec) find(name string) (target, error) {
	var known []string
	for _, z := range s.zones() {
		if z.name() == name {
			return target{zone: z}, nil
		}
		known = append(known, z.name())
	}
	for _, n := range s.nodes() {
		if n.name() == name {
			return target{zone: n.zone, node: &n}, nil
		}
		known = append(known, n.name())
	}
	for _, z := range s.zones() {
		for _, machine := range s.servers(z) {
			if machine == name {
				return target{zone: z, machine: machine}, nil
			}
			known = append(known, machine)
		}
	}
	top := target{zone: -1, machine: control}
	if name == s.nameOf(top) {
		return top, nil
	}
	known = append(known, s.nameOf(top))
	return target{}, fmt.Errorf("%q is no zone or machine of lab %s: there are %s", name, s.Name, strings.Join(known, ", "))
}

// Places of the lab that have a name: its machines, and its zones before them.
func (l *Lab) Places(zones bool) []string {
	var out []string
	if zones {
		for _, z := range l.spec.zones() {
			out = append(out, z.name())
		}
	}
	out = append(out, l.Nodes()...)
	for _, z := range l.spec.zones() {
		out = append(out, l.spec.servers(z)...)
	}
	return append(out, l.spec.nameOf(target{zone: -1, machine: control}))
}

// Name of the lab.
func (l *Lab) Name() string { return l.spec.Name }

// Nodes of the lab.
func (l *Lab) Nodes() []string {
	var out []string
	for _, n := range l.spec.nodes() {
		out = append(out, n.name())
	}
	return out
}

// Namespace is the name of the network namespace of a place.
func (l *Lab) Namespace(place string) string { return namespacePrefix(l.spec.Name) + place }

// IsNode reports whether a place is a node.
func (l *Lab) IsNode(name string) bool {
	p, err := l.spec.find(name)
	return err == nil && p.node != nil
}

// nodesAt a place.
func (s Spec) nodesAt(p target) []node {
	var out []node
	for _, n := range s.nodes() {
		if n.zone == p.zone && p.machine == "" && (p.node == nil || *p.node == n) {
			out = append(out, n)
		}
	}
	return out
}

// machinesAt a place: the names of their namespaces.
func (s Spec) machinesAt(p target) []string {
	if p.machine != "" {
		return []string{p.machine}
	}
	var out []string
	for _, n := range s.nodesAt(p) {
		out = append(out, n.name())
	}
	if p.node == nil {
		out = append(out, s.servers(p.zone)...)
	}
	return out
}

// port is the link of the zone's switch that leads there.
func (p target) port() string {
	switch {
	case p.node != nil:
		return p.node.name()
	case p.machine != "":
		return p.machine
	}
	return "uplink"
}

// NotUpError: there is no such lab.
type NotUpError struct{ Name string }

func (e *NotUpError) Error() string { return "lab " + e.Name + " is not up" }

// Code implements problem.Coded.
func (e *NotUpError) Code() problem.Code { return problem.LabNotUp }

// Hint names the remedy.
func (e *NotUpError) Hint() string { return "start it with \"proxima lab up\"" }

// unavailableError: no lab can be made here.
type unavailableError struct{ err error }

func (e *unavailableError) Error() string { return "lab: " + e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

// Code implements problem.Coded.
func (e *unavailableError) Code() problem.Code { return problem.LabUnavailable }

// Hint names the remedy.
func (e *unavailableError) Hint() string {
	return "run it as root on Linux; without root, \"proxima demo\" shows three backends"
}

// envoyError: there is no Envoy for sidecars or gateways.
type envoyError struct{ err error }

func (e *envoyError) Error() string {
	return "lab: sidecars and gateways by Envoy need an Envoy: " + e.err.Error()
}
func (e *envoyError) Unwrap() error { return e.err }

// Code implements problem.Coded.
func (e *envoyError) Code() problem.Code { return problem.SidecarUnavailable }

// Hint names the remedy.
func (e *envoyError) Hint() string {
	return "name one of version 1.37 or newer with --envoy PATH; in a source tree, tools/envoy downloads one and prints its path"
}

// UpError: a lab of that name exists.
type UpError struct{ Name string }

func (e *UpError) Error() string { return "lab " + e.Name + " is up already, or parts of it are" }

// Code implements problem.Coded.
func (e *UpError) Code() problem.Code { return problem.LabExists }

// Hint names the remedy.
func (e *UpError) Hint() string {
	return "take it down with \"proxima lab down\", or choose another name with --lab"
}

// exists reports whether any trace of a lab is there.
func exists(dir string, namespaces []string) bool {
	_, err := os.Stat(dir)
	return err == nil || len(namespaces) > 0
}
