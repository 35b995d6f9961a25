package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/summary"
)

// ProblemsPath answers what is wrong in the whole of a control plane and its nodes, as Problems.
const ProblemsPath = "/proxima/v1/problems"

// Severity of a problem.
type Severity string

// The severities. An Error keeps something from working, a Warning will or may.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// Problem that somebody should look at.
type Problem struct {
	// Code is one of package problem, or the reason of a condition.
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	// Kind, Namespace and Name of the object that it is about; empty: the control plane.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Problem in words, and what mends it: a command, or an action.
	Problem string `json:"problem"`
	Fix     string `json:"fix,omitempty"`
	// Since when, as far as it is known.
	Since time.Time `json:"since,omitzero"`
}

// Object that it is about: KIND NAMESPACE/NAME.
func (p *Problem) Object() string {
	name := p.Name
	if p.Namespace != "" {
		name = p.Namespace + "/" + p.Name
	}
	return strings.TrimSpace(p.Kind + " " + name)
}

// id by which a stream names it.
func (p *Problem) id() string { return "problem/" + p.Code + "/" + p.Object() }

// Problems are the JSON at ProblemsPath.
type Problems struct {
	Problems []Problem `json:"problems"`
	// Partial says what the viewer may not see; empty: nothing.
	Partial string `json:"partial,omitempty"`
}

// problemsOf what a scope may see, errors first.
func (c *Config) problemsOf(ctx context.Context, scope summary.Scope) Problems {
	snapshot := c.Tables.Snapshot()
	status := statusHandler{*c}.status(ctx, true)
	out := Problems{Problems: []Problem{}}
	for _, p := range c.Problems(&status, snapshot) {
		switch {
		case scope.All, p.Namespace != "" && scope.Allows(p.Namespace):
			out.Problems = append(out.Problems, p)
		}
	}
	if !scope.All {
		out.Partial = "you see problems of the namespaces alone whose Services you may list"
	}
	slices.SortStableFunc(out.Problems, func(a, b Problem) int {
		if a.Severity != b.Severity {
			return strings.Compare(string(a.Severity), string(b.Severity)) // error, warning
		}
		return strings.Compare(a.id(), b.id())
	})
	return out
}

// withProblems adds the path of problems, if somebody finds them.
func withProblems(c Config, scopes *scopes, to map[string]http.Handler) map[string]http.Handler {
	if c.Problems != nil {
		to[ProblemsPath] = get(problemsHandler{c, scopes})
	}
	return to
}

type problemsHandler struct {
	Config
	scopes *scopes
}

// ServeHTTP implements http.Handler.
func (h problemsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scope, err := h.scopes.of(r)
	if err != nil {
		refuseSummary(w, err)
		return
	}
	answer(w, h.problemsOf(r.Context(), scope))
}

// ProblemFinder finds problems in the state of a control plane. It must not block.
type ProblemFinder func(*Status, *catalog.Snapshot) []Problem

// problemsFor is how long problems that were found for one stream are those of others.
const problemsFor = 2 * time.Second

// problemBoard finds problems for all streams together.
type problemBoard struct {
	config Config
	mu     sync.Mutex
	found  map[string]*foundProblems
}

// foundProblems of a scope. Other instances are asked for them, which may take its time: viewers of other scopes do not wait for that.
type foundProblems struct {
	mu   sync.Mutex
	at   time.Time
	rows map[string]json.RawMessage
}

func (b *problemBoard) rows(ctx context.Context, scope summary.Scope) map[string]json.RawMessage {
	name := scope.Name()
	b.mu.Lock()
	f := b.found[name]
	if f == nil {
		if len(b.found) > maxStreams {
			clear(b.found)
		}
		f = &foundProblems{}
		b.found[name] = f
	}
	b.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at) < problemsFor {
		return f.rows
	}
	rows := map[string]json.RawMessage{}
	for _, p := range b.config.problemsOf(context.WithoutCancel(ctx), scope).Problems { // other viewers get them, too
		if data, err := json.Marshal(p); err == nil { // strings and times
			rows[p.id()] = data
		}
	}
	f.at, f.rows = time.Now(), rows
	return rows
}

// problemsTopic sends problems that begin, change and end.
type problemsTopic struct {
	board *problemBoard
	have  map[string]json.RawMessage
	began bool
}

func (t *problemsTopic) next(ctx context.Context, scope summary.Scope) (json.RawMessage, time.Duration, error) {
	rows := t.board.rows(ctx, scope)
	delta := summary.Delta{Snapshot: !t.began, Rows: map[string]json.RawMessage{}}
	for id, data := range rows {
		if string(t.have[id]) != string(data) {
			delta.Rows[id] = data
		}
	}
	for id := range t.have {
		if _, ok := rows[id]; !ok {
			delta.Gone = append(delta.Gone, id)
		}
	}
	slices.Sort(delta.Gone)
	if t.began && len(delta.Rows)+len(delta.Gone) == 0 {
		return nil, 0, nil
	}
	t.began, t.have = true, rows
	data, err := json.Marshal(delta)
	return data, 0, err
}
