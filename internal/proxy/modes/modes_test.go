package modes

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/policy"
)

func TestNewRefusesByName(t *testing.T) {
	for name, want := range map[string]string{
		"kernelspace": "--mode kernelspace: it is of Windows, and this system is Linux; use auto, nftables, iptables, ebpf, ipvs or userspace",
		"fast":        `--mode "fast": use auto, nftables, iptables, ebpf, ipvs or userspace`,
	} {
		if _, err := New(t.Context(), name, Config{}); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func TestNamesBeginWithAuto(t *testing.T) {
	names := Names()
	if names[0] != Auto || len(names) != len(table) || slices.Contains(names, ebpfAboveOther) {
		t.Errorf("Names() = %q, want auto and the table, but for %s", names, ebpfAboveOther)
	}
	if !strings.HasSuffix(strings.Join(names, " "), userspaceName) {
		t.Error("the mode that works anywhere is not the last resort")
	}
}

// TestLayered: what a mode needs below it stays when others are cleaned up.
func TestLayered(t *testing.T) {
	for name, want := range map[string]string{ebpfName: nftablesName, ebpfAboveOther: iptablesName, nftablesName: nftablesName, userspaceName: userspaceName, "": ""} {
		if got := belowOf(name); got != want {
			t.Errorf("below %q: %q, want %q", name, got, want)
		}
		if got, want := Layered(name), strings.HasPrefix(name, ebpfName); got != want {
			t.Errorf("%q is layered: %v", name, got)
		}
	}
	for _, name := range []string{ebpfName, ebpfAboveOther} {
		if _, inKernel := RequirementOf(name); !inKernel {
			t.Errorf("%s needs nothing of the kernel", name)
		}
	}
	above, _ := AbilityOf(ebpfName)
	other, _ := AbilityOf(ebpfAboveOther)
	nft, _ := AbilityOf(nftablesName)
	ipt, _ := AbilityOf(iptablesName)
	if above != nft || other != ipt {
		t.Errorf("the layer does %+v and %+v, want what the mode below does: %+v and %+v", above, other, nft, ipt)
	}
}

const rulesOfTwo = `# IPv4
*nat
:PROXIMA-SVC-W - [0:0]
-A PREROUTING -j PROXIMA-SERVICES
-A PROXIMA-SERVICES -j PROXIMA-T-ROOT
-A PROXIMA-SERVICES -d 10.96.0.0/16 -g PROXIMA-DROP
# shop/web:http
-A PROXIMA-SVC-W -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.0.0.1:80
-A PROXIMA-SVC-W -p tcp -j DNAT --to-destination 10.0.0.2:80
# shop/web:https
-A PROXIMA-SVC-X -p tcp -j DNAT --to-destination 10.0.0.1:443
-A PROXIMA-T-ROOT -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -g PROXIMA-SVC-W
-A PROXIMA-T-ROOT -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -g PROXIMA-SVC-X
-A PROXIMA-T-ROOT -d 10.96.0.1/32 -g PROXIMA-REJECT
COMMIT
`

func TestRuleWithoutService(t *testing.T) {
	for to, want := range map[string]string{"10.96.0.1": "reject", "10.96.0.2": "drop", "10.97.0.1": "pass", "fd00::1": "pass"} {
		got, rule := ruleWithoutService(rulesOfTwo, netip.MustParseAddr(to))
		if got != want || (len(rule) == 1) == (want == "pass") {
			t.Errorf("%s: %s by %q, want %s", to, got, rule, want)
		}
	}
}

// TestCleanupKeepsWhatIsBelow: each mode is told which mode follows, or itself where it is a part of that.
func TestCleanupKeepsWhatIsBelow(t *testing.T) {
	real := table
	t.Cleanup(func() { table = real })
	told := map[string]string{}
	table = nil
	for _, name := range []string{nftablesName, iptablesName, ebpfName, ipvsName} {
		table = append(table, entry{name: name, does: policy.NodeAbility{Addresses: true}, cleanup: func(_ context.Context, next string) error {
			told[name] = next
			return nil
		}})
	}
	for next, want := range map[string]map[string]string{
		ipvsName:     {nftablesName: nftablesName, iptablesName: ipvsName, ebpfName: ipvsName, ipvsName: ipvsName},
		ebpfName:     {nftablesName: nftablesName, iptablesName: nftablesName, ebpfName: ebpfName, ipvsName: nftablesName},
		nftablesName: {nftablesName: nftablesName, iptablesName: nftablesName, ebpfName: nftablesName, ipvsName: nftablesName},
	} {
		clear(told)
		if err := Cleanup(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(told, want) {
			t.Errorf("%s follows: modes are told %v, want %v", next, told, want)
		}
	}
}
