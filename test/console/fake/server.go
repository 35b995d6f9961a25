package fake

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/console"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// Token that the Server lets in.
const Token = "a-token-for-tests"

// Server answers what the pages ask. Its methods are safe for concurrent use.
type Server struct {
	pages http.Handler

	mu       sync.Mutex
	world    *World
	problems []admin.Problem
	objects  map[string]any           // by path
	failing  map[string]int           // prefixes of paths, and the codes that they get
	held     map[string]chan struct{} // prefixes of paths whose answers wait
	silent   bool                     // streams say nothing
	cut      chan struct{}            // closed to end streams
	changed  chan struct{}
	writes   []string
	streams  int
}

// Serve a world.
func Serve(w *World) (*Server, error) {
	pages, err := console.New()
	if err != nil {
		return nil, err
	}
	return &Server{pages: pages, world: w, objects: map[string]any{}, failing: map[string]int{}, held: map[string]chan struct{}{}, cut: make(chan struct{}), changed: make(chan struct{})}, nil
}

// Set what there is to see, and tell streams.
func (s *Server) Set(w *World, problems []admin.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.world, s.problems = w, problems
	s.tell()
}

// Edit the world, and tell streams.
func (s *Server) Edit(f func(*World)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.world)
	s.world.Zones.Sequence++
	s.tell()
}

func (s *Server) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Put an answer at a path; nil takes it away.
func (s *Server) Put(path string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[path] = value
	if value == nil {
		delete(s.objects, path)
	}
}

// Fail requests whose path begins so; code 0: not any more.
func (s *Server) Fail(prefix string, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing[prefix] = code; code == 0 {
		delete(s.failing, prefix)
	}
}

// Hold answers to requests whose path begins so, until the function that it returns is called.
func (s *Server) Hold(prefix string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make(chan struct{})
	s.held[prefix] = held
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.held, prefix)
		close(held)
	}
}

// Silence streams, which stay open, or let them go on.
func (s *Server) Silence(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
	s.tell()
}

// Cut all streams.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// Writes that were let through, as METHOD PATH BODY, but those that were tried only.
func (s *Server) Writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{Status: "Failure", Code: int32(code), Reason: reason, Message: text})
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, console.Path) {
		s.pages.ServeHTTP(w, r)
		return
	}
	if r.Header.Get("Authorization") != "Bearer "+Token {
		refuse(w, 401, metav1.StatusReasonUnauthorized, "the token is not valid")
		return
	}
	s.mu.Lock()
	for prefix, code := range s.failing {
		if strings.HasPrefix(r.URL.Path, prefix) {
			s.mu.Unlock()
			refuse(w, code, metav1.StatusReason(http.StatusText(code)), fmt.Sprintf("%s is not answered in this test", prefix))
			return
		}
	}
	value, ok := s.objects[r.URL.Path]
	world := s.world
	var held chan struct{}
	for prefix, c := range s.held {
		if strings.HasPrefix(r.URL.Path, prefix) {
			held = c
		}
	}
	s.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case r.URL.Path == admin.StreamPath:
		s.stream(w, r)
	case r.Method != http.MethodGet:
		s.write(w, r)
	case ok && r.URL.Path == admin.FeedHistoryPath:
		answer(w, since(value, r.URL.Query().Get("since")))
	case ok:
		answer(w, value)
	case r.URL.Path == admin.SummaryZonesPath:
		answer(w, world.Zones)
	case r.URL.Path == admin.SummaryServicesPath:
		s.services(w, r, world)
	case r.URL.Path == admin.SummaryServicePath:
		q := r.URL.Query()
		for _, l := range world.Services {
			if l.Namespace == q.Get("namespace") && l.Name == q.Get("name") {
				answer(w, summary.Detail{Line: l, ByZone: l.ByZone, Flows: l.Flows})
				return
			}
		}
		refuse(w, 404, metav1.StatusReasonNotFound, "there is no service "+q.Get("namespace")+"/"+q.Get("name"))
	case r.URL.Path == admin.SeriesPath:
		s.series(w, r, world)
	case r.URL.Path == admin.ProblemsPath:
		s.mu.Lock()
		defer s.mu.Unlock()
		answer(w, admin.Problems{Problems: append([]admin.Problem{}, s.problems...)})
	case r.URL.Path == "/version":
		answer(w, map[string]string{"gitVersion": "v0"})
	default:
		refuse(w, 404, metav1.StatusReasonNotFound, "the fake has nothing at "+r.URL.Path)
	}
}

