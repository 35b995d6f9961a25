package workload

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
)

const (
	// Kubernetes' defaults of a probe.
	defaultPeriod           = 10 * time.Second
	defaultTimeout          = time.Second
	defaultFailureThreshold = 3
	// startPeriod is how often a workload is asked until it is ready for the
	// first time: starting should not cost a whole period.
	startPeriod = 100 * time.Millisecond
	// maxRedirects are followed to other paths, as Go's client and so the kubelet do.
	maxRedirects = 10
)

// prober asks the workload whether it is ready.
type prober struct {
	// ask returns nil if it is; nil means that being alive is being ready.
	ask              func(ctx context.Context) error
	success          string
	initialDelay     time.Duration
	period, timeout  time.Duration
	successThreshold int
	failureThreshold int
	// startPeriod is the period until the workload is ready for the first time, if
	// it is shorter than the other one; 0: the same.
	startPeriod time.Duration
	// ready is the verdict to begin with.
	ready bool
	// reportsFailure: a workload that was never ready is reported as failing too.
	reportsFailure bool
	// slots bounds how many probes are under way together; nil: nothing does.
	slots chan struct{}
}

// newProber turns the Dataplane's probe into a prober. Addresses are always the
// Dataplane's own.
func newProber(dp *v1alpha1.Dataplane) (*prober, error) {
	p := &prober{
		period: defaultPeriod, timeout: defaultTimeout, startPeriod: startPeriod,
		successThreshold: 1, failureThreshold: defaultFailureThreshold,
	}
	if len(dp.Spec.Addresses) == 0 {
		return nil, fmt.Errorf("dataplane %s/%s has no address", dp.Namespace, dp.Name)
	}
	host := dp.Spec.Addresses[0]
	spec := dp.Spec.Readiness
	if spec == nil {
		for _, port := range dp.Spec.Ports {
			if port.Protocol == "" || port.Protocol == "TCP" {
				addr := net.JoinHostPort(host, strconv.Itoa(int(port.Port)))
				p.ask, p.success, p.period = connects(addr), "port "+strconv.Itoa(int(port.Port))+" accepts connections", time.Second
				return p, nil
			}
		}
		p.success = "the command runs"
		return p, nil
	}
	p.initialDelay = time.Duration(spec.InitialDelaySeconds) * time.Second
	p.period = seconds(spec.PeriodSeconds, defaultPeriod)
	p.timeout = seconds(spec.TimeoutSeconds, defaultTimeout)
	p.successThreshold = max(int(spec.SuccessThreshold), 1)
	if spec.FailureThreshold > 0 {
		p.failureThreshold = int(spec.FailureThreshold)
	}
	p.success = "the readiness probe succeeds"
	return p, p.action(spec, dp, host)
}

// behind a proxy a workload is ready if both are.
func (p *prober) behind(proxy Proxy) {
	ask := p.ask
	if ask == nil {
		p.period = time.Second
	}
	p.ask = func(ctx context.Context) error {
		if err := proxy.Ready(ctx); err != nil || ask == nil {
			return err
		}
		return ask(ctx)
	}
}

func (p *prober) action(spec *v1alpha1.Probe, dp *v1alpha1.Dataplane, host string) error {
	switch {
	case spec.HTTPGet != nil:
		port, err := resolve(spec.HTTPGet.Port, dp)
		if err != nil {
			return fmt.Errorf("spec.readiness.httpGet.port: %w", err)
		}
		p.ask, err = answersHTTP(spec.HTTPGet, net.JoinHostPort(host, port))
		return err
	case spec.TCPSocket != nil:
		port, err := resolve(spec.TCPSocket.Port, dp)
		if err != nil {
			return fmt.Errorf("spec.readiness.tcpSocket.port: %w", err)
		}
		p.ask = connects(net.JoinHostPort(host, port))
	case spec.GRPC != nil:
		p.ask = answersGRPC(net.JoinHostPort(host, strconv.Itoa(int(spec.GRPC.Port))), spec.GRPC.Service)
	case spec.Exec != nil && len(spec.Exec.Command) > 0:
		p.ask = succeeds(spec.Exec.Command)
	default:
		return fmt.Errorf("spec.readiness: needs one of httpGet, tcpSocket, grpc or exec")
	}
	return nil
}

