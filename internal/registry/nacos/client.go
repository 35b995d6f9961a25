package nacos

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
)

// ClientConfig configures a Client. Servers and Namespaces are required.
type ClientConfig struct {
	// Servers as HOST:PORT of HTTP; gRPC is 1000 above. One of them is used at a time.
	Servers []string
	// TLS of both ports; nil: none.
	TLS *tls.Config
	// Username and Password to log in with; without a password there is no login.
	Username, Password string
	// Namespaces to read, by Nacos' names of them ("public" is the default one), with those of Kubernetes that they
	// are. Services of others cannot be published.
	Namespaces registry.Namespaces
	// Groups to read; none: DEFAULT_GROUP.
	Groups []string
	// Poll is how often new services are looked for, which Nacos does not tell; 0: 5 s.
	Poll   time.Duration
	Logger *slog.Logger // nil: discard
}

// Client of a Nacos server: it follows all services of some namespaces, and publishes instances. It is a
// mirror.Client; make it with NewClient.
type Client struct {
	config ClientConfig
	log    *slog.Logger
	http   *http.Client

	connection *mirror.Connection[link]

	mu        sync.Mutex
	published map[registry.Service][]*registry.Instance
	// Of the login.
	token string
	renew time.Time
}

var _ mirror.Client = (*Client)(nil)

// Times of a client.
const (
	lookupEvery    = 5 * time.Second
	healthEvery    = 5 * time.Second
	requestWithin  = 10 * time.Second
	listedAtOnce   = 500 // services of a page
	maxClientBytes = 64 << 20
)

// NewClient makes a client; Run connects it.
func NewClient(c ClientConfig) *Client {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if len(c.Groups) == 0 {
		c.Groups = []string{defaultGroup}
	}
	c.Poll = cmp.Or(c.Poll, lookupEvery)
	log := c.Logger.With("protocol", string(registry.Nacos))
	return &Client{
		config: c, log: log, http: &http.Client{Transport: &http.Transport{TLSClientConfig: c.TLS}, Timeout: requestWithin},
		connection: mirror.NewConnection[link](c.Servers, log), published: map[registry.Service][]*registry.Instance{},
	}
}

// Run implements mirror.Reader.
func (c *Client) Run(ctx context.Context, to mirror.Sink) error {
	defer c.http.CloseIdleConnections()
	c.connection.Run(ctx, func(ctx context.Context) error { return c.attempt(ctx, to) })
	return nil
}

