package nacos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Entries reads and writes the configuration of a Nacos: all groups of some namespaces. New entries are searched for by
// HTTP, which Nacos does not tell of; known ones are listened to. It is a mirror.EntryClient; make it with NewEntries.
type Entries struct{ client *Client }

var _ mirror.EntryClient = (*Entries)(nil)

// NewEntries makes it; Run connects it. Groups of the configuration are those of instances, and not of concern.
func NewEntries(c ClientConfig) *Entries { return &Entries{client: NewClient(c)} }

const (
	// listenedAtOnce is how many entries a request names.
	listenedAtOnce = 200
	// entryReaders read at the same time.
	entryReaders = 8
)

// RunEntries implements mirror.EntryClient.
func (e *Entries) RunEntries(ctx context.Context, to mirror.EntrySink) error {
	defer e.client.http.CloseIdleConnections()
	e.client.connection.Run(ctx, func(ctx context.Context) error { return e.attempt(ctx, to) })
	return nil
}

// attempt to be connected, until the connection ends.
func (e *Entries) attempt(ctx context.Context, to mirror.EntrySink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &entryReader{to: to, known: map[registry.ConfigKey]string{}, dirty: map[registry.ConfigKey]struct{}{}, wake: make(chan struct{}, 1)}
	l := &link{client: e.client, server: e.client.connection.Server(), cancel: cancel, module: "config", changed: r.changed}
	r.link = l
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
	e.client.connection.Set(l)
	defer e.client.connection.Set(nil)
	running.Go(func() { l.keep(ctx) })
	if err := r.run(ctx); ctx.Err() == nil {
		return fmt.Errorf("read the configuration of %s: %w", l.server, err)
	}
	return context.Cause(ctx)
}

// entryReader follows the configuration over one connection.
type entryReader struct {
	link *link
	to   mirror.EntrySink
	wake chan struct{}
	// known are the MD5s of entries that are listened to; it is the reader's own.
	known map[registry.ConfigKey]string

	mu    sync.Mutex
	dirty map[registry.ConfigKey]struct{}
}

// changed is called with an entry that the server says has changed.
func (r *entryReader) changed(n configNamed) {
	r.mu.Lock()
	r.dirty[r.keyOf(&n)] = struct{}{}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// namespaces of the configuration have another name for the default one.
func tenantOf(name string) string {
	if name == publicName {
		return ""
	}
	return name
}

func (r *entryReader) keyOf(n *configNamed) registry.ConfigKey {
	return registry.ConfigKey{Namespace: r.link.client.config.Namespaces.Of(n.Tenant), Group: cmp.Or(n.Group, defaultGroup), DataID: n.DataID}
}

// named is how the server names an entry.
func (c *Client) named(key registry.ConfigKey) configNamed {
	return configNamed{DataID: key.DataID, Group: key.Group, Tenant: tenantOf(cmp.Or(c.config.Namespaces.NameOf(key.Namespace), publicName))}
}

// run until ctx ends. The error is of a request.
func (r *entryReader) run(ctx context.Context) error {
	for first := true; ; first = false {
		found, err := r.search(ctx)
		if err != nil {
			return err
		}
		var fresh []registry.ConfigKey
		for key, item := range found {
			if md5, known := r.known[key]; !known || md5 != item.MD5 && item.MD5 != "" {
				fresh = append(fresh, key)
			}
		}
		for key := range r.known {
			if _, there := found[key]; !there {
				fresh = append(fresh, key)
			}
		}
		all, err := r.read(ctx, fresh, found, !first)
		if err != nil {
			return err
		}
		if first {
			r.to.Listed(all)
		}
		if err := r.follow(ctx); err != nil {
			return err
		}
	}
}

// follow what the server says of known entries, until it is time to search again.
func (r *entryReader) follow(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, r.link.client.config.Poll)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-within.Done():
			return nil
		case <-r.wake:
		}
		r.mu.Lock()
		var keys []registry.ConfigKey
		for key := range r.dirty {
			keys = append(keys, key)
		}
		clear(r.dirty)
		r.mu.Unlock()
		if _, err := r.read(ctx, keys, nil, true); err != nil {
			return err
		}
	}
}

