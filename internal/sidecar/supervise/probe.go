package supervise

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// Probe is one of the workload's own, asked behind the proxy and its mTLS.
type Probe struct {
	// Kind is http, https, grpc or tcp.
	Kind string
	Port uint16
	// Path of HTTP, Service of gRPC.
	Path, Service string
	// At is the path by which the supervisor is asked; "": one that says what is asked.
	At string
}

// ParseProbe reads KIND:PORT and, where there is one, /PATH or /SERVICE: "http:8080/healthz",
// "grpc:9000/shop.Cart", "tcp:5432".
func ParseProbe(text string) (Probe, error) {
	bad := func() (Probe, error) {
		return Probe{}, fmt.Errorf("probe %q: want http:PORT/PATH, https:PORT/PATH, grpc:PORT[/SERVICE] or tcp:PORT", text)
	}
	kind, rest, _ := strings.Cut(text, ":")
	number, tail, hasTail := strings.Cut(rest, "/")
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || port == 0 {
		return bad()
	}
	p := Probe{Kind: kind, Port: uint16(port)}
	switch kind {
	case "http", "https":
		p.Path = "/" + tail
	case "grpc":
		p.Service = tail
	case "tcp":
		if hasTail {
			return bad()
		}
	default:
		return bad()
	}
	return p, nil
}

// URLPath at which the probe is asked: At, else /probe/KIND/PORT and its path or service.
func (p Probe) URLPath() string {
	if p.At != "" {
		return p.At
	}
	tail := p.Path
	if p.Service != "" {
		tail = "/" + p.Service
	}
	return fmt.Sprintf("/probe/%s/%d%s", p.Kind, p.Port, tail)
}

// probeTimeout bounds a probe; who asks has a shorter one.
const probeTimeout = 10 * time.Second

// Ask the workload at an address of its own. nil: it is well.
func (p Probe) Ask(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	target := net.JoinHostPort(address, strconv.Itoa(int(p.Port)))
	switch p.Kind {
	case "tcp":
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
		if err != nil {
			return err
		}
		return conn.Close()
	case "grpc":
		return p.askGRPC(ctx, target)
	}
	return p.askHTTP(ctx, target)
}

func (p Probe) askHTTP(ctx context.Context, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Kind+"://"+target+p.Path, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "proxima-sidecar/probe")
	// As the kubelet: certificates are not verified, and redirects to other hosts not followed.
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 10<<10)) // the status says it all
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("HTTP status %d", resp.StatusCode)
	}
	return nil
}

// askGRPC by the health checking protocol (grpc.health.v1).
func (p Probe) askGRPC(ctx context.Context, target string) error {
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(wire.Codec{})))
	if err != nil {
		return err
	}
	defer conn.Close()
	var request, response wire.Frame
	if p.Service != "" {
		request = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), p.Service)
	}
	if err := conn.Invoke(ctx, "/grpc.health.v1.Health/Check", &request, &response); err != nil {
		return err
	}
	const serving = "\x08\x01" // status = SERVING
	if string(response) != serving {
		return errors.New("it does not serve")
	}
	return nil
}

// Health answers /ready and the probes of a workload.
type Health struct {
	// Address of the workload for its probes.
	Address string
	// Probes that may be asked at the moment; nil: none. It must not block.
	Probes func() []Probe
	// Ready returns why the proxy does not serve; nil: it does.
	Ready func(ctx context.Context) error
}

// ServeHTTP implements http.Handler.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == "/ready" {
		answer(w, h.Ready(r.Context()))
		return
	}
	if h.Probes != nil {
		for _, p := range h.Probes() {
			if r.URL.Path == p.URLPath() {
				answer(w, p.Ask(r.Context(), h.Address))
				return
			}
		}
	}
	http.NotFound(w, r)
}

func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, err) // a client that has gone does not matter
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}
