package sidecar

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/sidecar/secret"
	"github.com/proxima-mesh/proxima/internal/sidecar/supervise"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// metricsRetry of a port that cannot be listened on.
const metricsRetry = 5 * time.Second

// settings are what the control plane says of the supervisor itself. The zero value says nothing.
type settings struct {
	mu      sync.Mutex
	now     applied
	changed chan struct{} // closed when there are others; nil: nobody waits
	// where metrics are, and why they are not where the settings have them.
	address, problem string
}

// applied are settings in the form in which they are used.
type applied struct {
	metrics          *wire.MetricsSettings // nil: nothing is said
	include, exclude *regexp.Regexp        // nil: nothing is said
	probes           []supervise.Probe
}

// take is a relay.Follower. Settings that cannot be used are refused, and those of before stay.
func (s *settings) take(set []wire.Resource, removed []string) error {
	if slices.Contains(removed, wire.SettingsName) {
		s.use(applied{})
	}
	for _, r := range set {
		if r.Name != wire.SettingsName {
			continue // of a newer control plane
		}
		body, err := r.Body()
		if err != nil {
			return err
		}
		parsed, err := wire.ParseSettings(body)
		if err != nil {
			return err
		}
		next, err := apply(parsed)
		if err != nil {
			return err
		}
		s.use(next)
	}
	return nil
}

// apply compiles settings.
func apply(of wire.SupervisorSettings) (applied, error) {
	out := applied{metrics: of.Metrics}
	if m := of.Metrics; m != nil {
		for _, e := range []struct {
			name, text string
			to         **regexp.Regexp
		}{{"include", m.Include, &out.include}, {"exclude", m.Exclude, &out.exclude}} {
			if e.text == "" {
				continue
			}
			compiled, err := regexp.Compile(e.text)
			if err != nil {
				return applied{}, fmt.Errorf("metrics.%s: %w", e.name, err)
			}
			*e.to = compiled
		}
	}
	for _, p := range of.Probes {
		probe := supervise.Probe{At: p.Path, Kind: p.Kind, Port: p.Port}
		switch p.Kind {
		case "http":
			probe.Path = cmp.Or(p.Target, p.Path)
		case "grpc":
			probe.Service = p.Target
		case "tcp":
		default:
			return applied{}, fmt.Errorf("probe %s: the kind %.20q is not known", p.Path, p.Kind)
		}
		out.probes = append(out.probes, probe)
	}
	return out, nil
}

func (s *settings) use(next applied) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = next
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// current settings, and what is closed when there are others.
func (s *settings) current() (now applied, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.now, s.changed
}

// metricsAt is where metrics are, and why they are not where the settings have them.
func (s *settings) metricsAt() (address, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address, s.problem
}

func (s *settings) noteMetrics(address string, problem error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address, s.problem = address, ""
	if problem != nil {
		s.problem = problem.Error()
	}
}

// probes of the options and of the control plane.
func (s *Supervisor) probes() []supervise.Probe {
	now, _ := s.settings.current()
	return slices.Concat(s.options.Probes, now.probes)
}

// metrics of the proxy, the applications and this process, as the settings say. Without any, each path
// has them.
func (s *Supervisor) metrics(w http.ResponseWriter, r *http.Request) {
	now, _ := s.settings.current()
	page := &supervise.Metrics{Admin: s.admin, Apps: s.options.Apps, Own: s.own, Include: now.include, Exclude: now.exclude}
	if m := now.metrics; m != nil {
		if m.Path != "" && r.URL.Path != m.Path {
			http.NotFound(w, r)
			return
		}
		for _, a := range m.Apps {
			port := strconv.Itoa(int(a.Port))
			page.Apps = append(slices.Clip(page.Apps), supervise.App{
				Name: cmp.Or(a.Name, port), URL: "http://" + net.JoinHostPort("127.0.0.1", port) + cmp.Or(a.Path, "/metrics"),
			})
		}
	}
	page.ServeHTTP(w, r)
}

// place is how metrics are served.
type place struct {
	address string
	mtls    bool
}

// placeOf metrics by settings: the host is that of the options.
func (s *Supervisor) placeOf(now applied) place {
	out := place{address: s.options.MetricsAddress}
	if now.metrics == nil {
		return out
	}
	out.mtls = now.metrics.MTLS
	if host, _, err := net.SplitHostPort(out.address); err == nil && now.metrics.Port != 0 {
		out.address = net.JoinHostPort(host, strconv.Itoa(int(now.metrics.Port)))
	}
	return out
}

// serveMetrics until ctx ends: at first on a listener at the address of the options, then where the
// settings have them. While that is not possible they stay where they are.
func (s *Supervisor) serveMetrics(ctx context.Context, first net.Listener) {
	now, _ := s.settings.current() // those of the disk: what is for the mesh alone is never shown to others
	at := place{address: s.options.MetricsAddress, mtls: s.placeOf(now).mtls}
	stop := s.serveAt(ctx, first, at)
	defer func() { stop() }()
	said := ""
	for {
		now, changed := s.settings.current()
		var retry <-chan time.Time
		want := s.placeOf(now)
		if want == at {
			s.settings.noteMetrics(at.address, nil)
			said = ""
		} else {
			if want.address == at.address { // nobody else takes it in between
				stop()
				at = place{}
			}
			l, err := net.Listen("tcp", want.address)
			switch {
			case err == nil:
				stop()
				at, stop = want, s.serveAt(ctx, l, want)
				s.settings.noteMetrics(at.address, nil)
				said = ""
				s.logger.Info("metrics", "address", at.address, "mtls", at.mtls)
			default:
				retry = time.After(metricsRetry)
				s.settings.noteMetrics(at.address, err)
				if text := err.Error(); text != said {
					said = text
					s.logger.Error("metrics are not where the control plane has them", "want", want.address, "are", at.address, "error", err)
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retry:
		}
	}
}

// serveAt a listener until stop, which may be called again, or until ctx ends.
func (s *Supervisor) serveAt(ctx context.Context, l net.Listener, at place) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	if at.mtls {
		l = tls.NewListener(l, &tls.Config{
			MinVersion:         tls.VersionTLS13,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return meshClients(s.keeper.Current()) },
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := serve(ctx, l, http.HandlerFunc(s.metrics)); err != nil && ctx.Err() == nil {
			s.logger.Error("metrics are not served any more", "address", at.address, "error", err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// meshClients is the configuration of a server with an identity, for clients with a certificate of the
// same mesh.
func meshClients(i *secret.Identity) (*tls.Config, error) {
	if i == nil {
		return nil, errors.New("there is no certificate yet")
	}
	pool := x509.NewCertPool()
	for _, der := range i.Roots[i.Domain()] {
		root, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		pool.AddCert(root)
	}
	domain := i.Domain()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{i.TLS()},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		VerifyConnection: func(c tls.ConnectionState) error {
			for _, uri := range c.PeerCertificates[0].URIs {
				if uri.Scheme == "spiffe" && strings.EqualFold(uri.Host, domain) {
					return nil
				}
			}
			return errors.New("the certificate of the client is of no workload of the mesh")
		},
	}, nil
}
