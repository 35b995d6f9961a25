package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

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
