package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
	"github.com/proxima-mesh/proxima/internal/feed/redact"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// Types of commands of clients (PulsarApi.proto, BaseCommand.Type).
const (
	pulsarConnect   = 2
	pulsarSubscribe = 4
	pulsarFlow      = 11
	pulsarLookup    = 23
)

// pulsarClient is a connection of a client of Pulsar. Clients that applications use are in test/pulsar.
type pulsarClient struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

// dialPulsar connects; a nil config: without TLS.
func dialPulsar(t testing.TB, address string, config *tls.Config) *pulsarClient {
	t.Helper()
	n, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		n = tls.Client(n, config)
	}
	t.Cleanup(func() { _ = n.Close() })
	if err := n.SetDeadline(time.Now().Add(testkit.Timeout)); err != nil {
		t.Fatal(err)
	}
	return &pulsarClient{t: t, Conn: n, r: bufio.NewReader(n)}
}

func (c *pulsarClient) send(cmd *wire.Command) error {
	command, err := proto.Marshal(cmd)
	if err != nil {
		return err
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(command)+4))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(command)))
	_, err = c.Write(append(frame, command...))
	return err
}

// receive the next command that is no PING, and what follows it in its frame.
func (c *pulsarClient) receive() (*wire.Command, []byte, error) {
	for {
		var head [8]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return nil, nil, err
		}
		size, command := binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:])
		if command+4 > size || size > 1<<20 {
			return nil, nil, fmt.Errorf("a frame of %d bytes with a command of %d", size, command)
		}
		rest := make([]byte, size-4)
		if _, err := io.ReadFull(c.r, rest); err != nil {
			return nil, nil, err
		}
		cmd := &wire.Command{}
		if err := proto.Unmarshal(rest[:command], cmd); err != nil {
			return nil, nil, err
		}
		if cmd.Ping == nil {
			return cmd, rest[command:], nil
		}
	}
}

// connect says who the client is, by a token unless it is empty, and returns why it is refused.
func (c *pulsarClient) connect(token string) error {
	hello := &wire.Connect{ClientVersion: new("test"), ProtocolVersion: new(int32(17))}
	if token != "" {
		hello.AuthMethodName, hello.AuthData = new("token"), []byte(token)
	}
	if err := c.send(&wire.Command{Type: new(int32(pulsarConnect)), Connect: hello}); err != nil {
		return err
	}
	cmd, _, err := c.receive()
	switch {
	case err != nil:
		return err
	case cmd.Error != nil:
		return errors.New(cmd.Error.GetMessage())
	case cmd.Connected == nil:
		return fmt.Errorf("the answer is %v", cmd)
	}
	return nil
}

// services subscribes to the Services of namespace default, from the first on.
func (c *pulsarClient) services(subscription string) {
	c.t.Helper()
	for _, cmd := range []*wire.Command{
		{Type: new(int32(pulsarSubscribe)), Subscribe: &wire.Subscribe{
			Topic: new("persistent://default/default/services"), Subscription: &subscription, Type: wire.Subscribe_EXCLUSIVE.Enum(),
			Consumer: new(uint64(1)), Request: new(uint64(1)), Initial: wire.Subscribe_EARLIEST.Enum(),
		}},
		{Type: new(int32(pulsarFlow)), Flow: &wire.Flow{Consumer: new(uint64(1)), Permits: new(uint32(100))}},
	} {
		if err := c.send(cmd); err != nil {
			c.t.Fatal(err)
		}
	}
}

// seen waits for a message whose payload has a text.
func (c *pulsarClient) seen(text string) {
	c.t.Helper()
	for {
		cmd, rest, err := c.receive()
		switch {
		case err != nil:
			c.t.Fatalf("no message with %s: %v", text, err)
		case cmd.Error != nil:
			c.t.Fatal(cmd.Error.GetMessage())
		case cmd.Message != nil && strings.Contains(string(rest), text):
			return
		}
	}
}

// ended waits until the server has closed the connection.
func (c *pulsarClient) ended() {
	c.t.Helper()
	for {
		_, _, err := c.receive()
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			c.t.Fatal("the connection goes on")
		}
		if err != nil {
			return
		}
	}
}

func pulsarPlane(t *testing.T, mode registry.TLSMode) *fedPlane {
	t.Helper()
	cfg := planeConfig(t, RoleStandalone)
	cfg.Store, cfg.Pulsar = "sqlite", PulsarConfig{Port: testkit.FreePort(t), TLS: mode, checkEvery: 50 * time.Millisecond}
	p := &fedPlane{t: t, cfg: cfg}
	p.start()
	t.Cleanup(func() { p.stop() })
	return p
}

