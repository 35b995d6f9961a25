//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/iptables"
)

// The layout of kube-proxy's iptables mode: one list of all services, a chain per
// service that picks by chance, and one per endpoint that translates. After a
// change it writes the list, and the chains of the service alone
// (k8s.io/kubernetes/pkg/proxy/iptables, MinimizeIPTablesRestore).

const linearHead = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
`

const linearHooks = `-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
`

// linearOf n services, as a file for iptables-restore: all of them, or those that
// changed, of which i has other endpoints.
func linearOf(n int, whole bool, i int, to []netip.AddrPort) string {
	var chains, list, rules strings.Builder
	for s := range n {
		fmt.Fprintf(&list,
			"-A KUBE-SERVICES -m comment --comment \"default/s%d:p cluster IP\" -m tcp -p tcp -d %s --dport %d -j KUBE-SVC-%08d\n", s,
			vip(s), servicePort, s)
		switch {
		case s == i:
			linearService(&chains, &rules, s, to)
		case whole:
			linearService(&chains, &rules, s, endpointsOf(s, 0, 3))
		}
	}
	hooks := ""
	if whole {
		hooks = linearHooks
	}
	head, first, _ := strings.Cut(linearHead, "-A")
	return head + chains.String() + "-A" + first + hooks + list.String() + rules.String() + "COMMIT\n"
}

func linearService(chains, rules *strings.Builder, s int, to []netip.AddrPort) {
	fmt.Fprintf(chains, ":KUBE-SVC-%08d - [0:0]\n", s)
	fmt.Fprintf(rules,
		"-A KUBE-SVC-%08d -m comment --comment \"default/s%[1]d:p cluster IP\" -m tcp -p tcp -d %s --dport %d ! -s %s -j KUBE-MARK-MASQ\n",
		s, vip(s), servicePort, workloads)
	for k, e := range to {
		sep := fmt.Sprintf("KUBE-SEP-%d-%s", s, e.Addr())
		fmt.Fprintf(chains, ":%s - [0:0]\n", sep)
		chance := ""
		if rest := len(to) - k; rest > 1 {
			chance = fmt.Sprintf(" -m statistic --mode random --probability %.10f", 1/float64(rest))
		}
		fmt.Fprintf(rules, "-A KUBE-SVC-%08d -m comment --comment \"default/s%[1]d:p -> %s\"%s -j %s\n", s, e, chance, sep)
		fmt.Fprintf(rules, "-A %s -m comment --comment default/s%d:p -s %s -j KUBE-MARK-MASQ\n", sep, s, e.Addr())
		fmt.Fprintf(rules, "-A %s -m comment --comment default/s%d:p -m tcp -p tcp -j DNAT --to-destination %s\n", sep, s, e)
	}
}

// iptablesMode compares both variants with kube-proxy's layout.
func (b *bench) iptablesMode(ctx context.Context) error {
	b.section("iptables: the mode compared with the text of kube-proxy's iptables mode through iptables-restore")
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		if err := b.variant(ctx, v); err != nil {
			return fmt.Errorf("%s: %w", v, err)
		}
	}
	return nil
}

func (b *bench) variant(ctx context.Context, v iptables.Variant) error {
	n, name := b.iptables, "iptables-"+string(v)+": "
	ours, err := newMachine(ctx, "pmus-ours")
	if err != nil {
		return err
	}
	defer ours.close()
	theirs, err := newMachine(ctx, "pmus-theirs")
	if err != nil {
		return err
	}
	defer theirs.close()
	restore := func(text string, more ...string) (time.Duration, error) {
		return theirs.feed(ctx, text, "iptables-"+string(v)+"-restore", append(more, "--wait", "30")...)
	}
	const layout = "restore, its layout"

	begin := time.Now()
	mode, err := iptables.New(iptables.Options{Variant: v, ServiceCIDRs: ranges, WorkloadCIDRs: []netip.Prefix{workloads}, Inside: ours.Do})
	if err != nil {
		return err
	}
	defer func() { _ = mode.Close(context.WithoutCancel(ctx)) }()
	if err := mode.Apply(ctx, all(n)); err != nil {
		return err
	}
	cold := time.Since(begin)
	// kube-proxy says --noflush here, too, with which the nft variant takes minutes.
	theirCold, err := restore(linearOf(n, true, -1, nil))
	if err != nil {
		return err
	}
	b.add(row{name + "cold", n, seconds, []float64{cold.Seconds()}, layout, []float64{theirCold.Seconds()}, nil})

	var changeOurs, changeTheirs []float64
	for round := range b.restores {
		from := round % 2
		to := endpointsOf(n/2, 1-from, 4-from)
		begin := time.Now()
		if err := mode.Apply(ctx, []proxy.Change{change(n/2, to)}); err != nil {
			return err
		}
		changeOurs = append(changeOurs, time.Since(begin).Seconds())
		took, err := restore(linearOf(n, false, n/2, to), "--noflush")
		if err != nil {
			return err
		}
		changeTheirs = append(changeTheirs, took.Seconds())
	}
	b.add(row{name + "one endpoint replaced", n, seconds, changeOurs, layout, changeTheirs, atMost(0.15)})

	// Of both sides the first service and the last one, by their addresses.
	var took [2][2][]float64
	for round := -1; round < b.rounds; round++ {
		for turn := range 4 {
			turn = (turn + round + 1) % 4
			side, last := turn/2, turn%2
			batch, err := connects([]*machine{ours, theirs}[side].NS, max(1, b.batch/2), at(vip(last*(n-1))))
			if err != nil {
				return err
			}
			if round >= 0 {
				took[side][last] = append(took[side][last], middle(batch))
			}
		}
	}
	b.add(row{name + "connect to the last service", n, seconds, took[0][1], "to the first", took[0][0], ratioAtMost(1.1)})
	b.add(row{name + "connect to the last service", n, seconds, took[0][1], "in its layout", took[1][1], nil})
	b.add(row{"kube-proxy's layout: connect to the last service", n, seconds, took[1][1], "to the first", took[1][0], nil})
	return nil
}
