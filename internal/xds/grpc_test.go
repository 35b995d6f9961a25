package xds_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/xds"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// backend is a gRPC server that counts its calls.
func backend(t *testing.T) (port int32, calls func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := make(chan int, 1)
	n <- 0
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		n <- <-n + 1
		return h(ctx, r)
	}))
	healthpb.RegisterHealthServer(s, health.NewServer())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return int32(l.Addr().(*net.TCPAddr).Port), func() int { v := <-n; n <- v; return v }
}

// TestGRPC: an unmodified gRPC-Go finds a Service, and follows its endpoints.
func TestGRPC(t *testing.T) {
	first, firstCalls := backend(t)
	second, secondCalls := backend(t)
	p := newPlane(t, dataplane("client-1", "127.0.0.1"),
		service("api", "10.96.0.20", port("grpc", 80, "grpc")), slice("api", "grpc", first, "a", "s1=127.0.0.1"))
	resolver, err := xds.NewXDSResolverWithConfigForTesting([]byte(fmt.Sprintf(`{
		"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
		"node": {"id": "default/shop/client-1"}}`, p.address)))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///api.shop.svc.cluster.local:80", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	call()
	if firstCalls() != 1 {
		t.Errorf("the endpoint has %d calls", firstCalls())
	}
	p.seed(slice("api", "grpc", second, "a", "s1=127.0.0.1"))
	for end := time.Now().Add(testkit.Timeout); secondCalls() == 0; {
		if time.Now().After(end) {
			t.Fatal("the new endpoint gets no call")
		}
		call()
	}
	p.seen.none(t)
}
