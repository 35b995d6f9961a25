package app

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

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

func TestNobodysRule(t *testing.T) {
	for to, want := range map[string]string{"10.96.0.1": "reject", "10.96.0.2": "drop", "10.97.0.1": "pass", "fd00::1": "pass"} {
		got, rule := nobodysRule(rulesOfTwo, netip.MustParseAddr(to))
		if got != want || (len(rule) == 1) == (want == "pass") {
			t.Errorf("%s: %s by %q, want %s", to, got, rule, want)
		}
	}
}

func TestConnectionOf(t *testing.T) {
	for query, want := range map[string]string{
		"to=10.96.0.1:80&from=192.0.2.1":                 "10.96.0.1:80 TCP 192.0.2.1",
		"to=[::ffff:10.96.0.1]:80&from=::ffff:192.0.2.1": "10.96.0.1:80 TCP 192.0.2.1",
		"to=[fd00::1]:53&protocol=udp&from=fd00::2":      "[fd00::1]:53 UDP fd00::2",
		"to=127.0.0.1:53&protocol=sctp":                  "127.0.0.1:53 SCTP 127.0.0.1",
		"to=10.96.0.1":                                   `to="10.96.0.1": want IP:PORT`,
		"to=10.96.0.1:0":                                 "want IP:PORT",
		"to=10.96.0.1:1&protocol=icmp":                   `protocol="icmp"`,
		"to=10.96.0.1:1&from=x":                          `from="x"`,
		"to=10.96.0.1:1&from=fd00::1":                    "different families",
	} {
		c, err := connectionOf(httptest.NewRequest(http.MethodGet, "/trace?"+query, nil))
		got := c.To.String() + " " + string(c.Protocol) + " " + c.From.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// TestLocal: who is not on this machine learns nothing.
func TestLocal(t *testing.T) {
	for from, want := range map[string]int{"127.0.0.1:99": 200, "[::1]:99": 200, "[::ffff:127.0.0.1]:1": 200, "192.0.2.1:99": 403, "": 403} {
		r := httptest.NewRequest(http.MethodGet, "/dump", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		local(func(http.ResponseWriter, *http.Request) {})(w, r)
		if w.Code != want {
			t.Errorf("from %q: %d, want %d", from, w.Code, want)
		}
	}
}
