package lab_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	_ "google.golang.org/grpc/xds" // the scheme of targets
)

// What the shop's workloads run: this test's binary with one of these variables.
const (
	// dialerSocket: connect to the address in the first line of each connection to this Unix
	// socket, and pass bytes on. So the test can connect as a workload with a sidecar.
	dialerSocket = "SHOP_DIALER"
	// grpcAddress: serve gRPC there, and be a gRPC program without a proxy that calls the target
	// grpcTarget once for each connection to the socket grpcSocket, and answers with the error.
	grpcAddress, grpcTarget, grpcSocket = "SHOP_GRPC", "SHOP_TARGET", "SHOP_SOCKET"
	// grpcIdentity is the folder for the certificate, which the bootstrap names.
	grpcIdentity = "SHOP_IDENTITY"
)

// shopChild is what a workload of the shop does; false: this process is a test.
func shopChild() bool {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case os.Getenv(dialerSocket) != "":
		if dir := os.Getenv(grpcIdentity); dir != "" {
			err = fetchIdentity(ctx, dir)
		}
		err = errors.Join(err, listenUnix(ctx, os.Getenv(dialerSocket), passOn))
	case os.Getenv(grpcAddress) != "":
		err = proxyless(ctx)
	case os.Getenv(programAddress) != "":
		err = serveProgram(ctx, os.Getenv(programAddress))
	case os.Getenv(programTarget) != "":
		err = callProgram(ctx, os.Getenv(programTarget), os.Getenv(programSocket))
	case os.Getenv(lookupSocket) != "":
		err = lookUp(ctx, os.Getenv(lookupSocket))
	default:
		return false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func listenUnix(ctx context.Context, path string, serve func(net.Conn)) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go serve(c)
	}
}

func passOn(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	to, err := net.DialTimeout("tcp", strings.TrimSpace(line), 5*time.Second)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, in)
		_ = to.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, to)
}

// proxyless gRPC: its certificate is that of the node's Workload API.
func proxyless(ctx context.Context) error {
	if err := fetchIdentity(ctx, os.Getenv(grpcIdentity)); err != nil {
		return err
	}
	l, err := net.Listen("tcp", os.Getenv(grpcAddress))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient(os.Getenv(grpcTarget), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return listenUnix(ctx, os.Getenv(grpcSocket), func(c net.Conn) {
		defer c.Close()
		fmt.Fprint(c, checkHealth(ctx, conn))
	})
}

func checkHealth(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func fetchIdentity(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	svid, err := workloadapi.FetchX509SVID(ctx) // of SPIFFE_ENDPOINT_SOCKET
	if err != nil {
		return err
	}
	chain, key, err := svid.Marshal()
	if err != nil {
		return err
	}
	if block, _ := pem.Decode(chain); block == nil {
		return errors.New("the certificate is not PEM")
	}
	if err := os.WriteFile(filepath.Join(dir, "svid.crt"), chain, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "svid.key"), key, 0o600)
}
