package redirect

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

const vip4, vip6 = "10.96.0.1", "fd00:96::1"

// translations of virtual IPs to the workload, as the agents of a node have them: ports 80 and 81 are
// its ports 8080 and 9090.
func translations(by string) [][]string {
	if by == "nftables" {
		script := "table inet agent {\n"
		for hook, name := range map[string]string{"output": "out", "prerouting": "pre"} {
			script += "chain " + name + " { type nat hook " + hook + " priority -100;\n"
			for port, to := range map[string]string{"80": "8080", "81": "9090"} {
				script += fmt.Sprintf("ip daddr %s tcp dport %s dnat ip to %s:%s\n", vip4, port, pod4, to)
				script += fmt.Sprintf("ip6 daddr %s tcp dport %s dnat ip6 to [%s]:%s\n", vip6, port, pod6, to)
			}
			script += "}\n"
		}
		return [][]string{{"nft", script + "}"}}
	}
	var out [][]string
	for _, chain := range []string{"OUTPUT", "PREROUTING"} {
		for port, to := range map[string]string{"80": "8080", "81": "9090"} {
			out = append(out,
				[]string{"iptables", "-t", "nat", "-A", chain, "-d", vip4, "-p", "tcp", "--dport", port, "-j", "DNAT", "--to-destination", pod4 + ":" + to},
				[]string{"ip6tables", "-t", "nat", "-A", chain, "-d", vip6, "-p", "tcp", "--dport", port, "-j", "DNAT", "--to-destination", "[" + pod6 + "]:" + to})
		}
	}
	return out
}

func command(t *testing.T, ns *netns.NS, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	if args[0] == "nft" {
		cmd = exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(args[1])
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out.String())
	}
}

// TestStrict: a connection to a virtual IP that this machine translates to the workload comes past
// the proxy. To a strict port it is refused, from the machine and from others whose way leads through
// it; all else is as before.
func TestStrict(t *testing.T) {
	for _, by := range []string{"nftables", "iptables"} {
		t.Run(by, func(t *testing.T) { translated(t, by) })
	}
}

func translated(t *testing.T, by string) {
	r := newRig(t)
	for _, args := range translations(by) {
		command(t, r.pod, args...)
	}
	command(t, r.peer, "ip", "route", "add", vip4, "via", pod4)
	command(t, r.peer, "ip", "route", "add", vip6, "via", pod6)
	command(t, r.pod, "ip", "route", "add", "default", "via", peer4)
	command(t, r.pod, "ip", "route", "add", "default", "via", peer6)
	// Programs of the machine that are not the workload, as the proxy's user here, are not led to it.
	rules := Rules{Owner: "default/shop/web-1", Inbound: []uint16{8080, 9090}}
	install := func() {
		t.Helper()
		if err := r.pod.Do(func() error { return Install(rules) }); err != nil {
			t.Fatal(err)
		}
	}
	refuse := func(owner string, ports ...uint16) {
		t.Helper()
		if err := r.pod.Do(func() error { return Refuse(owner, ports) }); err != nil {
			t.Fatal(err)
		}
	}
	refuse(rules.Owner, 8080) // nothing is there
	install()
	check := func(when string, refused bool) {
		t.Helper()
		for _, family := range []struct{ pod, vip string }{{pod4, vip4}, {pod6, vip6}} {
			at := func(host, port string) string { return net.JoinHostPort(host, port) }
			for from, answer := range map[string]string{
				"a program of the machine": r.ask(r.pod, at(family.vip, "80"), asProxy), "another machine": r.ask(r.peer, at(family.vip, "80"), nil),
			} {
				if is := strings.HasSuffix(answer, "connection refused"); is != refused || !refused && answer != "application" {
					t.Errorf("%s: %s to %s: %q; refused: want %v", when, from, family.vip, answer, refused)
				}
			}
			r.expect(when+": to a port that is not strict", r.ask(r.peer, at(family.vip, "81"), nil), "application")
			r.expect(when+": the proxy to the application", r.ask(r.pod, at(family.pod, "8080"), asProxy), "application")
			r.expect(when+": to the workload's address", r.ask(r.peer, at(family.pod, "8080"), nil), "inbound")
		}
	}
	check("permissive", false)
	refuse("default/shop/another", 8080)
	check("another workload is strict", false)
	refuse(rules.Owner, 8080)
	check("strict", true)
	counted := func() (out map[uint16]uint64) {
		t.Helper()
		err := r.pod.Do(func() (err error) { out, err = Refused(rules.Owner); return err })
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := counted(); len(got) != 1 || got[8080] != 4 {
		t.Errorf("%v connections were refused, want 4 to port 8080", got)
	}
	install()
	check("the rules are put in place again", true)
	refuse(rules.Owner, 9090, 8080)
	refuse(rules.Owner)
	check("permissive again", false)
	if got := counted(); len(got) != 0 {
		t.Errorf("%v connections were refused to ports that are not strict", got)
	}
}