func (s *Server) services(w http.ResponseWriter, r *http.Request, world *World) {
	q := r.URL.Query()
	out := summary.Services{Services: []topology.Line{}, All: len(world.Services), Partial: world.Zones.Partial}
	for _, l := range world.Services {
		if strings.Contains(l.Namespace+"/"+l.Name, q.Get("q")) && (q.Get("code") == "" || q.Get("code") == l.Code) && (q.Get("refused") != "true" || l.Refused) &&
			(q.Get("mode") == "" || q.Get("mode") == l.Mode || q.Get("mode") == "none" && l.Mode == "") {
			out.Services = append(out.Services, l)
		}
	}
	saving := func(l topology.Line) float64 {
		if l.Saving == nil {
			return l.Ways.Best.InZone - l.InZone
		}
		return *l.Saving
	}
	slices.SortFunc(out.Services, func(a, b topology.Line) int {
		by := cmp.Compare(saving(b), saving(a))
		switch q.Get("sort") {
		case "name":
			by = 0
		case "demand":
			by = cmp.Compare(b.Demand, a.Demand)
		}
		by = cmp.Or(by, strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
		if q.Get("reverse") == "true" {
			return -by
		}
		return by
	})
	out.Total = len(out.Services)
	limit, _ := strconv.Atoi(cmp.Or(q.Get("limit"), "100"))
	from, _ := strconv.Atoi(cmp.Or(q.Get("continue"), "0"))
	out.Services = out.Services[min(from, out.Total):]
	if len(out.Services) > limit {
		out.Services, out.Next = out.Services[:limit], from+limit
	}
	answer(w, out)
}

func (s *Server) series(w http.ResponseWriter, r *http.Request, world *World) {
	q := r.URL.Query()
	if !q.Has("name") {
		answer(w, world.Series)
		return
	}
	out := summary.Series{Since: world.Series.Since, Last: world.Series.Last, Step: 300, Zones: []summary.ZoneSeries{}}
	for _, l := range world.Services {
		if l.Name == q.Get("name") && l.Namespace == q.Get("namespace") && l.Demand > 0 {
			var z summary.ZoneSeries
			for k := range 36 {
				z.Demand, z.InZone = append(z.Demand, float32(l.Demand)*(1+0.02*float32(k%7))), append(z.InZone, float32(l.InZone))
			}
			out.Zones = append(out.Zones, z)
		}
	}
	answer(w, out)
}

// since leaves out changes before a time, as RFC 3339 or as an age at the time of the newest change and a quarter of an hour.
func since(history any, text string) any {
	all, _ := history.(map[string]any)
	changes, ok := all["changes"].([]object)
	if !ok || text == "" {
		return history
	}
	from, err := time.Parse(time.RFC3339, text)
	if age, wrong := time.ParseDuration(text); wrong == nil {
		newest, _ := changes[0]["time"].(time.Time)
		from, err = newest.Add(15*time.Minute-age), nil
	}
	if err != nil {
		return history
	}
	out := map[string]any{}
	reencode(all, &out)
	out["changes"] = slices.DeleteFunc(slices.Clone(changes), func(c object) bool { at, _ := c["time"].(time.Time); return at.Before(from) })
	return out
}

// write tries a write, or does it.
func (s *Server) write(w http.ResponseWriter, r *http.Request) {
	var in map[string]any
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		refuse(w, 400, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
		answer(w, map[string]any{"status": map[string]any{"allowed": true}})
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := json.Marshal(in)
	old, _ := s.objects[r.URL.Path].(map[string]any)
	if r.Method == http.MethodPatch {
		meta, _ := in["metadata"].(map[string]any)
		have, _ := old["metadata"].(map[string]any)
		if old == nil || meta["resourceVersion"] != have["resourceVersion"] {
			refuse(w, 409, metav1.StatusReasonConflict, "the object has been modified; please apply your changes to the latest version")
			return
		}
		next := map[string]any{}
		data, _ := json.Marshal(old)
		_ = json.Unmarshal(data, &next)
		to := next["metadata"].(map[string]any)
		annotations, _ := to["annotations"].(map[string]any)
		if annotations == nil {
			annotations = map[string]any{}
		}
		changed, _ := meta["annotations"].(map[string]any)
		for k, v := range changed {
			if annotations[k] = v; v == nil {
				delete(annotations, k)
			}
		}
		to["annotations"] = annotations
		if r.URL.Query().Get("dryRun") != "All" {
			version, _ := strconv.Atoi(fmt.Sprint(to["resourceVersion"]))
			to["resourceVersion"] = strconv.Itoa(version + 1)
			s.objects[r.URL.Path] = next
			s.writes = append(s.writes, "PATCH "+r.URL.Path+" "+string(body))
		}
		answer(w, next)
		return
	}
	if r.URL.Query().Get("dryRun") != "All" {
		s.writes = append(s.writes, r.Method+" "+r.URL.Path+" "+string(body))
	}
	answer(w, map[string]any{"deleted": 1})
}

// stream sends everything with each change, as far as the topic is concerned.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	s.mu.Lock()
	s.streams++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.streams--
		s.mu.Unlock()
	}()
	control := http.NewResponseController(w)
	send := func(f admin.Frame) bool {
		f.Time = time.Now()
		return json.NewEncoder(w).Encode(f) == nil && control.Flush() == nil
	}
	position := r.URL.Query().Get("position")
	s.mu.Lock()
	cut := s.cut
	s.mu.Unlock()
	alive := time.NewTicker(2 * time.Second)
	defer alive.Stop()
	for {
		s.mu.Lock()
		changed, silent := s.changed, s.silent
		z := s.world.Zones
		rows := summary.Rows(&z)
		put := func(into map[string]json.RawMessage, name string, value any) {
			data, err := json.Marshal(value)
			if err == nil {
				into[name] = data
			}
		}
		found := map[string]json.RawMessage{}
		for _, p := range s.problems {
			put(found, "problem/"+p.Code+"/"+p.Object(), p)
		}
		s.mu.Unlock()
		if !silent {
			if at := fmt.Sprintf("%s:%d", z.Epoch, z.Sequence); at != position {
				data, _ := json.Marshal(summary.Delta{Position: z.Position, Snapshot: true, Rows: rows})
				if !send(admin.Frame{Topic: "zones", Delta: data}) {
					return
				}
				position = at
			}
			data, _ := json.Marshal(summary.Delta{Snapshot: true, Rows: found})
			if !send(admin.Frame{Topic: "problems", Delta: data}) {
				return
			}
		}
		for waiting := true; waiting; {
			select {
			case <-r.Context().Done():
				return
			case <-cut:
				return
			case <-changed:
				waiting = false
			case <-alive.C:
				if !silent && !send(admin.Frame{}) {
					return
				}
			}
		}
	}
}

// reencode a value as the type of another, by its JSON.
func reencode(from, to any) {
	data, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		panic(err) // a type of ours
	}
}

// Streams that are open.
func (s *Server) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// World that is served.
func (s *Server) World() *World {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world
}