// watch asks until ctx ends and delivers every change of the verdict.
func (p *prober) watch(ctx context.Context, clk clock.WithTicker) <-chan condition {
	out := make(chan condition)
	go func() {
		if p.ask == nil {
			p.deliver(ctx, out, condition{ready: true, reason: "Running", message: p.success})
			return
		}
		p.loop(ctx, clk, out)
	}()
	return out
}

func (p *prober) loop(ctx context.Context, clk clock.WithTicker, out chan<- condition) {
	if !backoff.SleepBy(ctx, clk, p.initialDelay) {
		return
	}
	ready, everReady, successes, failures := p.ready, p.ready, 0, 0
	reported := p.ready
	for {
		err := p.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			successes, failures = successes+1, 0
		} else {
			successes, failures = 0, failures+1
		}
		switch {
		case !ready && successes >= p.successThreshold:
			ready, everReady, reported = true, true, true
			if !p.deliver(ctx, out, condition{ready: true, reason: "ProbeSucceeded", message: p.success}) {
				return
			}
		case failures >= p.failureThreshold && (ready || p.reportsFailure && !reported):
			ready, reported = false, true
			if !p.deliver(ctx, out, condition{reason: "ProbeFailed", message: err.Error()}) {
				return
			}
		}
		next := p.period
		if !everReady && p.startPeriod > 0 {
			next = min(p.startPeriod, p.period)
		}
		if !backoff.SleepBy(ctx, clk, next) {
			return
		}
	}
}

func (p *prober) once(ctx context.Context) error {
	if p.slots != nil {
		select {
		case p.slots <- struct{}{}:
			defer func() { <-p.slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.ask(ctx)
}

func (p *prober) deliver(ctx context.Context, out chan<- condition, c condition) bool {
	select {
	case out <- c:
		return true
	case <-ctx.Done():
		return false
	}
}

func seconds(n int32, otherwise time.Duration) time.Duration {
	if n <= 0 {
		return otherwise
	}
	return time.Duration(n) * time.Second
}

// resolve a port by number or by the name of one of the Dataplane's ports.
func resolve(port intstr.IntOrString, dp *v1alpha1.Dataplane) (string, error) {
	if port.Type == intstr.Int {
		return strconv.Itoa(port.IntValue()), nil
	}
	for _, p := range dp.Spec.Ports {
		if p.Name == port.StrVal {
			return strconv.Itoa(int(p.Port)), nil
		}
	}
	return "", fmt.Errorf("no port of the dataplane is named %q", port.StrVal)
}

func connects(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

func answersHTTP(a *v1alpha1.HTTPGetAction, hostPort string) (func(context.Context) error, error) {
	path := a.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.Parse(path)
	if err != nil {
		return nil, fmt.Errorf("spec.readiness.httpGet.path: %w", err)
	}
	u.Scheme, u.Host = "http", hostPort
	if strings.EqualFold(a.Scheme, "https") {
		u.Scheme = "https"
	}
	client := &http.Client{Transport: &http.Transport{
		// As in Kubernetes, a probe does not verify certificates.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		DisableKeepAlives: true, Proxy: nil,
	}, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		// A probe goes nowhere but to the Dataplane's address: a redirect to anywhere
		// else is an answer, and a success.
		if req.URL.Hostname() != via[0].URL.Hostname() || len(via) >= maxRedirects {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	target := u.String()
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		if err != nil {
			return err
		}
		req.Header.Set("User-Agent", "proxima-probe")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 10<<10))
		if resp.StatusCode < 200 || resp.StatusCode >= 400 {
			return fmt.Errorf("%s answered %s", target, resp.Status)
		}
		return nil
	}, nil
}

func answersGRPC(addr, service string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithNoProxy()) // as with HTTP, the environment's proxies are not asked
		if err != nil {
			return err
		}
		defer conn.Close()
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil {
			return err
		}
		if resp.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			return fmt.Errorf("grpc health of %q is %s", service, resp.Status)
		}
		return nil
	}
}

func succeeds(command []string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %.200s", command[0], err, out)
		}
		return nil
	}
}
