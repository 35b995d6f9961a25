package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

const (
	// SummaryZonesPath answers what leaves which zone, as summary.Zones.
	SummaryZonesPath = "/proxima/v1/summary/zones"
	// SummaryServicesPath answers a line a Service, as summary.Services. Query: q, namespace, zone, mode, code, refused=true, sort,
	// reverse=true, limit, continue (next of the answer before).
	SummaryServicesPath = "/proxima/v1/summary/services"
	// SummaryServicePath answers a Service with its flows, as summary.Detail. Query: namespace, name.
	SummaryServicePath = "/proxima/v1/summary/service"
	// SeriesPath answers how zones were, as summary.Series. Query: minutes (1 to 360; default 360); or namespace and name, for a Service.
	SeriesPath = "/proxima/v1/series"
	// StreamPath sends changes of summaries as they come, a JSON object a line (a Frame). Query: topics (zones, problems; comma-separated),
	// position (EPOCH:N of the newest frame that the client has).
	StreamPath = "/proxima/v1/stream"
)

// Frame is a line of the stream.
type Frame struct {
	// Topic that it is about; empty: the stream is alive.
	Topic string `json:"topic,omitempty"`
	// Delta of the topic, as summary.Delta.
	Delta json.RawMessage `json:"delta,omitempty"`
	// Error of a topic that cannot be answered now.
	Error string `json:"error,omitempty"`
	// Time of the control plane.
	Time time.Time `json:"time"`
}

// Write the frame as a line: JSON without a control character, and without a character that means something in markup.
func (f *Frame) Write(w io.Writer) error { return json.NewEncoder(w).Encode(f) }

const (
	// aliveEvery: a stream without changes says that it is alive.
	aliveEvery = 5 * time.Second
	// scopeFor is how long rights are believed.
	scopeFor = 30 * time.Second
	// maxStreams at an instance: each holds a connection.
	maxStreams = 200
	// frameTimeout of one write: a client that does not read is let go.
	frameTimeout = 10 * time.Second
)

// Sums returns the sums of Services; nil: this instance does not plan, so that another one has them.
type Sums func() *summary.Table

// withSummaries adds the paths of sums, if there are any.
func withSummaries(c Config, scopes *scopes, to map[string]http.Handler) map[string]http.Handler {
	if c.Sums == nil {
		return to
	}
	to = withProblems(c, scopes, to)
	to[SummaryZonesPath] = get(summaryHandler{c, scopes, summaryZones})
	to[SummaryServicesPath] = get(summaryHandler{c, scopes, summaryServices})
	to[SummaryServicePath] = get(summaryHandler{c, scopes, summaryService})
	to[SeriesPath] = get(summaryHandler{c, scopes, seriesOf})
	to[PlotZonesPath] = get(plotHandler{c, scopes, plotZones})
	to[PlotServicePath] = get(plotHandler{c, scopes, plotService})
	to[PlotHistoryPath] = get(plotHandler{c, scopes, plotHistory})
	to[StreamPath] = get(&streamHandler{Config: c, scopes: scopes, problems: &problemBoard{config: c, found: map[string]*foundProblems{}}})
	return to
}

// scopeHeader limits a request of another instance to what its viewer may see, as the JSON of a summary.Scope. It can only take
// rights away.
const scopeHeader = "Proxima-Scope"

// scopes of users, as far as they are known.
type scopes struct {
	config Config
	mu     sync.Mutex
	known  map[string]knownScope
}

type knownScope struct {
	scope summary.Scope
	until time.Time
}

// maxKnown users are remembered.
const maxKnown = 1000

func newScopes(c Config) *scopes { return &scopes{config: c, known: map[string]knownScope{}} }

