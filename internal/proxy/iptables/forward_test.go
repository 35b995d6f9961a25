package iptables

import "testing"

func TestBlockedBy(t *testing.T) {
	for saved, want := range map[string]string{
		":FORWARD ACCEPT [0:0]\n-A FORWARD -j PROXIMA-FORWARD\n":                                       "",
		":FORWARD DROP [0:0]\n-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -j ACCEPT\n":            "policy",
		":FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT\n-A FORWARD -j X\n":     "",
		":FORWARD ACCEPT [0:0]\n-A FORWARD -p tcp -j ACCEPT\n-A FORWARD -j REJECT --reject-with x\n":   "last rule",
		":FORWARD ACCEPT [0:0]\n-A FORWARD -p tcp -j DROP\n-A INPUT -j DROP\n":                         "",
		":INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j ACCEPT\n-A FORWARD -j DROP\nCOMMIT\n": "",
	} {
		if got := blockedBy(saved); got != want {
			t.Errorf("%q: by %q, want %q", saved, got, want)
		}
	}
}
