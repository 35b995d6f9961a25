package iptables

import (
	"strings"
	"testing"
)

// FuzzParse reads what iptables-save prints, which other programs have a part in: what is
// removed by it is ours.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"*nat\n:PREROUTING ACCEPT [0:0]\n:PROXIMA-SERVICES - [0:0]\n[3:180] -A PREROUTING -j PROXIMA-SERVICES\n-A PROXIMA-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -g PROXIMA-PORT-X\nCOMMIT\n",
		"[12:720] -A " + chainDispatch + "-1 -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -g " + chainPicks + "ABC\n",
		"[1:2] -A " + chainNodePorts + " -p udp -m udp --dport 30000 -g " + chainCluster + "TAG\n",
		"[1:2] -A " + chainDispatch + " -d fd00::1/128 -p sctp -m sctp --dport 99999 -g " + chainPicks + "\n",
		":PROXIMA-\n-A PROXIMA-\n-A  -j PROXIMA-X\n", "[", "[1", "] -A ", "-A X -g PROXIMA-Y", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, saved string) {
		s := parse([]byte(saved))
		for chain := range s.chains {
			if !strings.HasPrefix(chain, prefix) {
				t.Errorf("chain %q is taken for ours", chain)
			}
		}
		for _, h := range s.hooks {
			if !leadsToUs(h.rule) {
				t.Errorf("rule %q is taken for ours", h.rule)
			}
		}
		_ = s.removal(tableNAT)
		for _, fam := range families {
			r := newRuleset(newConfig(Options{}, fam), newFake())
			_ = r.countedRules([]byte(saved))
		}
	})
}