// of a request: the namespaces whose Services its user may list.
// Without an Authorizer it is all.
func (s *scopes) of(r *http.Request) (summary.Scope, error) {
	if s.config.Authorizer == nil {
		return summary.Scope{All: true}, nil
	}
	scope, err := s.ofUser(r.Context())
	text := r.Header.Get(scopeHeader)
	if err != nil || text == "" {
		return scope, err
	}
	var limit summary.Scope
	if err := json.Unmarshal([]byte(text), &limit); err != nil {
		return summary.Scope{}, &badQuery{fmt.Errorf("header %s: %w", scopeHeader, err)}
	}
	slices.Sort(limit.Namespaces)
	switch {
	case limit.All:
		return scope, nil
	case scope.All:
		return limit, nil
	}
	scope.Namespaces = slices.DeleteFunc(slices.Clone(scope.Namespaces), func(n string) bool { return !limit.Allows(n) })
	return scope, nil
}

func (s *scopes) ofUser(ctx context.Context) (summary.Scope, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return summary.Scope{}, errors.New("the request has no user")
	}
	groups := slices.Sorted(slices.Values(who.GetGroups()))
	// The same name may be of another user, where a cluster has decided.
	id := fmt.Sprint(s.config.AnyInstance != nil && s.config.AnyInstance(ctx)) + "\x00" + who.GetName() + "\x00" + strings.Join(groups, "\x00")
	now := time.Now()
	s.mu.Lock()
	known, ok := s.known[id]
	s.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.scope, nil
	}
	scope := summary.Scope{All: s.config.mayRead(ctx, kind.Service, resource.Key{}) == nil}
	if !scope.All {
		for key := range s.config.Tables.Snapshot().Namespaces.All() {
			if ctx.Err() != nil {
				return summary.Scope{}, ctx.Err()
			}
			if s.config.mayRead(ctx, kind.Service, resource.Key{Namespace: key.Name}) == nil {
				scope.Namespaces = append(scope.Namespaces, key.Name)
			}
		}
		slices.Sort(scope.Namespaces)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[id] = knownScope{scope, now.Add(scopeFor)}
	return scope, nil
}

// summaryHandler answers a question about sums, on the instance that has them.
type summaryHandler struct {
	Config
	scopes *scopes
	answer func(*summary.Table, summary.Scope, url.Values) (any, error)
}

// ServeHTTP implements http.Handler.
func (h summaryHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scope, err := h.scopes.of(r)
	if err != nil {
		refuseSummary(w, err)
		return
	}
	table := h.Sums()
	if table == nil {
		h.elsewhereWithin(w, r, scope)
		return
	}
	value, err := h.answer(table, scope, r.URL.Query())
	if err != nil {
		refuseSummary(w, err)
		return
	}
	answer(w, value)
}

func refuseSummary(w http.ResponseWriter, err error) {
	var unknown *topology.UnknownError
	var bad *badQuery
	var query *summary.QueryError
	switch {
	case errors.As(err, &unknown):
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, err)
	case errors.As(err, &bad), errors.As(err, &query):
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
	default:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
	}
}

// errNoSums is the answer where no instance plans.
var errNoSums = errors.New("no instance of the control plane that plans can be reached; try again in a moment")

// elsewhereWithin passes a request on to the instance that has the sums, limited to what its user may see, and the answer back as
// it comes.
func (c Config) elsewhereWithin(w http.ResponseWriter, r *http.Request, scope summary.Scope) {
	if r.Header.Get(forwardedHeader) != "" {
		refuse(w, http.StatusMisdirectedRequest, metav1.StatusReasonConflict, errNoSums)
		return
	}
	limit, err := json.Marshal(scope)
	instances := c.Planning
	if instances == nil {
		instances = c.Instances
	}
	if err != nil || instances == nil {
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, errNoSums)
		return
	}
	for _, name := range instances.Others() {
		out, err := http.NewRequestWithContext(r.Context(), r.Method, r.URL.RequestURI(), nil)
		if err != nil {
			break
		}
		out.Header.Set(forwardedHeader, "1")
		out.Header.Set(scopeHeader, string(limit))
		resp, err := instances.Send(r.Context(), name, out)
		if err != nil {
			c.Logger.Warn("another instance was not asked", "instance", name, "path", r.URL.Path, "error", err)
			continue
		}
		if resp.StatusCode == http.StatusMisdirectedRequest {
			_ = resp.Body.Close() // nothing was written
			continue
		}
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.WriteHeader(resp.StatusCode)
		copyFlushed(w, resp.Body)
		_ = resp.Body.Close() // all was read, or the client has gone
		return
	}
	refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, errNoSums)
}

