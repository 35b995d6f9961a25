package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/gateway/front"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/workload"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// GatewayEnvoy is an Envoy that listens in place of a gateway. It passes mutual TLS of proxies on by
// server name, to clusters of the control plane. What it cannot read, tunnels of nodes and other TLS
// that ends at a gateway, it hands to this process:
//
//	proxy ─ ALPN proxima ────────► Envoy ─ by SNI ───────► endpoint, or ingress of another zone
//	node ── ALPN proxima-frames ─► Envoy ─ Unix socket ─► server.Server, as without Envoy
type GatewayEnvoy struct {
	// Supervisor is the path of proxima-sidecar, Envoy that of Envoy.
	Supervisor, Envoy string
	// Servers of xDS (HOST:PORT) of the control plane.
	Servers []string
}

// gatewayEnvoy is the Envoy of a gateway, with its supervisor.
type gatewayEnvoy struct {
	gateway *gateway
	// dir of the supervisor, of which credentials and authorities are files.
	dir, credentials string
	// authorities of the control plane, in PEM, as they are now.
	authorities func() []byte
	address     string
	node, zone  string
	serves      chan struct{} // closed once Envoy does
	// outside connects to services outside every mesh by Envoy.
	outside *front.Dialer
}

const (
	engineSocket    = "engine.sock"
	outsideSocket   = "outside.sock"
	credentialsFile = "credentials.json" // as package identity names it
	authoritiesFile = "server-ca.pem"
	// authoritiesCheck is how often it is looked whether the authorities are others.
	authoritiesCheck = 10 * time.Second
)

// listenBehindEnvoy opens the socket at which Envoy hands over what it cannot read.
func (a *agent) listenBehindEnvoy(address string, limit int) (net.Listener, error) {
	g := a.gateway
	e := &gatewayEnvoy{
		gateway: g, dir: filepath.Join(a.dir(), "envoy"), credentials: filepath.Join(a.dir(), credentialsFile), address: address,
		node: a.cfg.Name, zone: a.cfg.Zone, serves: make(chan struct{}),
		authorities: func() []byte { return a.renewer.Credentials().AuthoritiesPEM() },
	}
	e.outside = front.New(filepath.Join(e.dir, outsideSocket), g.buffers)
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return nil, fmt.Errorf("%s: folder of Envoy: %w", g.cfg.role(), err)
	}
	if err := e.checkPort(); err != nil {
		return nil, err
	}
	path := filepath.Join(e.dir, engineSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of the last run: the folder is locked
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, &problem.Error{
			Code: problem.ListenFailed, Err: fmt.Errorf("%s: socket for Envoy: %w", g.cfg.role(), err),
			Hint: "paths of sockets have at most 107 characters: use a shorter --data-dir",
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	g.envoy = e
	return listener.Limit(l, listener.Config{Name: g.cfg.role(), MaxConnections: limit, Logger: g.log}), nil
}

// checkPort refuses a port that another process has: Envoy would not start. An Envoy of the last run
// may have it.
func (e *gatewayEnvoy) checkPort() error {
	if _, err := os.Stat(filepath.Join(e.dir, "envoy.json")); err == nil {
		return nil
	}
	l, err := net.Listen("tcp", e.address)
	if err != nil {
		return &problem.Error{
			Code: problem.ListenFailed, Err: fmt.Errorf("%s: %w", e.gateway.cfg.role(), err),
			Hint: "is another one running on this machine? choose another port with --" + e.gateway.cfg.role() + "-port",
		}
	}
	return l.Close()
}

// envoyComponents run Envoy, once all else that the gateway consists of runs.
func (g *gateway) envoyComponents() []component {
	if g == nil || g.envoy == nil {
		return nil
	}
	return []component{{Name: "Envoy of the " + g.cfg.role(), Run: g.envoy.run, Ready: g.envoy.serves}}
}

// run Envoy until ctx ends: its connections may last for a time then, and are cut.
func (e *gatewayEnvoy) run(ctx context.Context) error {
	if err := e.writeAuthorities(); err != nil {
		return err
	}
	cfg := e.gateway.cfg
	proxy := &workload.Sidecar{
		Path: cfg.Envoy.Supervisor, Args: e.arguments(), Control: filepath.Join(e.dir, "control.sock"), Output: os.Stderr, Logger: e.gateway.log,
		Leave: true,
	}
	if err := proxy.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return &problem.Error{
			Code: problem.SidecarUnavailable, Op: "start", Object: "Envoy of the " + cfg.role(), Err: err,
			Hint: "its supervisor says above what is wrong; --engine proxima needs no Envoy",
		}
	}
	defer proxy.Stop()
	e.gateway.log.Info("Envoy serves", "address", e.address)
	close(e.serves)
	ticker := time.NewTicker(authoritiesCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := e.writeAuthorities(); err != nil {
				e.gateway.log.Warn("Envoy's supervisor verifies the control plane by the authorities that it has", "error", err)
			}
		}
	}
}

// writeAuthorities of the control plane for the supervisor, if they are others than in the file.
func (e *gatewayEnvoy) writeAuthorities() error {
	path, now := filepath.Join(e.dir, authoritiesFile), e.authorities()
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, now) {
		return nil
	}
	return atomicfile.Write(path, now, 0o600)
}

// arguments of the supervisor.
func (e *gatewayEnvoy) arguments() []string {
	cfg := e.gateway.cfg
	out := []string{
		"--node-id", bootstrap.GatewayID(cfg.role(), e.node), "--cluster", "gateway/" + cfg.role(), "--zone", e.zone, "--dir", e.dir,
		"--server", strings.Join(cfg.Envoy.Servers, ","), "--server-ca-file", filepath.Join(e.dir, authoritiesFile),
		"--node-credentials", e.credentials, "--gateway-address", e.address, "--gateway-socket", filepath.Join(e.dir, engineSocket),
		"--envoy", cfg.Envoy.Envoy, "--concurrency", strconv.Itoa(runtime.GOMAXPROCS(0)), "--metrics-address", "", "--health-address", "",
	}
	if cfg.Egress {
		out = append(out, "--gateway-outside-socket", filepath.Join(e.dir, outsideSocket))
	}
	return out
}

// connectOutside has Envoy connect to a port of a service outside every mesh. It implements egress.Config.Front.
func (e *gatewayEnvoy) connectOutside(ctx context.Context, outside string) (server.Upstream, error) {
	port, err := build.ParseServicePort(outside)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", front.ErrAbsent, err)
	}
	up, err := e.outside.Connect(ctx, build.OutsideName(port))
	if err != nil {
		return nil, err
	}
	return up, nil
}
