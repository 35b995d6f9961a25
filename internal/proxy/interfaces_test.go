package proxy

import "testing"

func TestInterfaces(t *testing.T) {
	all := Interfaces{"cni0", "cali*"}
	if err := all.Check(); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]bool{"cni0": true, "cni01": false, "cali12": true, "cali": true, "cal": false, "": false, "eth0": false} {
		if got := all.Contain(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	for _, bad := range []string{"", "*", "a/b", "a b", "a+", "a*b", "..", "0123456789abcdef", "0123456789abcdef*", "a\n", "é"} {
		if err := (Interfaces{bad}).Check(); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
