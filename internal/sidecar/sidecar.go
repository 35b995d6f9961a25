package sidecar

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/scavenge"
	"github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/sidecar/logsink"
	"github.com/proxima-mesh/proxima/internal/sidecar/nameserver"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
	"github.com/proxima-mesh/proxima/internal/sidecar/relay"
	"github.com/proxima-mesh/proxima/internal/sidecar/secret"
	"github.com/proxima-mesh/proxima/internal/sidecar/supervise"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/version"
)

const (
	// gcPercent: the heap is small, and the memory of all workloads of a machine adds up.
	gcPercent = 25
	// minReclaim (bytes) is the least that is worth a collection.
	minReclaim = 2 << 20
	// waitNotice is how often it is said what Envoy waits for.
	waitNotice = 10 * time.Second
	// dirMode of the folder: Envoy's user goes through it to its socket.
	dirMode = 0o711
	// readyCheck is how often it is asked whether Envoy serves, until it does.
	readyCheck = 20 * time.Millisecond
)

// Main runs the program and returns its exit code: 1 failed, 2 usage.
func Main(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == supervise.LaunchArgument {
		return supervise.Launch(args[1:])
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		report(stderr, err)
		return 2
	}
	if o.version {
		_, _ = fmt.Fprintln(stdout, "proxima-sidecar", version.Get().Version) // there is nobody to tell
		return 0
	}
	for _, do := range []struct {
		with string
		do   func(string) error
	}{{o.install, install}, {o.drainRunning, drainRunning}} {
		if do.with == "" {
			continue
		}
		if err := do.do(do.with); err != nil {
			report(stderr, err)
			return 1
		}
		return 0
	}
	level := slog.LevelInfo
	if o.Verbose {
		level = slog.LevelDebug
	}
	s := &Supervisor{options: o, logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})), stdout: stdout}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.follow(cancel)
	if err := s.Run(ctx); err != nil {
		report(stderr, err)
		return 1
	}
	return 0
}

func report(w io.Writer, err error) {
	p, _ := problem.Of(err)
	_, _ = fmt.Fprintln(w, "Error:", err) // there is nobody to tell
	if p.Hint != "" {
		_, _ = fmt.Fprintln(w, "Hint:", p.Hint)
	}
}

// Supervisor of one workload's proxy.
type Supervisor struct {
	options Options
	logger  *slog.Logger
	stdout  io.Writer

	keeper *secret.Keeper
	relay  *relay.Relay
	envoy  *supervise.Envoy
	admin  *supervise.Admin

	beacon   *beacon // nil: the agent of the node does not lead connections here
	settings settings
	// names and who answers for them; nil: questions of DNS are not answered here.
	names      *nameserver.Table
	nameserver *nameserver.Server
	sinks      *logsink.Sinks

	draining atomic.Bool
	leave    atomic.Bool
	served   atomic.Bool // Envoy has served at least once
}

// follow signals: the first of SIGTERM and SIGINT drains and ends Envoy, a second one ends it at
// once; SIGUSR2 leaves it to the next supervisor.
func (s *Supervisor) follow(end context.CancelFunc) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR2)
	go func() {
		for sig := range signals {
			if sig == syscall.SIGUSR2 {
				s.leave.Store(true)
				end()
				return
			}
			if s.draining.Swap(true) || !s.served.Load() {
				end()
				return
			}
			s.drain(context.Background())
			time.AfterFunc(s.options.Drain, end)
		}
	}()
}

// drain has clients of inbound connections go elsewhere.
func (s *Supervisor) drain(ctx context.Context) {
	s.draining.Store(true)
	if s.options.GRPC {
		return // the program's own connections are its own affair
	}
	if err := s.admin.Drain(ctx); err != nil {
		s.logger.Warn("inbound connections are cut when Envoy ends", "error", err)
	}
}