// foundEntry is an entry that a search has found.
type foundEntry struct {
	DataID      string `json:"dataId"`
	Group       string `json:"group"`
	GroupName   string `json:"groupName"` // of version 3
	MD5         string `json:"md5"`
	Application string `json:"appName"`
	Type        string `json:"type"`
}

// foundPage is a page of a search; version 3 has it in another object.
type foundPage struct {
	Total int          `json:"totalCount"`
	Items []foundEntry `json:"pageItems"`
}

func parseFound(b []byte) (*foundPage, error) {
	var out struct {
		foundPage
		Data *foundPage `json:"data"`
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("read the list of entries: %w", err)
	}
	if out.Data != nil {
		return out.Data, nil
	}
	return &out.foundPage, nil
}

// search all entries.
func (r *entryReader) search(ctx context.Context) (map[registry.ConfigKey]foundEntry, error) {
	out := map[registry.ConfigKey]foundEntry{}
	for _, namespace := range r.link.client.namespaces() {
		for page, seen := 1, 0; ; page++ {
			found, err := r.page(ctx, tenantOf(namespace), page)
			if err != nil {
				return nil, err
			}
			for _, item := range found.Items {
				key := r.keyOf(&configNamed{DataID: item.DataID, Group: cmp.Or(item.Group, item.GroupName), Tenant: namespace})
				out[key] = item
			}
			if seen += len(found.Items); len(found.Items) == 0 || seen >= found.Total {
				break
			}
		}
	}
	return out, nil
}