// attempt to be connected, until the connection ends.
func (c *Client) attempt(ctx context.Context, to mirror.Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := &link{client: c, server: c.connection.Server(), to: to, cancel: cancel, module: "naming", services: map[registry.Service]*followed{}}
	if err := l.connect(ctx); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer l.conn.Close()
	defer cancel(nil)
	running.Go(func() { l.receive() })
	if err := l.ready(ctx); err != nil {
		return err
	}
	if to != nil {
		to.Disturbed()
	}
	c.mu.Lock()
	again := maps.Clone(c.published) // nothing changes it while there is no link
	c.mu.Unlock()
	for s, copies := range again {
		if err := l.publish(ctx, s, nil, copies); err != nil {
			return fmt.Errorf("publish %s again: %w", s, err)
		}
	}
	c.connection.Set(l)
	defer c.connection.Set(nil)
	c.log.Info("connected to the registry", "server", l.server)
	running.Go(func() { l.keep(ctx) })
	if to != nil {
		running.Go(func() { l.read(ctx) })
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// Publish implements mirror.Client.
func (c *Client) Publish(ctx context.Context, s registry.Service, copies []*registry.Instance) error {
	l, err := c.connection.Link()
	if err != nil {
		return err
	}
	c.mu.Lock()
	before := c.published[s]
	c.mu.Unlock()
	if err := l.publish(ctx, s, before, copies); err != nil {
		return fmt.Errorf("publish %s in %s: %w", s, l.server, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(copies) == 0 {
		delete(c.published, s)
	} else {
		c.published[s] = copies
	}
	return nil
}

// Withdraw implements mirror.Client.
func (c *Client) Withdraw(ctx context.Context) error {
	c.mu.Lock()
	list := slices.Collect(maps.Keys(c.published))
	c.mu.Unlock()
	return mirror.Withdraw(ctx, c, list)
}

// accessToken of a login; empty: there is none.
func (c *Client) accessToken(ctx context.Context, server string) (string, error) {
	if c.config.Password == "" {
		return "", nil
	}
	c.mu.Lock()
	token, renew := c.token, c.renew
	c.mu.Unlock()
	if token != "" && time.Now().Before(renew) {
		return token, nil
	}
	body, err := c.call(ctx, server, http.MethodPost, "/nacos/v1/auth/users/login", url.Values{"username": {c.config.Username}, "password": {c.config.Password}})
	if err != nil {
		return "", fmt.Errorf("log in to %s: %w", server, err)
	}
	var answer loginAnswer
	if err := json.Unmarshal(body, &answer); err != nil || answer.AccessToken == "" {
		return "", fmt.Errorf("log in to %s: the answer has no access token", server)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token, c.renew = answer.AccessToken, time.Now().Add(time.Duration(answer.TokenTTL)*time.Second*8/10)
	return c.token, nil
}

// call HTTP, and return the body.
func (c *Client) call(ctx context.Context, server, method, path string, form url.Values) ([]byte, error) {
	scheme := "http"
	if c.config.TLS != nil {
		scheme = "https"
	}
	target, body := scheme+"://"+server+path, ""
	if method == http.MethodPost {
		body = form.Encode()
	} else {
		target += "?" + form.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // its URL may have the access token in it
			err = u.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxClientBytes))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &problem{resp.StatusCode, fmt.Sprintf("%s: %.300s", resp.Status, strings.TrimSpace(string(b)))}
	}
	return b, nil
}

// link is a connection that is set up.
type link struct {
	client *Client
	server string
	to     mirror.Sink
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	send   sync.Mutex // of the stream
	cancel context.CancelCauseFunc

	// module of the SDK that the connection is like, and what is called with an entry that has changed; nil: none is
	// listened to.
	module  string
	changed func(configNamed)

	mu       sync.Mutex
	services map[registry.Service]*followed
}

// followed is a service that is subscribed to.
type followed struct{ last int64 } // lastRefTime that was seen

func (l *link) connect(ctx context.Context) error {
	host, text, err := net.SplitHostPort(l.server)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("port %q of server %s is no number", text, l.server)
	}
	transport := insecure.NewCredentials()
	if t := l.client.config.TLS; t != nil {
		transport = credentials.NewTLS(t)
	}
	l.conn, err = grpc.NewClient("passthrough:///"+net.JoinHostPort(host, strconv.Itoa(port+grpcOffset)), grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawgrpc.Codec{}), grpc.MaxCallRecvMsgSize(maxClientBytes)))
	if err != nil {
		return err
	}
	if err := l.open(ctx); err != nil {
		_ = l.conn.Close()
		return fmt.Errorf("connect to %s: %w", l.server, err)
	}
	return nil
}

// grpcOffset is from the port of HTTP to that of gRPC.
const grpcOffset = 1000

func (l *link) open(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	if _, err := l.client.accessToken(within, l.server); err != nil {
		return err
	}
	var check serverCheckResponse
	if err := l.ask(within, "ServerCheckRequest", &header{}, &check); err != nil {
		return err
	}
	var err error
	if l.stream, err = l.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream"); err != nil {
		return err
	}
	return l.say("ConnectionSetupRequest", &struct {
		connectionSetup
		Abilities map[string]bool `json:"abilityTable"`
	}{connectionSetup{ClientVersion: "Nacos-Proxima-Client:v2.4.3", Labels: map[string]string{"source": "sdk", "module": l.module}}, map[string]bool{}})
}

// ready blocks until the server knows the connection, as its clients do: the stream is not answered.
func (l *link) ready(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	for {
		err := l.ask(within, "HealthCheckRequest", &header{}, &result{})
		var p *problem
		if err == nil || !errors.As(err, &p) || p.code != codeUnregistered {
			return err
		}
		if !backoff.Sleep(within, 20*time.Millisecond) {
			return fmt.Errorf("connect to %s: the server does not know the connection within %s", l.server, requestWithin)
		}
	}
}