// copyFlushed sends on what comes, at once.
func copyFlushed(w http.ResponseWriter, from io.Reader) {
	control := http.NewResponseController(w)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			_ = control.SetWriteDeadline(time.Now().Add(frameTimeout)) // not every server has one
			if _, failed := w.Write(buffer[:n]); failed != nil || control.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func summaryZones(t *summary.Table, scope summary.Scope, _ url.Values) (any, error) {
	return t.Zones(scope)
}

func summaryServices(t *summary.Table, scope summary.Scope, q url.Values) (any, error) {
	query, err := ServicesQuery(q)
	if err != nil {
		return nil, err
	}
	return t.Services(scope, query)
}

// ServicesQuery reads the query of SummaryServicesPath. What it says is checked by summary.Table.Services; an error is about what is
// no number.
func ServicesQuery(q url.Values) (summary.Query, error) {
	query := summary.Query{
		Text: q.Get("q"), Namespace: q.Get("namespace"), Zone: q.Get("zone"), Mode: q.Get("mode"), Code: q.Get("code"),
		Refused: q.Get("refused") == "true", Sort: q.Get("sort"), Reverse: q.Get("reverse") == "true",
	}
	for field, to := range map[string]*int{"limit": &query.Limit, "continue": &query.Offset} {
		text := q.Get(field)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			return query, &badQuery{fmt.Errorf("%s %q: use a number", field, text)}
		}
		*to = n
	}
	return query, nil
}

func keyOf(q url.Values) (resource.Key, error) {
	key := resource.Key{Namespace: q.Get("namespace"), Name: q.Get("name")}
	if key.Namespace == "" || key.Name == "" {
		return key, &badQuery{errors.New("namespace and name: both are required")}
	}
	return key, nil
}

func summaryService(t *summary.Table, scope summary.Scope, q url.Values) (any, error) {
	key, err := keyOf(q)
	if err != nil {
		return nil, err
	}
	d, ok := t.Detail(scope, key)
	if !ok {
		return nil, &topology.UnknownError{What: "service", Name: key.String()}
	}
	return d, nil
}

func seriesOf(t *summary.Table, scope summary.Scope, q url.Values) (any, error) {
	s, err := seriesIn(t, scope, q)
	return s, err
}

func seriesIn(t *summary.Table, scope summary.Scope, q url.Values) (none summary.Series, err error) {
	if q.Has("namespace") || q.Has("name") {
		key, err := keyOf(q)
		if err != nil {
			return none, err
		}
		if _, ok := t.Detail(scope, key); !ok {
			return none, &topology.UnknownError{What: "service", Name: key.String()}
		}
		return t.ServiceSeries(key), nil
	}
	if !scope.All {
		return none, &badQuery{errors.New("the series of zones are of all namespaces, which you may not list: ask for one Service, by namespace and name")}
	}
	last := summary.Kept
	if text := q.Get("minutes"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > int(summary.Kept/time.Minute) {
			return none, &badQuery{fmt.Errorf("minutes %q: 1 to %d", text, int(summary.Kept/time.Minute))}
		}
		last = time.Duration(n) * time.Minute
	}
	return t.Series(last), nil
}

// streamHandler sends summaries as they change.
type streamHandler struct {
	Config
	scopes   *scopes
	problems *problemBoard
	mu       sync.Mutex
	open     int
}

// topic of a stream.
type topic interface {
	// next delta from what the client has; nil: nothing has changed. There is more after again, or with the next change if that is 0.
	next(ctx context.Context, scope summary.Scope) (delta json.RawMessage, again time.Duration, err error)
}

// zonesTopic sends zones, flows and totals.
type zonesTopic struct {
	table *summary.Table
	have  summary.Position
}

