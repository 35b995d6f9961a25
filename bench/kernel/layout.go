//go:build linux

package main

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"
)

// The layout of kube-proxy's nftables mode as of 1.37, and the text by which it
// hands it to nft: one transaction, with a chain per service port whose one rule
// has all its endpoints in an anonymous map, and one statement per element, as
// sigs.k8s.io/knftables writes it (k8s.io/kubernetes/pkg/proxy/nftables; the
// chains are described in kubernetes.io/blog/2025/02/28/nftables-kube-proxy).
// What it reads from the kernel before a transaction is not repeated here.

// baseChains are those at hooks.
var baseChains = []struct {
	name, kind, hook string
	priority         int
}{
	{"filter-prerouting-pre-dnat", "filter", "prerouting", -110},
	{"filter-output-pre-dnat", "filter", "output", -110},
	{"filter-input", "filter", "input", 0},
	{"filter-forward", "filter", "forward", 0},
	{"filter-output", "filter", "output", 0},
	{"nat-prerouting", "nat", "prerouting", -100},
	{"nat-output", "nat", "output", -100},
	{"nat-postrouting", "nat", "postrouting", 100},
}

// jumps are rules of base chains.
var jumps = []struct{ to, from, when string }{
	{"nodeport-endpoints-check", "filter-input", "ct state new "},
	{"service-endpoints-check", "filter-input", "ct state new "},
	{"service-endpoints-check", "filter-forward", "ct state new "},
	{"service-endpoints-check", "filter-output", "ct state new "},
	{"firewall-check", "filter-prerouting-pre-dnat", "ct state new "},
	{"firewall-check", "filter-output-pre-dnat", "ct state new "},
	{"services", "nat-output", ""},
	{"services", "nat-prerouting", ""},
	{"masquerading", "nat-postrouting", ""},
	{"cluster-ips-check", "filter-forward", "ct state new "},
	{"cluster-ips-check", "filter-output", "ct state new "},
}

// layoutRest are the maps and the rules of ordinary chains; CIDRS and WORKLOADS
// stand for the ranges.
const layoutRest = `add set ip kube-proxy hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . inet_service ; }
add rule ip kube-proxy masquerading mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random
add rule ip kube-proxy masquerading ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
add set ip kube-proxy cluster-ips { type ipv4_addr ; }
add rule ip kube-proxy cluster-ips-check ip daddr @cluster-ips reject
add rule ip kube-proxy cluster-ips-check ip daddr { CIDRS } drop
add set ip kube-proxy nodeport-ips { type ipv4_addr ; }
flush set ip kube-proxy nodeport-ips
add map ip kube-proxy no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict ; }
add map ip kube-proxy no-endpoint-nodeports { type inet_proto . inet_service : verdict ; }
add chain ip kube-proxy reject-chain
flush chain ip kube-proxy reject-chain
add rule ip kube-proxy reject-chain reject
add rule ip kube-proxy service-endpoints-check ip daddr . meta l4proto . th dport vmap @no-endpoint-services
add rule ip kube-proxy nodeport-endpoints-check ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
add map ip kube-proxy firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }
add rule ip kube-proxy firewall-check ip daddr . meta l4proto . th dport vmap @firewall-ips
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }
add map ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict ; }
add rule ip kube-proxy services ip daddr @cluster-ips ip saddr != WORKLOADS mark set mark or 0x4000
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add rule ip kube-proxy services ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
`

// layoutTable writes what is there without services, also over what an earlier
// run left.
func layoutTable(out *strings.Builder) {
	out.WriteString("add table ip kube-proxy\n")
	for _, c := range baseChains {
		fmt.Fprintf(out, "add chain ip kube-proxy %s\ndelete chain ip kube-proxy %[1]s\n", c.name)
	}
	for _, c := range baseChains {
		fmt.Fprintf(out, "add chain ip kube-proxy %s { type %s hook %s priority %d ; }\nflush chain ip kube-proxy %[1]s\n", c.name,
			c.kind, c.hook, c.priority)
	}
	made := map[string]bool{}
	for _, j := range jumps {
		if !made[j.to] {
			made[j.to] = true
			fmt.Fprintf(out, "add chain ip kube-proxy %s\nflush chain ip kube-proxy %[1]s\n", j.to)
		}
		fmt.Fprintf(out, "add rule ip kube-proxy %s %sjump %s\n", j.from, j.when, j.to)
	}
	out.WriteString(strings.NewReplacer("CIDRS", ranges[0].String(), "WORKLOADS", workloads.String()).Replace(layoutRest))
}

// serviceChain has the hash that kube-proxy's names have, too.
func serviceChain(i int) string {
	name := fmt.Sprintf("default/s%d/tcp/p", i)
	hash := sha256.Sum256([]byte(name))
	return "service-" + base32.StdEncoding.EncodeToString(hash[:])[:8] + "-" + name
}

// layoutOf n services. Over a table that has them (a restart), kube-proxy writes
// chains and rules again, and elements only where they differ.
func layoutOf(n int, again bool) string {
	var out strings.Builder
	layoutTable(&out)
	for i := range n {
		layoutService(&out, i, endpointsOf(i, 0, 3), !again)
	}
	return out.String()
}

func layoutService(out *strings.Builder, i int, to []netip.AddrPort, elements bool) {
	chain := serviceChain(i)
	fmt.Fprintf(out, "add chain ip kube-proxy %s\nflush chain ip kube-proxy %[1]s\n", chain)
	if elements {
		fmt.Fprintf(out, "add element ip kube-proxy cluster-ips { %s }\n", vip(i))
		fmt.Fprintf(out, "add element ip kube-proxy service-ips { %s . tcp . %d : goto %s }\n", vip(i), servicePort, chain)
	}
	if len(to) == 1 {
		fmt.Fprintf(out, "add rule ip kube-proxy %s meta l4proto tcp dnat to %s\n", chain, to[0])
		return
	}
	fmt.Fprintf(out, "add rule ip kube-proxy %s meta l4proto tcp dnat ip addr . port to numgen random mod %d map {", chain, len(to))
	for k, e := range to {
		if k > 0 {
			out.WriteString(" ,")
		}
		fmt.Fprintf(out, " %d : %s . %d", k, e.Addr(), e.Port())
	}
	out.WriteString(" }\n")
}

// layoutEndpoints gives a service other endpoints: since 1.33 a transaction writes
// only what changed.
func layoutEndpoints(i int, to []netip.AddrPort) string {
	var out strings.Builder
	layoutService(&out, i, to, false)
	return out.String()
}

// layoutAdd adds a service.
func layoutAdd(i int, to []netip.AddrPort) string {
	var out strings.Builder
	layoutService(&out, i, to, true)
	return out.String()
}

// layoutRemove removes one. Its chain is emptied; kube-proxy deletes it a second
// later or more, with the next change.
func layoutRemove(i int) string {
	return fmt.Sprintf(
		"flush chain ip kube-proxy %s\ndelete element ip kube-proxy cluster-ips { %s }\ndelete element ip kube-proxy service-ips { %[2]s . tcp . %d }\n",
		serviceChain(i),
		vip(i),
		servicePort,
	)
}