// say a message on the stream.
func (l *link) say(kind string, message any) error {
	b, err := encode(kind, message)
	if err != nil {
		return err
	}
	l.send.Lock()
	defer l.send.Unlock()
	return l.stream.SendMsg(&b)
}

// ask a request, and read the answer.
func (l *link) ask(ctx context.Context, kind string, message, out any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	token, err := l.client.accessToken(ctx, l.server)
	if err != nil {
		return err
	}
	headers := map[string]string{"charset": "UTF-8"}
	if token != "" {
		headers["accessToken"] = token
	}
	in := appendPayload(nil, kind, headers, body)
	var b []byte
	if err := l.conn.Invoke(ctx, "/Request/request", &in, &b); err != nil {
		return err
	}
	p, err := decode(b)
	if err != nil {
		return err
	}
	var r result
	if err := json.Unmarshal(p.body, &r); err != nil {
		return fmt.Errorf("read %s: %w", p.kind, err)
	}
	if r.ErrorCode != 0 || r.ResultCode != resultOK {
		if r.ErrorCode == codeForbidden || r.ErrorCode == http.StatusUnauthorized { // the token may be over
			l.client.mu.Lock()
			l.client.token = ""
			l.client.mu.Unlock()
		}
		return &problem{cmp.Or(r.ErrorCode, resultFailed), fmt.Sprintf("%s: %s", p.kind, cmp.Or(r.Message, "it failed"))}
	}
	if err := json.Unmarshal(p.body, out); err != nil {
		return fmt.Errorf("read %s: %w", p.kind, err)
	}
	return nil
}

// receive what the server sends, until the stream ends.
func (l *link) receive() {
	for {
		var b []byte
		if err := l.stream.RecvMsg(&b); err != nil {
			l.cancel(fmt.Errorf("the connection to %s has ended: %w", l.server, err))
			return
		}
		p, err := decode(b)
		if err != nil {
			continue // a message that this client does not know
		}
		if err := l.answer(p); err != nil {
			l.cancel(err)
			return
		}
	}
}

func (l *link) answer(p *payload) error {
	var h header
	if err := json.Unmarshal(p.body, &h); err != nil {
		return nil //nolint:nilerr // as above
	}
	switch p.kind {
	case "NotifySubscriberRequest":
		var n struct {
			notifySubscriber
			ServiceInfo *serviceInfo `json:"serviceInfo"`
		}
		if err := json.Unmarshal(p.body, &n); err == nil && n.ServiceInfo != nil {
			l.set(n.Namespace, n.ServiceInfo)
		}
	case "ConfigChangeNotifyRequest":
		var n configChangeNotify
		if err := json.Unmarshal(p.body, &n); err == nil && l.changed != nil {
			l.changed(n.configNamed)
		}
	case "ConnectResetRequest":
		return fmt.Errorf("server %s asks its clients to connect again", l.server)
	}
	kind, ok := strings.CutSuffix(p.kind, "Request")
	if !ok {
		return nil
	}
	return l.say(kind+"Response", success(h.RequestID))
}

// keep the connection alive.
func (l *link) keep(ctx context.Context) {
	for backoff.Sleep(ctx, healthEvery) {
		within, cancel := context.WithTimeout(ctx, requestWithin)
		err := l.ask(within, "HealthCheckRequest", &header{}, &result{})
		cancel()
		if err != nil {
			l.cancel(fmt.Errorf("health check of %s: %w", l.server, err))
			return
		}
	}
}

// read all services, and look for new ones.
func (l *link) read(ctx context.Context) {
	for first := true; first || backoff.Sleep(ctx, l.client.config.Poll); first = false {
		if err := l.lookup(ctx); err != nil {
			l.cancel(fmt.Errorf("read the services of %s: %w", l.server, err))
			return
		}
		l.to.Synced()
	}
}

