package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/identity"
)

const (
	// peerLife of the certificate by which an instance calls the others.
	peerLife = time.Hour
	// peerTimeout bounds a call, with the answer.
	peerTimeout = 5 * time.Second
	// peerServer is a name that the certificate of every control plane has, whatever the
	// address by which the others reach it.
	peerServer = "kubernetes.default"
)

// peers are the other instances of this control plane, as the API reaches them. It
// implements admin.Instances.
type peers struct {
	// list all instances, this one too.
	list func() []cluster.Member
	ca   *identity.Authority
	self string

	mu     sync.Mutex
	client *http.Client
	until  time.Time // the client's certificate is used
}

// peers returns the other instances; nil: this one is alone.
func (x *instances) peers(ca *identity.Authority) admin.Instances {
	if x.members == nil {
		return nil
	}
	return &peers{list: x.members.List, ca: ca, self: instanceName(x.api.address)}
}

// Others implements admin.Instances.
func (p *peers) Others() []string {
	var out []string
	for _, m := range p.list() {
		if m.Name != p.self && m.API != "" {
			out = append(out, m.Name)
		}
	}
	return out
}

// Send implements admin.Instances. The request is the control plane's own: who asked first,
// and that the user may, is known to the instance that was asked first, and in its audit log.
func (p *peers) Send(ctx context.Context, name string, r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(ctx)
	// A stream lasts as long as the client reads it.
	timeout := time.AfterFunc(peerTimeout, cancel)
	stop := func() { timeout.Stop(); cancel() }
	client, err := p.http()
	if err != nil {
		stop()
		return nil, err
	}
	for _, m := range p.list() {
		if m.Name != name {
			continue
		}
		r = r.WithContext(ctx)
		r.URL = &url.URL{Scheme: "https", Host: m.API, Path: r.URL.Path, RawQuery: r.URL.RawQuery}
		resp, err := client.Do(r)
		if err != nil {
			stop()
			return nil, err
		}
		if r.URL.Path == admin.StreamPath && resp.StatusCode == http.StatusOK {
			timeout.Stop()
		}
		resp.Body = endingBody{resp.Body, stop}
		return resp, nil
	}
	stop()
	return nil, fmt.Errorf("instance %s has gone", name)
}

// http returns a client whose certificate is good for a while.
func (p *peers) http() (*http.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client != nil && time.Now().Before(p.until) {
		return p.client, nil
	}
	certificate, err := instanceCertificate(p.ca)
	if err != nil {
		return nil, err
	}
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
	p.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: p.ca.Pool(), ServerName: peerServer, Certificates: []tls.Certificate{certificate},
		},
		// Calls are seldom, and no goroutine stays behind.
		DisableKeepAlives: true,
	}}
	p.until = time.Now().Add(peerLife / 2)
	return p.client, nil
}

// endingBody ends the context of a call when its answer was read.
type endingBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b endingBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// elsewhereError is admin.ErrElsewhere with the text of another error.
type elsewhereError struct{ error }

// Is implements the interface of errors.Is.
func (e *elsewhereError) Is(target error) bool { return target == admin.ErrElsewhere }
