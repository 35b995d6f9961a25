package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Cleanup removes everything of this mode from the kernel, whichever variant it
// is of: chains, the rules that lead to them, and sets. Of the options it heeds
// Inside only. A variant that is not installed here has left nothing, so it is no
// error; neither is a kernel without anything to remove.
func Cleanup(ctx context.Context, opts Options) error {
	opts = opts.withDefaults()
	var errs []error
	for _, v := range []Variant{NFT, Legacy} {
		k, err := openSystem(v, opts.Inside)
		if err != nil {
			continue
		}
		errs = append(errs, cleanup(ctx, k), k.close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing what the iptables mode left: %w", err)
	}
	return nil
}

func cleanup(ctx context.Context, k kernel) error {
	var errs []error
	for _, f := range families {
		if hasFamily(f) {
			errs = append(errs, wipe(ctx, k, f))
		}
	}
	names, err := k.sets()
	if err != nil {
		return errors.Join(errs...) // a kernel without sets
	}
	for _, name := range names {
		errs = append(errs, dropSet(ctx, k, name))
	}
	return errors.Join(errs...)
}

// dropSet waits for the kernel to let go of the rules that used the set: with
// nftables that happens some time after the transaction.
func dropSet(ctx context.Context, k kernel, name string) error {
	const attempts, pause = 50, 20 * time.Millisecond
	var err error
	for range attempts {
		if err = k.removeSet(name); err == nil {
			return nil
		}
		if !backoff.Sleep(ctx, pause) {
			return errors.Join(err, ctx.Err())
		}
	}
	return err
}

// Check reports why the variant can't work here, nil if it can, by trying: it adds
// a chain that no packet meets, with every kind of rule that the mode uses, and
// removes it. A kernel that can't do client affinity alone passes; services that
// ask for it fail one by one.
func Check(ctx context.Context, opts Options) error {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return err
	}
	variant, k, err := open(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { _ = k.close() }()
	for _, f := range families {
		if !hasFamily(f) {
			continue
		}
		if err := try(ctx, k, f); err != nil {
			return fmt.Errorf("iptables (%s) can't do what is needed for %s here; is the agent privileged (CAP_NET_ADMIN), and are the kernel's netfilter modules there? %w", variant, f, err)
		}
	}
	return nil
}

// try every kind of rule.
func try(ctx context.Context, k kernel, f family) error {
	c := newConfig(Options{}.withDefaults(), f)
	a := [...]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1}), netip.MustParseAddr("2001:db8::1")}[f]
	rules := []string{c.setMasquerade(), hasMark(c.refuseBit) + " -j ACCEPT", "-m addrtype --dst-type LOCAL -j ACCEPT", "-m conntrack --ctstate DNAT -j ACCEPT"}
	for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP} {
		r := renderer{config: c, proto: protocolNames[protocolDigits[p]]}
		rules = append(rules, "-p "+r.proto+" "+probability(0.5)+r.dnat(netip.AddrPortFrom(a, 1)),
			fmt.Sprintf("-d %s -p %s -m %[2]s --dport 1 -j ACCEPT", host(a), r.proto))
	}
	for name, rules := range map[string][]string{
		tableNAT:    rules,
		tableFilter: {"-p tcp -j REJECT --reject-with tcp-reset", "-j REJECT --reject-with " + f.unreachable()},
	} {
		input := "*" + name + "\n:" + chainProbe + " - [0:0]\n" + lines(chainProbe, rules) + "COMMIT\n"
		if err := k.restore(ctx, f, []byte(input)); err != nil {
			return err
		}
		if err := k.restore(ctx, f, []byte("*"+name+"\n:"+chainProbe+" - [0:0]\n-X "+chainProbe+"\nCOMMIT\n")); err != nil {
			return err
		}
	}
	return nil
}
