package dns

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The records of the specification as two programs that others wrote see them:
// Go's resolver library, and dig.

func goResolver(addr string) *net.Resolver {
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
}

func TestGoResolver(t *testing.T) {
	r := goResolver(serve(t).addr)
	sorted := func(out []string, err error) []string {
		if err != nil {
			return []string{"error: " + err.Error()}
		}
		slices.Sort(out)
		return out
	}
	for _, tc := range []struct {
		name string
		ask  func(context.Context) []string
		want []string
	}{
		{"host, both families", func(ctx context.Context) []string {
			return sorted(r.LookupHost(ctx, "web.default.svc.cluster.local."))
		}, []string{"10.96.0.10", "fd00:96::10"}},
		{"headless", func(ctx context.Context) []string {
			return sorted(r.LookupHost(ctx, "db.default.svc.cluster.local."))
		}, []string{"10.1.0.1", "10.1.0.2", "fd00:1::1"}},
		{"hostname", func(ctx context.Context) []string {
			return sorted(r.LookupHost(ctx, "db-0.db.default.svc.cluster.local."))
		}, []string{"10.1.0.1", "fd00:1::1"}},
		{"service to a Service by its external name", func(ctx context.Context) []string {
			return sorted(r.LookupHost(ctx, "chain.default.svc.cluster.local."))
		}, []string{"10.96.0.10", "fd00:96::10"}},
		{"many, by TCP", func(ctx context.Context) []string {
			out, err := r.LookupHost(ctx, "big.default.svc.cluster.local.")
			if err != nil || len(out) != 200 {
				return []string{"error", err.Error()}
			}
			return []string{"200"}
		}, []string{"200"}},
		{"SRV", func(ctx context.Context) []string {
			_, all, err := r.LookupSRV(ctx, "sql", "tcp", "db.default.svc.cluster.local.")
			var out []string
			for _, s := range all {
				out = append(out, s.Target)
			}
			return sorted(out, err)
		}, []string{"10-1-0-2.db.default.svc.cluster.local.", "db-0.db.default.svc.cluster.local."}},
		{"PTR", func(ctx context.Context) []string { return sorted(r.LookupAddr(ctx, "10.96.0.1")) },
			[]string{"kubernetes.default.svc.cluster.local."}},
		{"PTR of an endpoint", func(ctx context.Context) []string { return sorted(r.LookupAddr(ctx, "fd00:1::1")) },
			[]string{"db-0.db.default.svc.cluster.local."}},
		{"TXT", func(ctx context.Context) []string { return sorted(r.LookupTXT(ctx, "dns-version.cluster.local.")) },
			[]string{"1.1.0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if diff := cmp.Diff(tc.want, tc.ask(ctx)); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("there is no such name", func(t *testing.T) {
		var failure *net.DNSError
		_, err := r.LookupHost(t.Context(), "none.default.svc.cluster.local.")
		if !errors.As(err, &failure) || !failure.IsNotFound {
			t.Errorf("%v, want not found", err)
		}
	})
}

func TestDig(t *testing.T) {
	dig, err := exec.LookPath("dig")
	if err != nil {
		t.Skip("needs dig: run tools/setup")
	}
	host, port, _ := net.SplitHostPort(serve(t).addr)
	for _, tc := range []struct {
		args string
		want []string // parts of what dig prints
	}{
		{"web.default.svc.cluster.local A", []string{"status: NOERROR", "flags: qr aa rd ra;", "web.default.svc.cluster.local. 5 IN A 10.96.0.10", "(UDP)"}},
		{"web.default.svc.cluster.local AAAA +tcp", []string{"IN AAAA fd00:96::10", "(TCP)"}},
		{"_http._tcp.web.default.svc.cluster.local SRV", []string{"SRV 0 100 80 web.default.svc.cluster.local.", "ADDITIONAL: 3"}},
		{"-x 10.96.0.1", []string{"1.0.96.10.in-addr.arpa. 5 IN PTR kubernetes.default.svc.cluster.local."}},
		{"-x fd00:96::10", []string{"PTR web.default.svc.cluster.local."}},
		{"none.default.svc.cluster.local A", []string{"status: NXDOMAIN", "AUTHORITY: 1", "IN SOA ns.dns.cluster.local. hostmaster.cluster.local.", "7200 1800 86400 5"}},
		{"kubernetes.default.svc.cluster.local AAAA", []string{"status: NOERROR", "ANSWER: 0", "SOA"}},
		{"inside.default.svc.cluster.local A", []string{"CNAME web.default.svc.cluster.local.", "A 10.96.0.10"}},
		{"big.default.svc.cluster.local A", []string{"Truncated, retrying in TCP mode.", "ANSWER: 200", "(TCP)"}},
		{"big.default.svc.cluster.local A +ignore +bufsize=512", []string{"flags: qr aa tc rd ra;"}},
		{"big.default.svc.cluster.local A +ignore +bufsize=4096", []string{"flags: qr aa tc rd ra;", "udp: 1232"}},
		{"web.default.svc.cluster.local A +noedns", []string{"A 10.96.0.10"}},
		{"web.default.svc.cluster.local A +edns=1 +noednsneg", []string{"status: BADVERS"}},
		{"web.default.svc.cluster.local A +cookie=0123456789abcdef", []string{"A 10.96.0.10"}},
		{"web.default.svc.cluster.local A -c CH", []string{"status: REFUSED"}},
		{"cluster.local AXFR", []string{"Transfer failed"}},
		{"outside.default.svc.cluster.local CNAME", []string{"CNAME www.example.com."}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			args := append([]string{"@" + host, "-p", port, "+tries=1", "+time=5"}, strings.Fields(tc.args)...)
			out, err := exec.CommandContext(t.Context(), dig, args...).CombinedOutput()
			if err != nil && !strings.Contains(tc.args, "AXFR") {
				t.Fatalf("%v\n%s", err, out)
			}
			text := strings.Join(strings.Fields(string(out)), " ")
			for _, part := range tc.want {
				if !strings.Contains(text, part) {
					t.Errorf("%q is missing in:\n%s", part, out)
				}
			}
		})
	}
}
