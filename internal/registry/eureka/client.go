package eureka

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
)

// ClientConfig configures a Client. Servers and Namespace are required.
type ClientConfig struct {
	// Servers as HOST:PORT, of which one is used until it fails.
	Servers []string
	// TLS to them; nil: none.
	TLS *tls.Config
	// Username and Password of basic authentication; none without a password.
	Username, Password string
	// Path of the service URL; empty: /eureka.
	Path string
	// Namespace of Kubernetes that the applications are of.
	Namespace string
	// Poll is how often the applications are fetched; 0: 5 s.
	Poll time.Duration
	// Renew is how often leases of published copies are renewed, a third of their duration; 0: 30 s.
	Renew time.Duration
	// Proxima: the server is a control plane, which keeps copies and instances apart by itself.
	Proxima bool
	Logger  *slog.Logger // nil: discard
}

// Client of a Eureka server: it fetches all applications, and publishes instances. It is a mirror.Client; make it with
// NewClient.
type Client struct {
	config ClientConfig
	log    *slog.Logger
	http   *http.Client

	mu        sync.Mutex
	server    int // that is used
	published map[registry.Service]map[string]*published
}

var _ mirror.Client = (*Client)(nil)

// published is a copy that this client keeps alive, by its ID.
type published struct {
	info *info
	body []byte
	// foreign: the instance itself is registered under the ID, so this client does nothing for it.
	foreign bool
}

const (
	defaultPoll   = 5 * time.Second
	requestWithin = 10 * time.Second
	maxClientBody = 256 << 20
)

// NewClient makes a client.
func NewClient(c ClientConfig) *Client {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Poll, c.Renew, c.Path = cmp.Or(c.Poll, defaultPoll), cmp.Or(c.Renew, defaultRenewal*time.Second), cmp.Or(c.Path, "/eureka")
	return &Client{
		config: c, log: c.Logger.With("protocol", string(registry.Eureka)), published: map[registry.Service]map[string]*published{},
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: c.TLS, MaxIdleConnsPerHost: 8}, Timeout: requestWithin},
	}
}

// Refuse says why a Eureka does not get a copy of an instance; it is for mirror.Config.
func Refuse(in *registry.Instance) string {
	if in.Service.RPC() {
		return "it is of a single RPC service, which Eureka has not"
	}
	return ""
}

// Run implements mirror.Reader.
func (c *Client) Run(ctx context.Context, to mirror.Sink) error {
	defer c.http.CloseIdleConnections()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		for backoff.Sleep(ctx, c.config.Renew) {
			c.renewAll(ctx)
		}
	})
	if to == nil {
		<-ctx.Done()
		return nil
	}
	have, failed, first := map[registry.Service][]*registry.Instance{}, false, true
	for ok := true; ok; ok = backoff.Sleep(ctx, c.config.Poll) {
		next, err := c.fetch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if !failed {
				c.log.Warn("the registry is not read; it is tried again", "servers", c.config.Servers, "error", err)
			}
			failed = true
			continue
		}
		if failed {
			failed = false
			c.log.Info("the registry is read again")
			to.Disturbed()
		}
		for s := range have {
			if next[s] == nil {
				to.Set(s, nil)
			}
		}
		for s, list := range next {
			if !reflect.DeepEqual(have[s], list) {
				to.Set(s, list)
			}
		}
		have = next
		if first {
			first = false
			to.Synced()
		}
	}
	return nil
}

// oneOrMany is a list, which servers write as its only entry if there is one.
type oneOrMany[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *oneOrMany[T]) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		b = slices.Concat([]byte("["), b, []byte("]"))
	}
	return json.Unmarshal(b, (*[]T)(l))
}

// fetch all applications.
func (c *Client) fetch(ctx context.Context) (map[registry.Service][]*registry.Instance, error) {
	status, body, err := c.call(ctx, http.MethodGet, "/apps/", nil, nil)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, refusal(status, body)
	}
	return c.parse(body)
}

