package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// runSidecarOf flags as a command line has them.
func runSidecarOf(t *testing.T, args ...string) (runSidecar, error) {
	t.Helper()
	var r runSidecar
	f := pflag.NewFlagSet("run", pflag.ContinueOnError)
	r.add(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return r, r.settle(f)
}

// TestSidecarFlags: what the flags of run say is what the supervisor is told.
func TestSidecarFlags(t *testing.T) {
	dp := &v1alpha1.Dataplane{Spec: v1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}, Ports: []v1alpha1.DataplanePort{
		{Port: 8080}, {Port: 9090, Protocol: "TCP"}, {Port: 53, Protocol: "UDP"},
	}}}
	for name, c := range map[string]struct{ args, want string }{
		"auto without a cgroup": {"--sidecar", "--redirect none"},
		"none":                  {"--sidecar --redirect none --exclude-outbound 10.0.0.0/8", "--redirect none"},
		"netns": {"--sidecar --redirect netns --dns --exclude-outbound 10.0.0.0/8 --exclude-outbound 25,192.0.2.1 --exclude-inbound 9090",
			"--redirect netns --dns --inbound-ports 8080,9090 --exclude-outbound 10.0.0.0/8,25,192.0.2.1 --exclude-inbound 9090"},
		"gRPC": {"--grpc", "--redirect none"},
	} {
		r, err := runSidecarOf(t, strings.Fields(c.args)...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := r.redirectArgs(dp, nil)
		if err != nil || !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		args, want string
		code       problem.Code
	}{
		"an unknown way":          {"--sidecar --redirect all", "use auto, netns, cgroup or none", problem.Usage},
		"cgroup without one":      {"--sidecar --redirect cgroup", "no cgroup of its own", problem.SidecarUnavailable},
		"DNS without redirection": {"--sidecar --dns", "--dns", problem.SidecarUnavailable},
	} {
		r, err := runSidecarOf(t, strings.Fields(c.args)...)
		if err == nil {
			_, err = r.redirectArgs(dp, nil)
		}
		if p, _ := problem.Of(err); err == nil || !strings.Contains(err.Error(), c.want) || p.Code != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, args := range []string{"--grpc --sidecar", "--grpc --dns", "--grpc --redirect netns", "--grpc --exclude-outbound 25", "--grpc --exclude-inbound 25"} {
		if _, err := runSidecarOf(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), "leave out") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestSidecarAddresses: a program needs no ports of its supervisor, unless they are asked for.
func TestSidecarAddresses(t *testing.T) {
	for args, want := range map[string][2]string{
		"--sidecar": {":15020", ":15021"},
		"--sidecar --metrics-address= --health-address=:1": {"", ":1"},
		"--grpc": {"", ""},
		"--grpc --metrics-address=127.0.0.1:9000": {"127.0.0.1:9000", ""},
	} {
		r, err := runSidecarOf(t, strings.Fields(args)...)
		if got := [2]string{r.metricsAddress, r.healthAddress}; err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", args, got, err, want)
		}
	}
	_, err := (&runSidecar{}).xdsServers("not a URL")
	if r := (runSidecar{servers: []string{"a:1", "b:2"}}); err == nil {
		t.Error("an API without a host is taken")
	} else if got, err := r.xdsServers("https://cp:6443"); err != nil || len(got) != 2 {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := (runSidecar{}).xdsServers("https://cp.example:6443"); err != nil || !slices.Equal(got, []string{"cp.example:15010"}) {
		t.Errorf("%q, %v", got, err)
	}
}
