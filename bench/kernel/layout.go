//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// The layout of kube-proxy's nftables mode, from its public description
// (kubernetes.io/blog/2025/02/28/nftables-kube-proxy, KEP-3866): a map from
// address, protocol and port to a service's chain, which marks what is to be
// masqueraded and picks an endpoint's chain, which translates. New connections
// are checked against services without endpoints and unused cluster addresses.

const layoutHead = `table ip kube-proxy {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-nodeports { type inet_proto . inet_service : verdict; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	set cluster-ips { type ipv4_addr; }
	set nodeport-ips { type ipv4_addr; }
	chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
	chain masquerading {
		meta mark and 0x4000 == 0 return
		meta mark set meta mark xor 0x4000
		masquerade fully-random
	}
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain cluster-ips-check {
		ip daddr @cluster-ips reject
		ip daddr 10.96.0.0/16 drop
	}
	chain filter-prerouting { type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }
	chain filter-input { type filter hook input priority filter; ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }
	chain filter-forward { type filter hook forward priority filter; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
	chain filter-output { type filter hook output priority -110; ct state new jump service-endpoints-check; ct state new jump firewall-check; }
	chain filter-output-post-dnat { type filter hook output priority -90; ct state new jump cluster-ips-check; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
}
`

func serviceChain(i int) string { return fmt.Sprintf("service-%08X-default/s%d/tcp/p", i, i) }

func endpointChain(i int, to netip.AddrPort) string {
	return fmt.Sprintf("endpoint-%08X-default/s%d/tcp/p__%s/%d", i, i, to.Addr(), to.Port())
}

// layoutOf n services, as a file for nft.
func layoutOf(n int) string {
	var chains, rules, ips, elements strings.Builder
	for i := range n {
		fmt.Fprintf(&ips, "add element ip kube-proxy cluster-ips { %s }\n", vip(i))
		fmt.Fprintf(&elements, "add element ip kube-proxy service-ips { %s . tcp . %d : goto %s }\n", vip(i), servicePort, serviceChain(i))
		fmt.Fprintf(&chains, "add chain ip kube-proxy %s\n", serviceChain(i))
		for _, e := range backends {
			writeEndpoint(&chains, &rules, i, e)
		}
		writeService(&rules, i, backends)
	}
	return layoutHead + chains.String() + rules.String() + ips.String() + elements.String()
}

func writeEndpoint(chains, rules *strings.Builder, i int, to netip.AddrPort) {
	fmt.Fprintf(chains, "add chain ip kube-proxy %s\n", endpointChain(i, to))
	fmt.Fprintf(rules, "add rule ip kube-proxy %s ip saddr %s jump mark-for-masquerade\n", endpointChain(i, to), to.Addr())
	fmt.Fprintf(rules, "add rule ip kube-proxy %s meta l4proto tcp dnat to %s\n", endpointChain(i, to), to)
}

func writeService(rules *strings.Builder, i int, to []netip.AddrPort) {
	fmt.Fprintf(rules, "add rule ip kube-proxy %s ip daddr %s tcp dport %d ip saddr != %s jump mark-for-masquerade\n", serviceChain(i), vip(i), servicePort, workloads)
	fmt.Fprintf(rules, "add rule ip kube-proxy %s numgen random mod %d vmap {", serviceChain(i), len(to))
	for k, e := range to {
		fmt.Fprintf(rules, " %d : goto %s,", k, endpointChain(i, e))
	}
	rules.WriteString(" }\n")
}

// layoutChange replaces the first of a service's endpoints: the transaction
// writes the chains concerned alone, as kube-proxy does since 1.33.
func layoutChange(i int, from, to netip.AddrPort) string {
	var chains, rules strings.Builder
	writeEndpoint(&chains, &rules, i, to)
	fmt.Fprintf(&rules, "flush chain ip kube-proxy %s\n", serviceChain(i))
	writeService(&rules, i, append([]netip.AddrPort{to}, backends[1:]...))
	fmt.Fprintf(&rules, "flush chain ip kube-proxy %s\ndelete chain ip kube-proxy %[1]s\n", endpointChain(i, from))
	return chains.String() + rules.String()
}