// lookup subscribes to services that are new.
func (l *link) lookup(ctx context.Context) error {
	for _, namespace := range l.client.namespaces() {
		for _, group := range l.client.config.Groups {
			names, err := l.names(ctx, namespace, group)
			if err != nil {
				return err
			}
			for _, name := range names {
				if err := l.follow(ctx, namespace, group, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// namespaces that are read, as Nacos calls them.
func (c *Client) namespaces() []string { return slices.Sorted(maps.Keys(c.config.Namespaces)) }

func (l *link) names(ctx context.Context, namespace, group string) ([]string, error) {
	var out []string
	for page := 1; ; page++ {
		within, cancel := context.WithTimeout(ctx, requestWithin)
		var list serviceListResponse
		err := l.ask(within, "ServiceListRequest", &serviceListRequest{named: named{Namespace: namespace, GroupName: group}, PageNo: page, PageSize: listedAtOnce}, &list)
		cancel()
		if err != nil {
			return nil, err
		}
		out = append(out, list.ServiceNames...)
		if len(list.ServiceNames) < listedAtOnce {
			return out, nil
		}
	}
}

func (l *link) follow(ctx context.Context, namespace, group, name string) error {
	n := named{Namespace: namespace, ServiceName: name, GroupName: group}
	s, err := n.service(l.client.config.Namespaces)
	if err != nil {
		return nil //nolint:nilerr // Nacos has names that this one does not
	}
	l.mu.Lock()
	_, known := l.services[s]
	if !known {
		l.services[s] = &followed{}
	}
	l.mu.Unlock()
	if known {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	var info struct {
		result
		ServiceInfo *serviceInfo `json:"serviceInfo"`
	}
	if err := l.ask(within, "SubscribeServiceRequest", &subscribeServiceRequest{named: n, Subscribe: true}, &info); err != nil {
		return err
	}
	if info.ServiceInfo == nil {
		return fmt.Errorf("service %s: the answer has no instances", s)
	}
	info.ServiceInfo.Name, info.ServiceInfo.GroupName = s.Name, group
	l.set(namespace, info.ServiceInfo)
	return nil
}

// set what a service has. An answer that is older than what was pushed is left out.
func (l *link) set(namespace string, info *serviceInfo) {
	n := named{Namespace: namespace, ServiceName: info.Name, GroupName: info.GroupName}
	s, err := n.service(l.client.config.Namespaces)
	if err != nil || l.to == nil {
		return
	}
	var list []*registry.Instance
	for i := range info.Hosts {
		in, err := info.Hosts[i].parse(s)
		if err != nil {
			l.client.log.Warn("an instance cannot be read", "service", s, "error", err)
			continue
		}
		list = append(list, in)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.services[s]
	if f == nil || info.LastRefTime < f.last {
		return
	}
	f.last = info.LastRefTime
	l.to.Set(s, list) // under the lock, so that an older list does not come later
}

// publish what this client has of a service, in place of what it had. Nacos registers one instance, or all of a batch, in
// place of those that the connection had of the service.
func (l *link) publish(ctx context.Context, s registry.Service, before, copies []*registry.Instance) error {
	n := named{Namespace: cmp.Or(l.client.config.Namespaces.NameOf(s.Namespace), publicName), ServiceName: s.Name, GroupName: groupOf(s)}
	var hosts []*instance
	for _, in := range copies {
		hosts = append(hosts, hostOf(in))
	}
	switch len(hosts) {
	case 0:
		for _, in := range before {
			r := &instanceRequest{named: n, Type: "deregisterInstance", Instance: hostOf(in)}
			if err := l.ask(ctx, "InstanceRequest", r, &instanceResponse{}); err != nil {
				return err
			}
		}
		return nil
	case 1:
		return l.ask(ctx, "InstanceRequest", &instanceRequest{named: n, Type: "registerInstance", Instance: hosts[0]}, &instanceResponse{})
	}
	return l.ask(ctx, "BatchInstanceRequest", &batchInstanceRequest{named: n, Type: "batchRegisterInstance", Instances: hosts}, &instanceResponse{})
}

// hostOf an instance of the catalogue, by whichever protocol it came, as a client registers it.
func hostOf(in *registry.Instance) *instance {
	return &instance{
		IP: in.Address.String(), Port: int(in.Port), Weight: new(float64(in.Weight) / ordinary), Healthy: new(in.Healthy), Enabled: new(in.Enabled),
		Ephemeral: new(true), ClusterName: cmp.Or(in.Cluster, defaultCluster), ServiceName: in.Service.Name, Metadata: in.Metadata,
	}
}