// clientTLS of a Pulsar client of a user, with a certificate; and the ID of the token that bought it.
func (p *fedPlane) clientTLS(name string) (*tls.Config, string) {
	p.t.Helper()
	subject, err := identity.SubjectFor(identity.ReadOnly, name)
	if err != nil {
		p.t.Fatal(err)
	}
	_, info, err := p.cp.storage.tokens.Create(p.t.Context(), identity.ReadOnly, name, time.Hour, "test")
	if err != nil {
		p.t.Fatal(err)
	}
	subject.TokenID = info.ID
	pair, err := p.cp.storage.ca.IssueClient(subject, time.Hour)
	if err != nil {
		p.t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		p.t.Fatal(err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: p.cp.storage.ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{certificate},
	}, info.ID
}

func (p *fedPlane) pulsarStatus() *admin.PulsarStatus {
	p.t.Helper()
	code, _, body := p.ask(p.rest, admin.StatusPath)
	var out admin.Status
	if err := json.Unmarshal([]byte(body), &out); code != http.StatusOK || err != nil || out.Pulsar == nil {
		p.t.Fatalf("%d %v: %s", code, err, body)
	}
	return out.Pulsar
}

// TestPulsar: clients of Pulsar read the feed by a token or a client certificate of the control plane, with and without TLS, and
// are disconnected soon after either was revoked; others are refused. Status counts them.
func TestPulsar(t *testing.T) {
	p := pulsarPlane(t, registry.TLSOptional)
	address := p.cp.readers.status().Address
	token, info, err := p.cp.storage.tokens.Create(t.Context(), identity.ReadOnly, "inventory", time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	certificate, certificateToken := p.clientTLS("dashboard")

	for what, tc := range map[string]struct {
		token string
		tls   *tls.Config
		want  string
	}{
		"no credentials":             {"", nil, "credentials are required"},
		"no credentials, with TLS":   {"", &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: certificate.RootCAs, ServerName: "127.0.0.1"}, "credentials are required"},
		"an unknown token":           {token.Reveal() + "x", nil, "token"},
		"a token that is not a word": {"Basic abc", nil, "token"},
	} {
		if err := dialPulsar(t, address, tc.tls).connect(tc.token); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want a refusal with %q", what, err, tc.want)
		}
	}

	byToken, byCertificate := dialPulsar(t, address, nil), dialPulsar(t, address, certificate)
	if err := byToken.connect(token.Reveal()); err != nil {
		t.Fatalf("a token: %v", err)
	}
	if err := byCertificate.connect(""); err != nil {
		t.Fatalf("a client certificate: %v", err)
	}
	byToken.services("inventory")
	byCertificate.services("dashboard")
	if _, err := p.client(p.rest).Create(t.Context(), kind.Service, portService(80)); err != nil {
		t.Fatal(err)
	}
	byToken.seen(`"name":"web"`)
	byCertificate.seen(`"name":"web"`)
	if s := p.pulsarStatus(); s.Address != address || s.Consumers != 2 || s.Subscriptions != 2 || s.MaxConsumers == 0 {
		t.Errorf("status %+v", s)
	}

	if _, err := p.cp.storage.tokens.Revoke(t.Context(), info.ID); err != nil {
		t.Fatal(err)
	}
	byToken.ended()
	if err := dialPulsar(t, address, nil).connect(token.Reveal()); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("a token that was revoked: %v", err)
	}
	changed := portService(80)
	changed.Name = "after"
	if _, err := p.client(p.rest).Create(t.Context(), kind.Service, changed); err != nil {
		t.Fatal(err)
	}
	byCertificate.seen(`"name":"after"`)
	if _, err := p.cp.storage.tokens.Revoke(t.Context(), certificateToken); err != nil {
		t.Fatal(err)
	}
	byCertificate.ended()
	until(t, "nobody is connected", func() bool { return p.pulsarStatus().Consumers == 0 })
}

// TestPulsarTLS: where TLS is required, a client without it is not answered; where it is off, none with it.
func TestPulsarTLS(t *testing.T) {
	for mode, plain := range map[registry.TLSMode]bool{registry.TLSRequired: false, registry.TLSOff: true} {
		t.Run(string(mode), func(t *testing.T) {
			p := pulsarPlane(t, mode)
			address := p.cp.readers.status().Address
			token, _, err := p.cp.storage.tokens.Create(t.Context(), identity.ReadOnly, "inventory", time.Hour, "test")
			if err != nil {
				t.Fatal(err)
			}
			certificate, _ := p.clientTLS("dashboard")
			if err := dialPulsar(t, address, nil).connect(token.Reveal()); (err == nil) != plain {
				t.Errorf("without TLS: %v", err)
			}
			if err := dialPulsar(t, address, certificate).connect(""); (err == nil) == plain {
				t.Errorf("with TLS: %v", err)
			}
		})
	}
}