// Run until ctx ends. An error means that something could not be started.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := os.MkdirAll(s.options.Dir, dirMode); err != nil {
		return err
	}
	path, version := "", "none"
	if !s.options.GRPC {
		found, of, err := supervise.CheckOnce(ctx, s.options.Envoy, filepath.Join(s.options.Dir, "envoy-version"))
		if err != nil {
			return err
		}
		path, version = found, of.String()
	}
	if s.options.Redirect {
		if err := redirect.Check(s.options.Rules); err != nil {
			return redirectProblem(err)
		}
	}
	if s.options.RedirectByAgent {
		s.beacon = newBeacon()
	}
	if err := s.prepare(path); err != nil {
		return err
	}
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	s.logger.Info("supervising", "node", s.options.Node.ID, "envoy", path, "version", version)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The relay outlives Envoy, so that what it says last is heard.
	relayCtx, endRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer endRelay()
	failed := make(chan error, 8)
	var tasks sync.WaitGroup
	start := func(ctx context.Context, task func(context.Context) error) {
		tasks.Go(func() {
			if err := task(ctx); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	start(relayCtx, func(ctx context.Context) error { return s.relay.Run(ctx, listeners.xds) })
	start(ctx, func(ctx context.Context) error { s.keeper.Run(ctx); return nil })
	start(ctx, func(ctx context.Context) error { return scavenge.Run(ctx, minReclaim) })
	start(ctx, s.await)
	if listeners.metrics != nil {
		start(relayCtx, func(ctx context.Context) error { s.serveMetrics(ctx, listeners.metrics); return nil })
	}
	for _, on := range listeners.dns {
		start(relayCtx, func(ctx context.Context) error { return s.nameserver.Serve(ctx, on) })
	}
	for _, l := range listeners.http {
		start(relayCtx, func(ctx context.Context) error { return serve(ctx, l.listener, l.handler) })
	}
	if s.envoy == nil {
		<-ctx.Done()
	} else if err := s.envoy.Run(ctx, s.leave.Load); err != nil {
		failed <- err
	}
	if s.options.Redirect && !s.leave.Load() {
		if err := redirect.Remove(s.options.Node.ID); err != nil {
			s.logger.Warn("connections are still led to the proxy, which has ended", "table", redirect.TableName, "error", err)
		}
	}
	cancel()
	endRelay()
	tasks.Wait()
	s.sinks.End()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// prepare the folders and the parts.
func (s *Supervisor) prepare(path string) error {
	o := s.options
	s.admin = supervise.NewAdmin(filepath.Join(o.Dir, "envoy", "admin.sock"))
	prepare := s.prepareEnvoy
	if o.GRPC {
		prepare = s.prepareProgram
	}
	if err := prepare(path); err != nil {
		return err
	}
	var err error
	var current *relay.Relay // the identity of the last run is there before the relay
	s.keeper, err = secret.NewKeeper(secret.Config{
		Dir: filepath.Join(o.Dir, "identity"), Source: s.source(), Authorities: o.Authorities,
		Files: o.CertificateFiles, Logger: s.logger, OnChange: func(i *secret.Identity) {
			if current != nil && o.Gateway == nil {
				current.SetSecrets(i.Resources())
			}
		},
	})
	if err != nil {
		return err
	}
	config := relay.Config{
		Node: o.Node.ID, Servers: o.Servers, TLS: s.keeper.TLS, Start: s.keeper.There(), Logger: s.logger, Version: version.Get().Version,
		Programs: o.GRPC,
	}
	if !o.GRPC {
		config.File, config.Answer = filepath.Join(o.Dir, "state"), s.answer
	}
	sinks := logsink.Config{Logger: s.logger}
	if o.Redirect {
		sinks.Control = redirect.Control
	}
	s.sinks = logsink.New(sinks)
	config.Log = s.sinks.Write
	if o.Gateway == nil && !o.GRPC {
		config.Follow = map[string]relay.Following{wire.Settings: {Take: s.settings.take}}
	}
	if o.DNS {
		s.names = &nameserver.Table{}
		resolvers := &nameserver.Resolvers{Files: o.ResolvConf}
		s.nameserver = nameserver.New(nameserver.Config{
			Table: s.names, Upstreams: resolvers.Get, Control: redirect.Control, Logger: s.logger.With("component", "dns"),
		})
		config.Follow[wire.Names] = relay.Following{Take: s.names.Take, Names: []string{wire.NamesDomain}}
	}
	if o.Redirect {
		config.Control = redirect.Control
	}
	current = relay.New(config)
	if i := s.keeper.Current(); i != nil && o.Gateway == nil { // the proxy of a gateway ends no TLS
		current.SetSecrets(i.Resources())
	}
	s.relay = current
	if held := current.Resources(wire.Settings); len(held) > 0 {
		if err := s.settings.take(held, nil); err != nil {
			s.logger.Warn("settings of the last run are not used", "error", err)
		}
	}
	return nil
}

// prepareEnvoy writes its bootstrap. Its own folder is writable for its user.
func (s *Supervisor) prepareEnvoy(path string) error {
	o := s.options
	envoyDir := filepath.Join(o.Dir, "envoy")
	if err := os.MkdirAll(envoyDir, 0o700); err != nil {
		return err
	}
	if o.User != nil {
		if err := os.Chown(envoyDir, int(o.User.Uid), int(o.User.Gid)); err != nil {
			return err
		}
	}
	text, err := bootstrap.Envoy(bootstrap.Config{
		Node: o.Node, Socket: s.socket(), AdminSocket: filepath.Join(envoyDir, "admin.sock"), Gateway: o.Gateway,
	})
	if err != nil {
		return err
	}
	s.envoy = supervise.New(supervise.Config{
		Path: path, Dir: envoyDir, StateDir: o.Dir, Bootstrap: text, Concurrency: o.Concurrency, LogLevel: o.LogLevel, User: o.User,
		Logger: s.logger,
	})
	return nil
}

// serverListener is the template of the names of listeners of gRPC servers, as the control plane knows them.
const serverListener = "in|%s"

// prepareProgram writes the bootstrap of a gRPC program.
func (s *Supervisor) prepareProgram(string) error {
	file := func(name string) string { return filepath.Join(s.options.Dir, "identity", name+".pem") }
	text, err := bootstrap.GRPC(bootstrap.Config{
		Node: s.options.Node, Socket: s.socket(), ServerTemplate: serverListener,
		Files: bootstrap.Files{Certificate: file("certificate"), Key: file("key"), Authorities: file("roots")},
	})
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(s.options.Dir, ProgramBootstrap), text, 0o600)
}

// ProgramBootstrap is the name, in the folder of a supervisor, of the bootstrap of a gRPC program.
const ProgramBootstrap = "grpc.json"

// source of the certificate.
func (s *Supervisor) source() secret.Source {
	o := s.options
	if o.Gateway != nil {
		return secret.Node{File: o.Credentials}
	}
	if o.TokenFile == "" {
		return secret.Agent{Socket: o.SpiffeSocket}
	}
	of := strings.Split(o.Node.ID, "/") // as Options were checked
	_, account, _ := strings.Cut(o.Node.Cluster, "/")
	t := secret.Token{
		File: o.TokenFile, Servers: o.Servers, Authorities: o.Authorities, Mesh: of[0], Namespace: of[1], Name: of[2], Account: cmp.Or(account, "default"),
	}
	if o.Redirect {
		t.Control = redirect.Control
	}
	return t
}

func (s *Supervisor) socket() string { return filepath.Join(s.options.Dir, "xds.sock") }

// handled is a listener with what it serves.
type handled struct {
	listener net.Listener
	handler  http.Handler
}

type listeners struct {
	xds  net.Listener
	http []handled
	// metrics is where they are served until settings say otherwise; nil: nowhere.
	metrics net.Listener
	dns     []nameserver.Sockets
}

// listen on everything before anything runs.
func (s *Supervisor) listen() (listeners, error) {
	var out listeners
	xds, err := listenUnix(s.socket(), s.options.User)
	if err != nil {
		return out, err
	}
	out.xds = xds
	control, err := listenUnix(filepath.Join(s.options.Dir, "control.sock"), nil)
	if err != nil {
		return out, errors.Join(err, xds.Close())
	}
	out.http = append(out.http, handled{control, s.control()})
	var health http.Handler = &supervise.Health{Address: s.options.ProbeAddress, Probes: s.probes, Ready: s.ready}
	if s.beacon != nil {
		health = s.beacon.wrap(health)
	}
	for _, l := range []struct {
		address string
		use     func(net.Listener)
	}{
		{s.options.MetricsAddress, func(l net.Listener) { out.metrics = l }},
		{s.options.HealthAddress, func(l net.Listener) { out.http = append(out.http, handled{l, health}) }},
	} {
		if l.address == "" {
			continue
		}
		listener, err := net.Listen("tcp", l.address)
		if err != nil {
			return out, &problem.Error{
				Code: problem.ListenFailed, Op: "listen on", Object: l.address, Err: err,
				Hint: "choose another address with --metrics-address and --health-address",
			}
		}
		l.use(listener)
	}
	if s.nameserver != nil {
		if out.dns, err = listenDNS(); err != nil {
			return out, err
		}
	}
	return out, nil
}

// listenDNS where questions are led to, of the families that this machine has.
func listenDNS() ([]nameserver.Sockets, error) {
	var out []nameserver.Sockets
	for _, loopback := range []string{"127.0.0.1", "::1"} {
		address := net.JoinHostPort(loopback, strconv.Itoa(redirect.DNSPort))
		on, err := nameserver.Listen(address)
		switch {
		case err == nil:
			out = append(out, on)
		case loopback == "::1" && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)):
			// without IPv6
		default:
			return out, &problem.Error{
				Code: problem.ListenFailed, Op: "listen on", Object: address, Err: err, Hint: "end the program that listens there, or leave out --dns",
			}
		}
	}
	return out, nil
}

