package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Paths of the change feed. All answer to GET. Which objects an answer may have is decided as for a request to the API: by
// the right to get an object, or to list those of a namespace.
const (
	// FeedStatusPath answers how the change feed is, as a FeedStatus.
	FeedStatusPath = "/proxima/v1/feed/status"
	// FeedHistoryPath answers with changes of objects, as a history.Answer. Query: resource and group; namespace, which is all
	// if it is left out; name; since, a moment (history.ParseMoment); limit; full=true for whole objects.
	FeedHistoryPath = "/proxima/v1/feed/history"
	// FeedStatePath answers with objects as they were: one with a name, else a list, or a Table with table=true. Query:
	// resource, group, namespace and name as for FeedHistoryPath, at (a moment), labelSelector. PositionHeader has the position.
	FeedStatePath = "/proxima/v1/feed/state"
	// FeedTailPath answers with the changes that follow a position, as a history.Answer, as soon as there is one, or after
	// FeedTailWait without any. Query as for FeedHistoryPath, where resource may be left out, with from (a moment) for since;
	// without from it answers at once with where the feed ends.
	FeedTailPath = "/proxima/v1/feed/tail"

	// PositionHeader of answers at FeedStatePath is the position of the state.
	PositionHeader = "Proxima-Position"

	// FeedTailWait is how long a request for what follows waits.
	FeedTailWait = 20 * time.Second
)

// FeedStatus is how the change feed is, as JSON at FeedStatusPath.
type FeedStatus struct {
	feed.Status
	// Begins is when the feed begins to have all changes.
	Begins time.Time `json:"begins"`
	// Gap: what was committed before is not in the feed, as it could not be written in time.
	Gap bool `json:"gap,omitempty"`
	// SinkProblems are why sinks do not deliver, by their names, at the instance that delivers.
	SinkProblems map[string]string `json:"sinkProblems,omitempty"`
	// RedactionProblems are why redactions are outstanding at this instance.
	RedactionProblems []string `json:"redactionProblems,omitempty"`
	// UnfollowedKinds are the kinds of a Kubernetes cluster that the feed cannot follow now, with the reasons; "all" is one of all.
	UnfollowedKinds map[string]string `json:"unfollowedKinds,omitempty"`
	// SegmentList has the segments in order; only at FeedStatusPath.
	SegmentList []seglog.SegmentInfo `json:"segmentList,omitempty"`
}

// feedStatus of the control plane; nil: there is no feed.
func (c *Config) feedStatus(ctx context.Context, segments bool) *FeedStatus {
	if c.History == nil {
		return nil
	}
	out := &FeedStatus{Status: c.History.Feed.Status(ctx)}
	_, out.Begins = c.History.Begins()
	list := c.History.Feed.Log.Segments()
	for i := range list {
		out.Gap = out.Gap || i > 0 && list[i].Gap
	}
	if c.Sinks != nil {
		out.SinkProblems = c.Sinks.Problems()
	}
	if c.Redactions != nil {
		out.RedactionProblems = c.Redactions.Problems()
	}
	if c.UnfollowedKinds != nil {
		out.UnfollowedKinds = c.UnfollowedKinds()
	}
	if segments {
		out.SegmentList = list
	}
	return out
}

// withFeed adds the paths of the change feed.
func withFeed(c Config, to map[string]http.Handler) map[string]http.Handler {
	to[FeedStatusPath] = get(feedHandler{c, feedStatus})
	to[FeedHistoryPath] = get(feedHandler{c, feedHistory})
	to[FeedStatePath] = get(feedHandler{c, feedState})
	to[FeedTailPath] = get(feedHandler{c, feedTail})
	to[FeedSinksPath] = sinksHandler{c}
	to[FeedRedactionsPath] = redactionsHandler{c}
	to[FeedCursorsPath] = get(feedHandler{c, feedCursors})
	to[FeedSeekPath] = seekHandler{c}
	to[FeedOffloadPath] = c.segmentsHandler(offloadSegments)
	to[FeedVerifyPath] = c.segmentsHandler(verifySegments)
	return to
}

// errNoFeed is the answer where there is no change feed.
var errNoFeed = errors.New("this control plane keeps no change feed: it was started with --feed off, with --store memory, or with --store kubernetes without --feed on; " +
	"start it with --feed on (and a store on disk), and changes are kept from then on")

type feedHandler struct {
	Config
	answer func(Config, http.ResponseWriter, *http.Request) error
}

