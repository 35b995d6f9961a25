package eureka

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/registry"
)

// recentFor is how long a change is in deltas: Eureka's retentionTimeInMSInDeltaQueue. Clients ask
// every 30 s, and compare a hash of what they have then.
const recentFor = 3 * time.Minute

// maxViews bounds the combinations of namespace and zone that clients can ask for.
const maxViews = 1024

// Actions of a delta.
const (
	added    = "ADDED"
	modified = "MODIFIED"
	deleted  = "DELETED"
)

// views are what clients see, by namespace and zone: kept up to date by changes, and encoded when asked
// for.
type views struct {
	core *registry.Core

	mu  sync.Mutex
	all map[viewKey]*view
}

type viewKey struct {
	namespace string
	zone      locality.Zone
}

// view is what the clients of a zone see of a namespace. Guarded by views.mu.
type view struct {
	apps    map[registry.Service][]*held
	counts  map[string]int // of instances, by status
	version int64
	recent  []change
	cache   map[string][]byte // of this version
	// changed is closed, and replaced, when the version changes; nil: the view is not kept.
	changed chan struct{}
}

// held is an instance with its encodings.
type held struct {
	info *info
	json []byte
	xml  []byte
}

// change of an instance, in order of time.
type change struct {
	at  time.Time
	app string
	*held
}

func newViews(core *registry.Core) *views { return &views{core: core, all: map[viewKey]*view{}} }

// run follows the index until ctx ends.
func (v *views) run(ctx context.Context) {
	changes := v.core.Index.FollowAll()
	defer changes.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes.Ready():
		}
		v.mu.Lock()
		services, _ := changes.Take()
		now := time.Now()
		for _, s := range services {
			for key, w := range v.all {
				if key.namespace == s.Namespace {
					w.set(v.core.Index.Listing(s, key.zone), now)
				}
			}
		}
		v.mu.Unlock()
	}
}

// of a namespace and a zone; it is made when it is first asked for. v.mu is held.
func (v *views) of(key viewKey) *view {
	w := v.all[key]
	if w != nil {
		return w
	}
	w = &view{apps: map[registry.Service][]*held{}, counts: map[string]int{}, version: 1}
	for _, s := range v.core.Index.Names(key.namespace) {
		w.set(v.core.Index.Listing(s, key.zone), time.Time{})
	}
	w.recent = nil
	if len(v.all) < maxViews {
		w.changed = make(chan struct{})
		v.all[key] = w
	}
	return w
}

// set what there is of a service.
func (w *view) set(l *registry.Listing, now time.Time) {
	if l.Service.RPC() {
		return
	}
	before := map[string]*held{}
	for _, h := range w.apps[l.Service] {
		before[h.info.id()] = h
		w.count(h, -1)
	}
	var list []*held
	touched := false
	for i, in := range l.Instances {
		next := infoOf(in, l.Weights[i])
		h, action := hold(next, ""), added
		if was := before[next.id()]; was != nil {
			if bytes.Equal(was.json, h.json) {
				h, action = was, ""
			} else {
				action = modified
			}
		}
		delete(before, next.id())
		list = append(list, h)
		w.count(h, 1)
		if action != "" {
			touched = true
			w.note(now, next, action)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		touched = true
		w.note(now, before[id].info, deleted)
	}
	if len(list) == 0 {
		delete(w.apps, l.Service)
	} else {
		w.apps[l.Service] = list
	}
	if touched {
		w.version++
		w.cache = nil
		if w.changed != nil {
			close(w.changed)
			w.changed = make(chan struct{})
		}
	}
}

func (w *view) count(h *held, n int) {
	if w.counts[h.info.Status] += n; w.counts[h.info.Status] == 0 {
		delete(w.counts, h.info.Status)
	}
}

func (w *view) note(now time.Time, in *info, action string) {
	w.recent = append(w.recent, change{at: now, app: in.App, held: hold(in, action)})
}

// hold an instance, as it is in a document; action is for deltas.
func hold(in *info, action string) *held {
	if action != "" {
		changed := *in
		changed.Action = action
		in = &changed
	}
	h := &held{info: in}
	h.json, _ = json.Marshal(in) // numbers, texts and maps of texts
	var b bytes.Buffer
	in.appendXML(&b)
	h.xml = b.Bytes()
	return h
}

// hash of what clients have, by which they notice that they missed something.
func (w *view) hash() string {
	var b strings.Builder
	for _, status := range slices.Sorted(maps.Keys(w.counts)) {
		fmt.Fprintf(&b, "%s_%d_", status, w.counts[status])
	}
	return b.String()
}

// format of an answer.
type format struct {
	xml, gzip, compact bool
}

func (f format) String() string { return fmt.Sprint(f.xml, f.gzip, f.compact) }

// application is instances under one name.
type application struct {
	name string
	list []*held
}

// watch returns the version of a view, and a channel that is closed when there is another one; nil: the view is
// not kept up to date.
func (v *views) watch(key viewKey) (changed <-chan struct{}, version int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.of(key)
	return w.changed, w.version
}

// full is the document of all applications, and the version of the view.
func (v *views) full(key viewKey, f format) (doc []byte, version int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.of(key)
	doc = w.cached("full "+f.String(), func() []byte {
		var apps []application
		for _, s := range slices.SortedFunc(maps.Keys(w.apps), registry.Service.Compare) {
			apps = append(apps, application{strings.ToUpper(s.Grouped()), w.apps[s]})
		}
		return document(w.version, w.hash(), apps, f)
	})
	return doc, w.version
}

// delta is the document of what has changed lately, and the version of the view.
func (v *views) delta(key viewKey, f format) (doc []byte, version int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.of(key)
	old := slices.IndexFunc(w.recent, func(c change) bool { return time.Since(c.at) < recentFor })
	if old < 0 {
		old = len(w.recent)
	}
	if old > 0 {
		w.recent, w.cache = slices.Clone(w.recent[old:]), nil
	}
	doc = w.cached("delta "+f.String(), func() []byte {
		byApp := map[string][]*held{}
		for _, c := range w.recent {
			byApp[c.app] = append(byApp[c.app], c.held)
		}
		var apps []application
		for _, name := range slices.Sorted(maps.Keys(byApp)) {
			apps = append(apps, application{name, byApp[name]})
		}
		return document(w.version, w.hash(), apps, f)
	})
	return doc, w.version
}

// some is the document of the instances that match.
func (v *views) some(key viewKey, f format, match func(*info) bool) (doc []byte, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.of(key)
	counts := map[string]int{}
	var apps []application
	for _, s := range slices.SortedFunc(maps.Keys(w.apps), registry.Service.Compare) {
		var list []*held
		for _, h := range w.apps[s] {
			if match(h.info) {
				list = append(list, h)
				counts[h.info.Status]++
			}
		}
		if n += len(list); len(list) > 0 {
			apps = append(apps, application{strings.ToUpper(s.Grouped()), list})
		}
	}
	part := &view{counts: counts}
	return document(w.version, part.hash(), apps, f), n
}

// app is the document of one application; nil: there is none.
func (v *views) app(key viewKey, f format, name string) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	for s, list := range v.of(key).apps {
		if strings.EqualFold(s.Grouped(), name) {
			var b bytes.Buffer
			a := application{strings.ToUpper(name), list}
			if f.xml {
				a.appendXML(&b)
			} else {
				b.WriteString(`{"application":`)
				a.appendJSON(&b, f.compact)
				b.WriteString("}")
			}
			return packed(b.Bytes(), f)
		}
	}
	return nil
}