// listenUnix opens a socket for one user. One that is left from before is replaced.
func listenUnix(path string, user *syscall.Credential) (net.Listener, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("another supervisor runs: it serves %s", path), conn.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// Nobody else may connect in the moment before its mode is set.
	mask := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(mask)
	if err == nil && user != nil {
		err = os.Chown(path, int(user.Uid), int(user.Gid))
	}
	return l, err
}

func serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0), // clients that fail fill no log
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // what fails there is over anyway
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// await Envoy, saying what it waits for.
func (s *Supervisor) await(ctx context.Context) error {
	ticker := time.NewTicker(readyCheck)
	defer ticker.Stop()
	said := time.Now()
	for !s.serves(ctx) || s.beacon != nil && s.beacon.stands(ctx) != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if time.Since(said) > waitNotice {
			said = time.Now()
			s.logger.Warn("the proxy does not serve yet", "waitsFor", s.missing())
		}
	}
	s.served.Store(true)
	o := s.options
	if o.Redirect {
		if err := redirect.Install(o.Rules); err != nil {
			return redirectProblem(err)
		}
		s.refuse()
	}
	_, err := fmt.Fprintf(s.stdout, "ready node=%s metrics=%s health=%s\n", o.Node.ID, o.MetricsAddress, o.HealthAddress)
	if err != nil {
		s.logger.Debug("nobody reads stdout", "error", err)
	}
	for o.Redirect {
		select {
		case <-s.relay.Accepted():
			s.refuse()
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// refuse connections past the proxy to the ports at which it takes TLS alone.
func (s *Supervisor) refuse() {
	ports := s.relay.Strict()
	if err := redirect.Refuse(s.options.Node.ID, ports); err != nil {
		s.logger.Error("connections to virtual IPs that this machine translates still pass the proxy by",
			"table", redirect.TableName, "ports", ports, "error", err)
	}
}

// redirectProblem names the fix.
func redirectProblem(err error) error {
	p := &problem.Error{Op: "lead connections to", Object: "the proxy", Err: err, Hint: "use --redirect none, and connect to the proxy's own ports"}
	switch {
	case errors.Is(err, syscall.EPERM):
		p.Code = problem.PrivilegeMissing
		p.Hint = "run it as root, or with CAP_NET_ADMIN, or use --redirect none"
	case errors.Is(err, redirect.ErrTaken):
		p.Hint = "end the other workload, or delete what it left: nft delete table inet " + redirect.TableName
	}
	return p
}

// serves reports whether Envoy does, or whether a gRPC program has what it starts from.
func (s *Supervisor) serves(ctx context.Context) bool {
	if s.options.GRPC {
		return s.keeper.Current() != nil
	}
	return s.admin.Ready(ctx)
}

// missing is what Envoy waits for.
func (s *Supervisor) missing() string {
	if s.keeper.Current() == nil {
		return fmt.Sprint("the workload's certificate: ", s.keeper.Problem())
	}
	if up := s.relay.Status().Upstream; !s.relay.Holds() {
		return "a configuration of the control plane: " + up.Error
	}
	if s.beacon != nil {
		return "Envoy, or the agent of the node, which leads connections to it"
	}
	return "Envoy"
}

// ready is why the proxy is not to be used; nil: it is.
func (s *Supervisor) ready(ctx context.Context) error {
	switch {
	case s.draining.Load():
		return errors.New("the proxy is draining")
	case !s.serves(ctx):
		return errors.New("the proxy does not serve yet: it waits for " + s.missing())
	case s.beacon != nil:
		return s.beacon.stands(ctx)
	}
	return nil
}