// TestPulsarNeedsAFeed: a port where there is nothing to be read is refused before anything is opened, with the flag that is in the way.
func TestPulsarNeedsAFeed(t *testing.T) {
	for want, change := range map[string]func(*ControlPlaneConfig){
		"a global control plane does not serve readers":   func(c *ControlPlaneConfig) { c.Role = RoleGlobal },
		"there is no change feed with --store memory":     func(c *ControlPlaneConfig) { c.Store = "memory" },
		"there is no change feed with --store kubernetes": func(c *ControlPlaneConfig) { c.Store = StoreKubernetes },
		"there is no change feed with --feed off":         func(c *ControlPlaneConfig) { c.Feed.Off = true },
	} {
		cfg := planeConfig(t, RoleStandalone)
		cfg.Store, cfg.Pulsar.Port = "sqlite", testkit.FreePort(t)
		change(&cfg)
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
		defer cancel()
		err := RunControlPlane(ctx, cfg, func(Serving) { cancel() })
		var refused *problem.Error
		if !errors.As(err, &refused) || refused.Code != problem.Usage || refused.Hint == "" || !strings.Contains(err.Error(), "--pulsar-port: "+want) {
			t.Errorf("%v; want a refusal with %q", err, want)
		}
	}
}

// lookup of the topic of Services of namespace default.
func (c *pulsarClient) lookup() *wire.LookupResponse {
	c.t.Helper()
	err := c.send(&wire.Command{Type: new(int32(pulsarLookup)), Lookup: &wire.Lookup{Topic: new("persistent://default/default/services"), Request: new(uint64(9))}})
	if err != nil {
		c.t.Fatal(err)
	}
	cmd, _, err := c.receive()
	if err != nil || cmd.LookupResponse == nil {
		c.t.Fatalf("the answer to a lookup is %v, %v", cmd, err)
	}
	return cmd.LookupResponse
}

// TestPulsarInstances: of two instances on one store one serves a topic, and the other leads clients there, until it ends. Redactions list both.
func TestPulsarInstances(t *testing.T) {
	s := memory.New(memory.Options{})
	t.Cleanup(func() { s.Close() })
	key := clusterKey(t)
	var all [2]*clustered
	for i := range all {
		cfg := clusteredConfig(t.TempDir(), key)
		cfg.Pulsar = PulsarConfig{Port: testkit.FreePort(t), TLS: registry.TLSOptional}
		all[i] = startClustered(t, s, cfg)
	}
	token, _, err := all[0].cp.storage.tokens.Create(t.Context(), identity.ReadOnly, "inventory", time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	client := func(of *clustered) (*pulsarClient, string) {
		t.Helper()
		at := of.cp.readers.status().Address
		c := dialPulsar(t, at, nil)
		if err := c.connect(token.Reveal()); err != nil {
			t.Fatal(err)
		}
		return c, at
	}
	testkit.Eventually(t, "the instances know each other", func() bool {
		return len(all[0].cp.others.members.List()) == 2 && len(all[1].cp.others.members.List()) == 2
	})
	first, at := client(all[0])
	second, own := client(all[1])
	for _, c := range []*pulsarClient{first, second, first} {
		if a := c.lookup(); a.GetUrl() != "pulsar://"+at || a.GetUrlTls() != "pulsar+ssl://"+at || a.GetThroughServiceUrl() || a.GetResponse() != 1 {
			t.Errorf("the topic is found at %v, want %s", a, at)
		}
	}
	second.services("inventory")
	if cmd, _, err := second.receive(); err != nil || cmd.Error.GetError() != wire.ServerError_SERVICE_NOT_READY || !strings.Contains(cmd.Error.GetMessage(), at) {
		t.Errorf("at the wrong instance: %v, %v", cmd, err)
	}
	first.services("inventory")
	if _, err := all[1].client.Create(t.Context(), kind.Service, portService(80)); err != nil {
		t.Fatal(err)
	}
	first.seen(`"name":"web"`)
	if a, b := all[0].cp.readers.status().Topics, all[1].cp.readers.status().Topics; a != 1 || b != 0 {
		t.Errorf("the instances serve %d and %d topics", a, b)
	}
	testkit.Eventually(t, "both list both instances with a redaction", func() bool {
		done, err := all[0].cp.api.redactions.List(t.Context())
		if err == nil && len(done) == 0 {
			_, err = all[0].cp.api.redactions.Redact(t.Context(), redact.Request{Resource: "configmaps", Namespace: "default", Name: "app", Field: "data.absent"}, "test")
		}
		if err != nil {
			t.Fatal(err)
		}
		other, err := all[1].cp.api.redactions.List(t.Context())
		return err == nil && len(done) == 1 && len(done[0].Instances) == 2 && done[0].Everywhere() && len(other) == 1 && len(other[0].Instances) == 2 && other[0].Everywhere()
	})

	all[0].stop()
	testkit.Eventually(t, "the other instance serves the topic, alone", func() bool {
		a := second.lookup()
		return a.GetUrl() == "pulsar://"+own && a.GetThroughServiceUrl()
	})
	second.services("inventory")
	second.seen(`"name":"web"`) // it was not acknowledged
}