func (c *Client) parse(body []byte) (map[registry.Service][]*registry.Instance, error) {
	var doc struct {
		Applications *struct {
			List oneOrMany[struct {
				Instances oneOrMany[*info] `json:"instance"`
			}] `json:"application"`
		} `json:"applications"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("read the applications: %w", err)
	}
	if doc.Applications == nil {
		return nil, errors.New("read the applications: the answer has none; is it a Eureka server?")
	}
	out := map[registry.Service][]*registry.Instance{}
	for _, app := range doc.Applications.List {
		for _, one := range app.Instances {
			if one == nil {
				continue
			}
			in, err := one.instance(c.config.Namespace)
			if err != nil {
				c.log.Debug("an instance is not mirrored", "application", one.App, "id", one.id(), "error", err)
				continue
			}
			out[in.Service] = append(out[in.Service], in)
		}
	}
	for _, list := range out {
		slices.SortFunc(list, (*registry.Instance).Compare)
	}
	return out, nil
}

// Publish implements mirror.Client.
func (c *Client) Publish(ctx context.Context, s registry.Service, copies []*registry.Instance) error {
	c.mu.Lock()
	have := c.published[s]
	c.mu.Unlock()
	next := map[string]*published{}
	maps.Copy(next, have)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(next) == 0 {
			delete(c.published, s)
		} else {
			c.published[s] = next
		}
	}()
	wanted := map[string]struct{}{}
	for _, in := range copies {
		p, err := c.prepare(in)
		if err != nil {
			return err
		}
		id := p.info.id()
		wanted[id] = struct{}{}
		if before := have[id]; before != nil && !before.foreign && bytes.Equal(before.body, p.body) {
			err = c.renew(ctx, before)
		} else {
			next[id], err = p, c.register(ctx, p)
		}
		if err != nil {
			return fmt.Errorf("publish %s of %s: %w", id, s, err)
		}
	}
	for id, p := range have {
		if _, stays := wanted[id]; stays {
			continue
		}
		if err := c.cancel(ctx, p); err != nil {
			return fmt.Errorf("remove %s of %s: %w", id, s, err)
		}
		delete(next, id)
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

// prepare a copy, whose lease is this client's.
func (c *Client) prepare(in *registry.Instance) (*published, error) {
	out := infoOf(in, 1)
	out.Lease.Renewal, out.Lease.Duration = flexInt(max(c.config.Renew/time.Second, 1)), flexInt(max(3*c.config.Renew/time.Second, minLease))
	out.Action = "ADDED"
	body, err := json.Marshal(map[string]*info{"instance": out})
	return &published{info: out, body: body}, err
}

// register a copy, unless the instance itself is there.
func (c *Client) register(ctx context.Context, p *published) error {
	if !c.config.Proxima { // which decides that by itself
		there, err := c.look(ctx, p.info)
		if err != nil {
			return err
		}
		if p.foreign = there != nil && there.Metadata[registry.KeyMirroredFrom] == ""; p.foreign {
			return nil
		}
	}
	status, body, err := c.call(ctx, http.MethodPost, "/apps/"+url.PathEscape(p.info.App), nil, p.body)
	if err == nil && status != http.StatusNoContent && status != http.StatusOK {
		err = refusal(status, body)
	}
	return err
}

// look what is registered under an ID; nil: nothing.
func (c *Client) look(ctx context.Context, in *info) (*info, error) {
	status, body, err := c.call(ctx, http.MethodGet, pathOf(in), nil, nil)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound:
		return nil, nil
	case status != http.StatusOK:
		return nil, refusal(status, body)
	}
	return decodeJSON(body)
}

func pathOf(in *info) string {
	return "/apps/" + url.PathEscape(in.App) + "/" + url.PathEscape(in.id())
}

// renew the lease of a copy, or register it where there is none.
func (c *Client) renew(ctx context.Context, p *published) error {
	query := url.Values{paramCopy: {"true"}, "status": {p.info.Status}, "lastDirtyTimestamp": {strconv.FormatInt(int64(p.info.LastDirty), 10)}}
	status, body, err := c.call(ctx, http.MethodPut, pathOf(p.info), query, nil)
	switch {
	case err != nil:
		return err
	case status == http.StatusNotFound:
		return c.register(ctx, p)
	case status != http.StatusOK:
		return refusal(status, body)
	}
	return nil
}

// renewers renew at the same time.
const renewers = 8

// renewAll leases.
func (c *Client) renewAll(ctx context.Context) {
	c.mu.Lock()
	var list []*published
	for _, of := range c.published {
		for _, p := range of {
			if !p.foreign {
				list = append(list, p)
			}
		}
	}
	c.mu.Unlock()
	var running sync.WaitGroup
	work := make(chan *published)
	for range renewers {
		running.Go(func() {
			for p := range work {
				if err := c.renew(ctx, p); err != nil && ctx.Err() == nil {
					c.log.Warn("the lease of a copy is not renewed; it is tried again with the next one", "application", p.info.App, "id", p.info.id(), "error", err)
				}
			}
		})
	}
	for _, p := range list {
		work <- p
	}
	close(work)
	running.Wait()
}

// cancel a copy. The instance itself stays.
func (c *Client) cancel(ctx context.Context, p *published) error {
	if !c.config.Proxima {
		there, err := c.look(ctx, p.info)
		if err != nil || there == nil || there.Metadata[registry.KeyMirroredFrom] == "" {
			return err
		}
	}
	status, body, err := c.call(ctx, http.MethodDelete, pathOf(p.info), url.Values{paramCopy: {"true"}}, nil)
	if err == nil && status != http.StatusOK && status != http.StatusNotFound {
		err = refusal(status, body)
	}
	return err
}

func refusal(status int, body []byte) error {
	return fmt.Errorf("the server answers %d %s: %.300s", status, http.StatusText(status), bytes.TrimSpace(body))
}

// call the server that is used; after a failure the next one is.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, body []byte) (status int, answer []byte, err error) {
	c.mu.Lock()
	at := c.server
	c.mu.Unlock()
	status, answer, err = c.send(ctx, c.config.Servers[at%len(c.config.Servers)], method, path, query, body)
	if err != nil && ctx.Err() == nil {
		c.mu.Lock()
		if c.server == at {
			c.server++
		}
		c.mu.Unlock()
	}
	return status, answer, err
}

func (c *Client) send(ctx context.Context, server, method, path string, query url.Values, body []byte) (status int, answer []byte, err error) {
	scheme := "http"
	if c.config.TLS != nil {
		scheme = "https"
	}
	target := scheme + "://" + server + c.config.Path + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.config.Password != "" {
		req.SetBasicAuth(c.config.Username, c.config.Password)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("ask %s: %w", server, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxClientBody))
	return resp.StatusCode, answer, err
}
