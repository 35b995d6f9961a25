package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	_ "google.golang.org/grpc/xds" // the scheme of targets
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/proxima-mesh/proxima/internal/sidecar/adstest"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// A test binary that is started with this variable is a gRPC program: it calls the target once, and prints what
// became of it.
const programTarget = "SIDECAR_TEST_TARGET"

func TestMain(m *testing.M) {
	target := os.Getenv(programTarget)
	if target == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		var r *healthpb.HealthCheckResponse
		if r, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err == nil {
			fmt.Println(r.Status)
		}
	}
	if err != nil {
		fmt.Println(err)
	}
}

// TestProgram: a gRPC program starts from what its supervisor writes, and follows the control plane through it.
// There is no Envoy. After a start without a control plane the certificate is there, and the program waits.
func TestProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }() // its end is Stop
	t.Cleanup(server.Stop)
	manager := &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{Name: "pay", VirtualHosts: []*routev3.VirtualHost{{
			Name: "pay", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "pay"}}},
			}},
		}}}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: adstest.Pack(t, &routerv3.Router{})}}},
	}
	endpoints := adstest.Endpoints(t, "pay", l.Addr().String())
	endpoints.Endpoints[0].Locality, endpoints.Endpoints[0].LoadBalancingWeight = &corev3.Locality{Zone: "a"}, wrapperspb.UInt32(1)
	w.cp.Set(wire.Listener, "pay", "1", &listenerv3.Listener{Name: "pay", ApiListener: &listenerv3.ApiListener{ApiListener: adstest.Pack(t, manager)}})
	w.cp.Set(wire.Cluster, "pay", "1", adstest.Cluster("pay", "pay"))
	w.cp.Set(wire.Endpoint, "pay", "1", endpoints)
	w.args, w.envoy = append(w.args, "--grpc"), "/none"
	s := w.start()
	s.await("the program can start", func(s Status) bool { return s.Ready == "true" && s.Relay.Upstream.Connected })

	bootstrap := filepath.Join(w.arg("--dir"), ProgramBootstrap)
	text, err := os.ReadFile(bootstrap)
	var parsed struct {
		Providers map[string]struct {
			Config map[string]string `json:"config"`
		} `json:"certificate_providers"`
		Template string `json:"server_listener_resource_name_template"`
	}
	if err != nil || json.Unmarshal(text, &parsed) != nil || parsed.Template != "in|%s" {
		t.Fatalf("bootstrap: %v\n%s", err, text)
	}
	files := func() {
		t.Helper()
		for _, name := range []string{"certificate_file", "private_key_file", "ca_certificate_file"} {
			info, err := os.Stat(parsed.Providers["default"].Config[name])
			if err != nil || info.Mode().Perm() != 0o600 || info.Size() == 0 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	}
	files()
	call := func() string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), programTarget+"=xds:///pay", "GRPC_XDS_BOOTSTRAP="+bootstrap)
		begin := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Logf("a call took %s: %s", time.Since(begin).Round(time.Millisecond), out)
		return strings.TrimSpace(string(out))
	}
	if got := call(); !strings.HasSuffix(got, "SERVING") {
		t.Errorf("a call of the program: %s", got)
	}
	w.cp.Read(func(cp *adstest.Server) {
		if len(cp.Programs) == 0 || cp.Programs[0] != nodeID || cp.Streams() > 0 {
			t.Errorf("programs %q, and %d streams of an Envoy that is not there", cp.Programs, cp.Streams())
		}
	})

	// The control plane goes, and the supervisor with it.
	w.stop()
	s.kill()
	for _, name := range []string{"certificate.pem", "key.pem", "roots.pem"} {
		if err := os.Remove(filepath.Join(w.arg("--dir"), "identity", name)); err != nil {
			t.Fatal(err)
		}
	}
	s = w.start()
	s.await("the program can start without a control plane", func(s Status) bool { return s.Ready == "true" && !s.Relay.Upstream.Connected })
	files()
	another := w.cp.Clone()
	another.Start(w.server, w.config)
	testkit.Eventually(t, "a program is served by another control plane", func() bool { return strings.HasSuffix(call(), "SERVING") })
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-s.done; err != nil {
		t.Errorf("its end: %v", err)
	}
}