// ServeHTTP implements http.Handler.
func (h feedHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.History == nil {
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, errNoFeed)
		return
	}
	err := h.answer(h.Config, w, r)
	var bad *badQuery
	var status apierrors.APIStatus
	var early *history.EarlyError
	var future *history.FutureError
	var expired *seglog.ExpiredError
	switch {
	case err == nil || r.Context().Err() != nil:
	case errors.As(err, &bad), errors.As(err, &future):
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
	case errors.As(err, &status):
		s := status.Status()
		refuse(w, int(s.Code), s.Reason, err)
	case errors.As(err, &early):
		refuse(w, http.StatusGone, metav1.StatusReasonExpired, err)
	case errors.As(err, &expired):
		first, begins := h.History.Begins()
		refuse(w, http.StatusGone, metav1.StatusReasonExpired, &history.EarlyError{First: first, Begins: begins})
	default:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
	}
}

func feedStatus(c Config, w http.ResponseWriter, r *http.Request) error {
	answer(w, c.feedStatus(r.Context(), true))
	return nil
}

// selection is which objects a request asks for.
type selection struct {
	// kind; nil: all.
	kind *resource.Descriptor
	// name of one object, or of a namespace with all its objects; zero: all.
	name resource.Key
}

// selectionOf a query, if the user of the request may read it.
func (c *Config) selectionOf(r *http.Request, q url.Values) (s selection, err error) {
	s.name = resource.Key{Namespace: q.Get("namespace"), Name: q.Get("name")}
	if q.Get("resource") == "" {
		return s, nil
	}
	for _, d := range kind.All() {
		if d.Resource == q.Get("resource") && d.GVK.Group == q.Get("group") {
			s.kind = d
		}
	}
	switch {
	case s.kind == nil:
		return s, &badQuery{fmt.Errorf("resource %q, group %q: there is no such kind", q.Get("resource"), q.Get("group"))}
	case !s.kind.Namespaced:
		s.name.Namespace = ""
	case s.name.Name != "" && s.name.Namespace == "":
		return s, &badQuery{fmt.Errorf("namespace: required with the name of one of %s", s.kind.Resource)}
	}
	if err := c.mayRead(r.Context(), s.kind, s.name); err != nil {
		return s, err
	}
	if !c.History.Kept(s.kind) {
		return s, &badQuery{fmt.Errorf("%s are not in the change feed, which has changes of state alone", s.kind.Resource)}
	}
	return s, nil
}

// mayRead asks whether the user of a request may get an object, or list those of a namespace, or all.
func (c *Config) mayRead(ctx context.Context, d *resource.Descriptor, name resource.Key) error {
	who, _ := request.UserFrom(ctx)
	verb := "get"
	if name.Name == "" {
		verb = "list"
	}
	decision, reason, err := c.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: who, Verb: verb, APIGroup: d.GVK.Group, APIVersion: d.GVK.Version, Resource: d.Resource,
		Namespace: name.Namespace, Name: name.Name, ResourceRequest: true,
	})
	if err == nil && decision == authorizer.DecisionAllow {
		return nil
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: d.GVK.Group, Resource: d.Resource}, name.Name,
		errors.Join(fmt.Errorf("cannot %s them in the change feed: %s", verb, reason), err))
}

// matches are the objects of a selection that the user of the request may get.
func (c *Config) matches(ctx context.Context, s selection) func(*resource.Descriptor, resource.Key) bool {
	return func(d *resource.Descriptor, name resource.Key) bool {
		return (s.kind == nil || s.kind.GVK == d.GVK) && (s.name.Name == "" || s.name.Name == name.Name) &&
			(s.name.Namespace == "" || s.name.Namespace == name.Namespace) && c.mayRead(ctx, d, name) == nil
	}
}

// questionOf a request.
func (c *Config) questionOf(r *http.Request, q url.Values) (out history.Question, err error) {
	s, err := c.selectionOf(r, q)
	if err != nil {
		return out, err
	}
	out.Match, out.Full = c.matches(r.Context(), s), q.Get("full") == "true"
	if text := q.Get("limit"); text != "" {
		if out.Limit, err = strconv.Atoi(text); err != nil || out.Limit < 1 || out.Limit > history.MaxLimit {
			return out, &badQuery{fmt.Errorf("limit %q: 1 to %d", text, history.MaxLimit)}
		}
	}
	return out, nil
}

// momentOf a field of a query, as a position.
func (c *Config) momentOf(ctx context.Context, field, text string) (seglog.Position, error) {
	m, err := history.ParseMoment(text, time.Now())
	if err != nil {
		return 0, &badQuery{fmt.Errorf("%s: %w", field, err)}
	}
	if m.Position != 0 && c.AnyInstance != nil && c.AnyInstance(ctx) {
		return 0, &badQuery{fmt.Errorf("%s %s: a position is of one replica of the control plane, and the API server asks any of them: give a time, as in 2h", field, text)}
	}
	at, err := c.History.At(ctx, m)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", field, text, err)
	}
	return at, nil
}