func (r *entryReader) page(ctx context.Context, tenant string, page int) (*foundPage, error) {
	c := r.link.client
	form := url.Values{
		"search": {"accurate"}, "dataId": {""}, "group": {""}, "groupName": {""}, "tenant": {tenant}, "namespaceId": {tenant},
		"pageNo": {strconv.Itoa(page)}, "pageSize": {strconv.Itoa(listedAtOnce)},
	}
	token, err := c.accessToken(ctx, r.link.server)
	if err != nil {
		return nil, err
	}
	if token != "" {
		form.Set("accessToken", token)
	}
	var b []byte
	for _, path := range []string{"/nacos/v1/cs/configs", "/nacos/v3/admin/cs/config/list"} { // version 3 has the other one alone
		b, err = c.call(ctx, r.link.server, http.MethodGet, path, form)
		var p *problem
		if !errors.As(err, &p) || p.code != http.StatusNotFound && p.code != http.StatusGone {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return parseFound(b)
}

// read entries, and listen to them; with tell, what they are now is told at once. It returns those that are there.
func (r *entryReader) read(ctx context.Context, keys []registry.ConfigKey, found map[registry.ConfigKey]foundEntry, tell bool) ([]*mirror.Entry, error) {
	var out []*mirror.Entry
	for len(keys) > 0 {
		some := keys[:min(len(keys), listenedAtOnce)]
		keys = keys[len(some):]
		entries := make([]*mirror.Entry, len(some))
		errs := make([]error, len(some))
		var running sync.WaitGroup
		slots := make(chan struct{}, entryReaders)
		for i, key := range some {
			slots <- struct{}{}
			running.Go(func() {
				defer func() { <-slots }()
				entries[i], errs[i] = r.query(ctx, key, found[key])
			})
		}
		running.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		listen := &configListenRequest{Listen: true}
		for i, key := range some {
			switch entry := entries[i]; {
			case entry != nil:
				out = append(out, entry)
				r.known[key] = kind.ContentMD5(entry.Content)
				if tell {
					r.to.Set(entry)
				}
			default:
				delete(r.known, key)
				if tell {
					r.to.Removed(key)
				}
			}
			if len(r.known) <= maxListened { // the search finds changes of others
				listen.Contexts = append(listen.Contexts, configListenContext{configNamed: r.link.client.named(key), MD5: r.known[key]})
			}
		}
		if err := r.listen(ctx, listen); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// listen to entries. What has changed since it was read is read again.
func (r *entryReader) listen(ctx context.Context, request *configListenRequest) error {
	within, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	var answer configListenResponse
	if err := r.link.ask(within, "ConfigBatchListenRequest", request, &answer); err != nil {
		return err
	}
	for _, n := range answer.Changed {
		r.changed(n)
	}
	return nil
}

// query an entry; nil: there is none.
func (r *entryReader) query(ctx context.Context, key registry.ConfigKey, found foundEntry) (*mirror.Entry, error) {
	within, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	var answer configQueryResponse
	err := r.link.ask(within, "ConfigQueryRequest", &configRequest{configNamed: r.link.client.named(key)}, &answer)
	var p *problem
	switch {
	case errors.As(err, &p) && p.code == codeNotFound && strings.HasPrefix(p.message, "ConfigQueryResponse"): // a server that starts has the same code
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("entry %s: %w", key, err)
	}
	return &mirror.Entry{
		Key: key, Content: answer.Content, DataKey: answer.EncryptedKey, Type: cmp.Or(found.Type, answer.ContentType), Application: found.Application,
	}, nil
}

// PutEntry implements mirror.EntryClient.
func (e *Entries) PutEntry(ctx context.Context, entry, before *mirror.Entry) error {
	l, err := e.client.connection.Link()
	if err != nil {
		return err
	}
	r := &configRequest{configNamed: e.client.named(entry.Key), Content: entry.Content, CasMD5: "0", Addition: map[string]string{}}
	if before != nil {
		r.CasMD5 = kind.ContentMD5(before.Content)
	}
	for name, value := range map[string]string{"type": entry.Type, "appName": entry.Application, "encryptedDataKey": entry.DataKey} {
		if value != "" {
			r.Addition[name] = value
		}
	}
	if err := l.ask(ctx, "ConfigPublishRequest", r, &result{}); err != nil {
		// Nacos has no code of its own for it.
		if now, readErr := e.read(ctx, l, entry.Key); readErr == nil && !sameContent(now, before) {
			return mirror.ErrChanged
		}
		var p *problem
		if errors.As(err, &p) && p.code == codeInvalid {
			return &mirror.RefusedError{Reason: p.message}
		}
		return fmt.Errorf("write %s to %s: %w", entry.Key, l.server, err)
	}
	return nil
}

// RemoveEntry implements mirror.EntryClient. Nacos removes without a comparison, so it is compared before.
func (e *Entries) RemoveEntry(ctx context.Context, before *mirror.Entry) error {
	l, err := e.client.connection.Link()
	if err != nil {
		return err
	}
	now, err := e.read(ctx, l, before.Key)
	switch {
	case err != nil:
		return err
	case now == nil:
		return nil
	case !sameContent(now, before):
		return mirror.ErrChanged
	}
	if err := l.ask(ctx, "ConfigRemoveRequest", &configRequest{configNamed: e.client.named(before.Key)}, &result{}); err != nil {
		return fmt.Errorf("remove %s from %s: %w", before.Key, l.server, err)
	}
	return nil
}

func sameContent(a, b *mirror.Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Content == b.Content && a.DataKey == b.DataKey
}

func (e *Entries) read(ctx context.Context, l *link, key registry.ConfigKey) (*mirror.Entry, error) {
	return (&entryReader{link: l}).query(ctx, key, foundEntry{})
}

// allowed names of Nacos (ParamUtils.isValid).
var allowed = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,256}$`)

// Unfit implements mirror.EntryClient.
func (e *Entries) Unfit(entry *mirror.Entry) string {
	switch {
	case !allowed.MatchString(entry.Key.DataID) || !allowed.MatchString(entry.Key.Group):
		return "Nacos allows letters, digits and _.:- in names"
	case strings.TrimSpace(entry.Content) == "":
		return "Nacos has no entries without content"
	case len(entry.Content) > meshv1alpha1.MaxRegistryContent:
		return fmt.Sprintf("it has %d bytes; at most %d are stored", len(entry.Content), meshv1alpha1.MaxRegistryContent)
	}
	return ""
}
