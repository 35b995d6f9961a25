package iptables

import (
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// TestWorkloadInterfaces: what arrives by them is not masqueraded, as what comes from the ranges.
func TestWorkloadInterfaces(t *testing.T) {
	o := Options{WorkloadInterfaces: proxy.Interfaces{"cni0", "cali*"}}.withDefaults()
	for _, f := range families {
		c := newConfig(o, f)
		if !c.marksClusterIP() {
			t.Error("nothing is masqueraded")
		}
		chain := c.nat().chains[chainMarkMasq]
		for _, want := range []string{"-i cni0 -j RETURN\n", "-i cali+ -j RETURN\n"} {
			if !strings.Contains(chain, want) {
				t.Errorf("chain %s lacks %q:\n%s", chainMarkMasq, want, chain)
			}
		}
	}
	o.WorkloadInterfaces = proxy.Interfaces{"a b"}
	if err := o.validate(); err == nil {
		t.Error("an interface that there cannot be is accepted")
	}
}