func feedHistory(c Config, w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	question, err := c.questionOf(r, q)
	if err != nil {
		return err
	}
	if q.Get("resource") == "" {
		return &badQuery{errors.New("resource: required, as in services")}
	}
	if since := q.Get("since"); since != "" {
		question.After, err = c.momentOf(r.Context(), "since", since)
		var early *history.EarlyError
		if err != nil && !errors.As(err, &early) { // what there is is the answer, which says when it begins
			return err
		}
	}
	out, err := c.History.History(r.Context(), question)
	if err != nil {
		return err
	}
	answer(w, out)
	return nil
}

func feedTail(c Config, w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	question, err := c.questionOf(r, q)
	if err != nil {
		return err
	}
	if q.Get("resource") == "" {
		if err := c.mayReadAny(r.Context(), q.Get("namespace")); err != nil {
			return err
		}
	}
	from := q.Get("from")
	if from == "" {
		var out history.Answer
		out.Changes = []history.Change{}
		out.First, out.Begins = c.History.Begins()
		_, out.Next = c.History.Feed.Log.End()
		answer(w, out)
		return nil
	}
	if question.After, err = c.positionOf(r.Context(), from); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), FeedTailWait)
	defer cancel()
	out, err := c.History.Follow(ctx, question)
	if err != nil {
		return err
	}
	answer(w, out)
	return nil
}

// positionOf a moment from which on a client follows. Positions are taken as they are: a client goes on after the last that it
// was given.
func (c *Config) positionOf(ctx context.Context, from string) (seglog.Position, error) {
	if n, err := strconv.ParseInt(from, 10, 64); err == nil && n >= 0 {
		return seglog.Position(n), nil
	}
	return c.momentOf(ctx, "from", from)
}

// mayReadAny refuses a user who may list no kind at all.
func (c *Config) mayReadAny(ctx context.Context, namespace string) error {
	var refused error
	for _, d := range kind.All() {
		name := resource.Key{Namespace: namespace}
		if !d.Namespaced {
			name = resource.Key{}
		}
		if refused = c.mayRead(ctx, d, name); refused == nil {
			return nil
		}
	}
	return refused
}

func feedState(c Config, w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	s, err := c.selectionOf(r, q)
	if err != nil {
		return err
	}
	if s.kind == nil || q.Get("at") == "" {
		return &badQuery{errors.New("resource and at: required, as in resource=services&at=2h")}
	}
	selector, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return &badQuery{fmt.Errorf("labelSelector %q: %w", q.Get("labelSelector"), err)}
	}
	at, err := c.momentOf(r.Context(), "at", q.Get("at"))
	if err != nil {
		return err
	}
	objects, err := c.History.State(r.Context(), s.kind, s.name, at)
	if err != nil {
		return err
	}
	matches := c.matches(r.Context(), s)
	shown := objects[:0]
	for _, obj := range objects {
		if selector.Matches(labels.Set(obj.GetLabels())) && matches(s.kind, resource.KeyOf(obj)) {
			shown = append(shown, obj)
		}
	}
	if s.name.Name != "" && len(shown) == 0 {
		return apierrors.NewNotFound(s.kind.GroupResource(), s.name.Name+" at "+q.Get("at"))
	}
	return c.answerState(w, r, s, at, shown)
}

func (c *Config) answerState(w http.ResponseWriter, r *http.Request, s selection, at seglog.Position, objects []resource.Object) error {
	w.Header().Set(PositionHeader, strconv.FormatInt(int64(at), 10))
	if r.URL.Query().Get("table") == "true" {
		table, err := c.History.Objects.Table(r.Context(), s.kind, objects)
		if err != nil {
			return err
		}
		answer(w, table)
		return nil
	}
	items := make([]json.RawMessage, len(objects))
	for i, obj := range objects {
		var err error
		if items[i], err = c.History.Encode(s.kind, obj); err != nil {
			return err
		}
	}
	if s.name.Name != "" {
		answer(w, items[0])
		return nil
	}
	answer(w, map[string]any{
		"apiVersion": s.kind.GVK.GroupVersion().String(), "kind": s.kind.GVK.Kind + "List",
		"metadata": map[string]any{"resourceVersion": strconv.FormatInt(int64(at), 10)}, "items": items,
	})
	return nil
}