// instance is the document of one instance; nil: there is none. An empty app is any.
func (v *views) instance(key viewKey, f format, app, id string) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	for s, list := range v.of(key).apps {
		if app != "" && !strings.EqualFold(s.Grouped(), app) {
			continue
		}
		for _, h := range list {
			if h.info.id() != id {
				continue
			}
			if f.xml {
				return packed(h.xml, f)
			}
			return packed(slices.Concat([]byte(`{"instance":`), h.text(f.compact), []byte("}")), f)
		}
	}
	return nil
}

func (w *view) cached(what string, make func() []byte) []byte {
	if b := w.cache[what]; b != nil {
		return b
	}
	if w.cache == nil {
		w.cache = map[string][]byte{}
	}
	w.cache[what] = make()
	return w.cache[what]
}

func document(version int64, hash string, apps []application, f format) []byte {
	var b bytes.Buffer
	if f.xml {
		b.WriteString("<applications>")
		element(&b, "versions__delta", strconv.FormatInt(version, 10))
		element(&b, "apps__hashcode", hash)
		for _, a := range apps {
			a.appendXML(&b)
		}
		b.WriteString("</applications>")
		return packed(b.Bytes(), f)
	}
	fmt.Fprintf(&b, `{"applications":{"versions__delta":"%d","apps__hashcode":%q,"application":[`, version, hash)
	for i, a := range apps {
		if i > 0 {
			b.WriteByte(',')
		}
		a.appendJSON(&b, f.compact)
	}
	b.WriteString("]}}")
	return packed(b.Bytes(), f)
}

func (a application) appendXML(b *bytes.Buffer) {
	b.WriteString("<application>")
	element(b, "name", a.name)
	for _, h := range a.list {
		b.Write(h.xml)
	}
	b.WriteString("</application>")
}

func (a application) appendJSON(b *bytes.Buffer, compact bool) {
	name, _ := json.Marshal(a.name) // a text
	fmt.Fprintf(b, `{"name":%s,"instance":[`, name)
	for i, h := range a.list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(h.text(compact))
	}
	b.WriteString("]}")
}

// text of the instance as JSON. The compact form has what a client needs to connect, as Eureka's does.
func (h *held) text(compact bool) []byte {
	if !compact {
		return h.json
	}
	in := h.info
	small := struct {
		InstanceID string     `json:"instanceId"`
		HostName   string     `json:"hostName"`
		App        string     `json:"app"`
		IPAddr     string     `json:"ipAddr"`
		Status     string     `json:"status"`
		Overridden string     `json:"overriddenStatus"`
		Port       port       `json:"port"`
		SecurePort port       `json:"securePort"`
		DataCenter dataCenter `json:"dataCenterInfo"`
		VIP        string     `json:"vipAddress,omitempty"`
		SecureVIP  string     `json:"secureVipAddress,omitempty"`
		Action     string     `json:"actionType,omitempty"`
	}{
		cmp.Or(in.InstanceID, in.HostName), in.HostName, in.App, in.IPAddr, in.Status, in.Overridden, in.Port, in.SecurePort, in.DataCenter,
		in.VIP, in.SecureVIP, in.Action,
	}
	out, _ := json.Marshal(small) // as hold
	return out
}

func packed(b []byte, f format) []byte {
	if !f.gzip {
		return b
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b) // a buffer takes everything
	_ = z.Close()
	return out.Bytes()
}