func (t *zonesTopic) next(_ context.Context, scope summary.Scope) (data json.RawMessage, again time.Duration, err error) {
	data, t.have, again, err = t.table.Delta(scope, t.have)
	return data, again, err
}

// ServeHTTP implements http.Handler.
func (h *streamHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scope, err := h.scopes.of(r)
	if err != nil {
		refuseSummary(w, err)
		return
	}
	table := h.Sums()
	if table == nil {
		h.elsewhereWithin(w, r, scope)
		return
	}
	topics, err := h.topics(table, r)
	if err != nil {
		refuseSummary(w, err)
		return
	}
	if !h.enter() {
		refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, fmt.Errorf("%d streams are open at this instance: close one", maxStreams))
		return
	}
	defer h.leave()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	h.send(r, &frames{w: w, control: http.NewResponseController(w)}, table, topics)
}

func (h *streamHandler) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open >= maxStreams {
		return false
	}
	h.open++
	return true
}

func (h *streamHandler) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
}

// ParsePosition reads EPOCH:N, of the newest frame that a client of a stream has.
func ParsePosition(text string) (summary.Position, error) {
	epoch, number, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return summary.Position{}, &badQuery{fmt.Errorf("position %q: write it as EPOCH:N", text)}
	}
	return summary.Position{Epoch: epoch, Sequence: n}, nil
}

func (h *streamHandler) topics(table *summary.Table, r *http.Request) (map[string]topic, error) {
	q := r.URL.Query()
	var have summary.Position
	if text := q.Get("position"); text != "" {
		var err error
		if have, err = ParsePosition(text); err != nil {
			return nil, err
		}
	}
	out := map[string]topic{}
	for name := range strings.SplitSeq(q.Get("topics"), ",") {
		switch name {
		case "zones":
			out[name] = &zonesTopic{table: table, have: have}
		case "problems":
			out[name] = &problemsTopic{board: h.problems}
		default:
			return nil, &badQuery{fmt.Errorf("topics %q: use zones, problems, or both with a comma between", q.Get("topics"))}
		}
	}
	return out, nil
}

// send frames until the client goes, the table is another's, or a write fails.
func (h *streamHandler) send(r *http.Request, out *frames, table *summary.Table, topics map[string]topic) {
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	gap := time.NewTimer(0)
	defer gap.Stop()
	said := map[string]string{}
	for {
		select {
		case <-r.Context().Done():
			return
		case <-gap.C:
		}
		if h.Sums() != table {
			return // another instance has the sums now: the client comes again
		}
		scope, err := h.scopes.of(r)
		if err != nil {
			return
		}
		changed, sent := table.Changed(), time.Now()
		written, soon := 0, time.Duration(0)
		for name, topic := range topics {
			data, again, err := topic.next(r.Context(), scope)
			written, soon = written+len(data), max(soon, again)
			frame := Frame{Topic: name, Delta: data}
			if err != nil {
				frame.Error = err.Error()
			}
			if data == nil && frame.Error == said[name] {
				continue
			}
			said[name] = frame.Error
			if !out.write(frame) {
				return
			}
		}
		if soon == 0 && !h.wait(r.Context(), out, changed, alive.C, topics["problems"] != nil) {
			return
		}
		gap.Reset(max(soon, summary.Gap(written)-time.Since(sent))) // at once, if nothing has changed for long
	}
}

// wait for a change. false: the client has gone.
func (h *streamHandler) wait(ctx context.Context, out *frames, changed <-chan struct{}, alive <-chan time.Time, problems bool) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-changed:
			return true
		case <-alive:
			if !out.write(Frame{}) {
				return false
			}
			if problems || h.Sums() == nil {
				return true
			}
		}
	}
}

// frames of a stream.
type frames struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// write a frame at once; false: the client does not read any more.
func (f *frames) write(frame Frame) bool {
	frame.Time = time.Now()
	_ = f.control.SetWriteDeadline(frame.Time.Add(frameTimeout)) // not every server has one
	return frame.Write(f.w) == nil && f.control.Flush() == nil
}
