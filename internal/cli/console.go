package cli

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/console"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// consoleFor is how long a console serves, if nothing else is said.
const consoleFor = 8 * time.Hour

func newConsole(s *settings) *cobra.Command {
	var noBrowser, write bool
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:     "console",
		GroupID: "operate",
		Short:   "Open the web console in a browser",
		Long: `Console shows in a browser what leaves its zone, what it costs, which Services
could do better, and why the rest cannot. It needs nothing but the control plane.

It listens on a free port of 127.0.0.1 and forwards requests to the API with the
credentials of the kubeconfig, which the browser never sees. The browser gets in by a
code that works once, within a minute. Nothing can be changed unless --write is given.
It ends with Ctrl-C, after --ttl, and when 20 wrong codes were tried.

Control planes serve the same pages at https://HOST:6443/console/, where a token is
pasted; their --console=false removes them there.`,
		Example: `  proxima console
  proxima console --no-browser
  proxima console --write --ttl 1h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl <= 0 {
				return usagef("--ttl %s: want a time above 0, as in 8h", ttl)
			}
			return s.console(cmd.Context(), !noBrowser, write, ttl)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&noBrowser, "no-browser", false, "print the address and start no browser")
	f.BoolVar(&write, "write", false, "let the console set topology modes, shift zones and confirm held deletions, as far as the kubeconfig's user may")
	f.DurationVar(&ttl, "ttl", consoleFor, "time after which it ends")
	for _, name := range []string{"write", "ttl"} {
		_ = f.SetAnnotation(name, commandLineOnly, nil) // the flag is there
	}
	return cmd
}

// console serves until ctx or ttl ends, or somebody guesses.
func (s *settings) console(ctx context.Context, browser, write bool, ttl time.Duration) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	return s.consoleOf(ctx, cfg, browser, write, ttl)
}

// consoleOf the API of a configuration.
func (s *settings) consoleOf(ctx context.Context, cfg *rest.Config, browser, write bool, ttl time.Duration) error {
	log, err := s.logger()
	if err != nil {
		return err
	}
	aggregated, err := isAggregated(ctx, cfg)
	if err != nil {
		return explainAPI(cfg, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return &problem.Error{Code: problem.ListenFailed, Err: fmt.Errorf("listen on loopback: %w", err), Hint: "is the interface lo up?"}
	}
	defer l.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p, err := newConsoleProxy(cfg, l.Addr().(*net.TCPAddr).Port, aggregated, write, time.Now().Add(ttl), log.With("component", "console"), end)
	if err != nil {
		return err
	}
	expiry := time.AfterFunc(ttl, func() { end(errConsoleOver) })
	defer expiry.Stop()
	remove, err := s.announceConsole(ctx, p, l.Addr().(*net.TCPAddr).Port, browser)
	defer remove()
	if err != nil {
		return err
	}
	srv := listener.HTTPServer(p)
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errConsoleOver):
		fmt.Fprintf(s.io.Err, "the console has ended after %s; start it again with \"proxima console\"\n", ttl)
	case errors.Is(cause, errGuessed):
		return &problem.Error{Code: problem.PrivilegeMissing, Err: fmt.Errorf("the console has ended: %w", cause), Hint: "start it again with \"proxima console\""}
	}
	return nil
}

var errConsoleOver = errors.New("the time of the console is over")

// isAggregated asks where our paths are: at the API, or at that of a cluster as an aggregated API.
func isAggregated(ctx context.Context, cfg *rest.Config) (bool, error) {
	resp, err := sendTo(ctx, cfg, http.MethodGet, admin.StatusPath, nil)
	if err == nil {
		return false, resp.Body.Close()
	}
	if errors.Is(err, errNotServed) || apierrors.IsForbidden(err) {
		there, thereErr := sendTo(ctx, cfg, http.MethodGet, extension.GroupPath(admin.StatusPath), nil)
		if thereErr == nil {
			return true, there.Body.Close()
		}
	}
	if apierrors.IsForbidden(err) { // pages say what the user may not see
		return false, nil
	}
	return false, err
}

func newConsoleProxy(cfg *rest.Config, port int, aggregated, write bool, until time.Time, log *slog.Logger, end func(error)) (*consoleProxy, error) {
	pages, err := console.New()
	if err != nil {
		return nil, err
	}
	forward, err := consoleTransport(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	api, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &consoleProxy{
		pages: pages, forward: newForwarder(api, forward, aggregated, log), write: write, server: api.Host, until: until, clock: clock.RealClock{},
		log: log, end: end, hosts: []string{fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("localhost:%d", port)},
	}, nil
}

// consolePing is how long a connection to the API may say nothing before it is asked, and how long that answer may take. The stream of
// a page says every 5 s that it is alive, so that few are asked.
const consolePing = 3 * time.Second

// consoleTransport has the credentials of cfg. A connection that died in silence, as after the machine slept, is given up after a few
// seconds; client-go would keep it for 45.
func consoleTransport(cfg *rest.Config) (http.RoundTripper, error) {
	tc, err := cfg.TransportConfig()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := transport.TLSConfigFor(tc)
	if err != nil {
		return nil, err
	}
	dial := (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 10 * time.Second}).DialContext
	if tc.DialHolder != nil {
		dial = tc.DialHolder.Dial
	}
	proxy := http.ProxyFromEnvironment
	if tc.Proxy != nil {
		proxy = tc.Proxy
	}
	return transport.HTTPWrappersForConfig(tc, &http.Transport{
		Proxy: proxy, DialContext: dial, TLSClientConfig: tlsConfig, TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 25,
		IdleConnTimeout: 90 * time.Second, DisableCompression: tc.DisableCompression, ForceAttemptHTTP2: !slices.Equal(cfg.NextProtos, []string{"http/1.1"}),
		HTTP2: &http.HTTP2Config{SendPingTimeout: consolePing, PingTimeout: consolePing},
	})
}

// announceConsole starts the browser, or says how one gets in. The function that it returns removes what it left, also after an error.
func (s *settings) announceConsole(ctx context.Context, p *consoleProxy, port int, browser bool) (remove func(), err error) {
	remove = func() {}
	url := func() string { return fmt.Sprintf("http://127.0.0.1:%d%s#code=%s", port, console.Path, p.code()) }
	if ssh, _ := s.io.Env("SSH_CONNECTION"); ssh != "" {
		fmt.Fprintf(s.io.Err, "on your own machine: %s\nthen open there, within a minute:\n", sshLine(ssh, port))
		fmt.Fprintln(s.io.Out, url())
		return remove, nil
	}
	start := browserCommand()
	if !browser || start == nil {
		fmt.Fprintln(s.io.Err, "open within a minute, once:")
		fmt.Fprintln(s.io.Out, url())
		return remove, nil
	}
	// Arguments of programs are public, so the browser gets the address from a file that is the user's alone.
	dir, err := os.MkdirTemp("", "proxima-console-") // 0700
	if err != nil {
		return remove, fmt.Errorf("file for the browser: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) } // at worst a code that is not taken any more stays
	file := filepath.Join(dir, "open.html")
	page := fmt.Sprintf("<!doctype html><title>Proxima</title><meta http-equiv=\"refresh\" content=\"0; url=%s\">\n", html.EscapeString(url()))
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		return remove, fmt.Errorf("file for the browser: %w", err)
	}
	time.AfterFunc(consoleCodeFor, remove)
	cmd := exec.CommandContext(ctx, start[0], append(start[1:], file)...)
	cmd.Cancel = func() error { return nil } // the browser is the user's
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(s.io.Err, "no browser was started: "+err.Error()+"\nopen within a minute, once:")
		fmt.Fprintln(s.io.Out, url())
		return remove, nil
	}
	go func() { _ = cmd.Wait() }() // what the browser says is not ours
	fmt.Fprintf(s.io.Err, "the console is open in your browser, until %s; Ctrl-C ends it\n", p.until.Format(time.DateTime))
	return remove, nil
}

// browserCommand that opens a file; nil: none is known.
func browserCommand() []string {
	var all [][]string
	switch runtime.GOOS {
	case "darwin":
		all = [][]string{{"open"}}
	case "windows":
		all = [][]string{{"rundll32", "url.dll,FileProtocolHandler"}}
	default:
		if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
			return nil
		}
		all = [][]string{{"xdg-open"}, {"sensible-browser"}}
	}
	for _, c := range all {
		if path, err := exec.LookPath(c[0]); err == nil {
			return append([]string{path}, c[1:]...)
		}
	}
	return nil
}

// sshLine forwards the port, by the address at which ssh reached this machine: SSH_CONNECTION is CLIENT PORT SERVER PORT.
func sshLine(connection string, port int) string {
	host, user := "HOST", currentUser()
	option := ""
	if f := strings.Fields(connection); len(f) == 4 {
		host = f[2]
		if f[3] != "22" {
			option = "-p " + f[3] + " "
		}
	}
	return fmt.Sprintf("ssh %s-N -L %d:127.0.0.1:%d %s@%s", option, port, port, user, host)
}

func currentUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "USER"
}
