package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/delta/stream"
)

// ChangesPath, with a revision of the store behind it, answers how far the changes up to that revision got, as a Rollout.
const ChangesPath = "/proxima/v1/changes/"

// Rollout is how far the changes up to a revision got.
type Rollout struct {
	Revision uint64 `json:"revision"`
	// Newest revision that the instance knows, which was asked.
	Newest uint64 `json:"newest"`
	// Committed: the store has the revision. Viewed: the views that agents follow have it, at all instances that answer.
	Committed bool `json:"committed"`
	Viewed    bool `json:"viewed"`
	// Agents that follow a view; of them those that were sent all, and those that have confirmed it.
	Agents    int `json:"agents"`
	Sent      int `json:"sent"`
	Confirmed int `json:"confirmed"`
	// Slowest are agents that have not confirmed it, those with most to confirm first, at most MaxSlowest.
	Slowest []AgentRollout `json:"slowest,omitempty"`
	// Rejecting are agents that refused a part of their view since they connected, which may be of this change, at most MaxSlowest.
	Rejecting []AgentRollout `json:"rejecting,omitempty"`
	// SilentInstances of the control plane did not say how far their agents are.
	SilentInstances []string `json:"silentInstances,omitempty"`
}

// Done reports whether all agents that follow have confirmed it, as far as all instances answer.
func (r *Rollout) Done() bool {
	return r.Committed && r.Viewed && r.Confirmed == r.Agents && len(r.SilentInstances) == 0
}

// AgentRollout is an agent that has not confirmed a revision.
type AgentRollout struct {
	Node string `json:"node"`
	// Instance of the control plane that has the agent's stream; empty: the one that answers.
	Instance string    `json:"instance,omitempty"`
	Since    time.Time `json:"since"`
	// Sent: it was sent all, and has not confirmed it.
	Sent bool `json:"sent"`
	// Behind counts changes, also later ones, that it has not confirmed.
	Behind uint64 `json:"behind"`
	// Rejected is the last part of the view that it refused, and why.
	Rejected string `json:"rejected,omitempty"`
}

// MaxSlowest agents are in a Rollout.
const MaxSlowest = 20

// Views that agents follow. A *view.Builder is one.
type Views interface {
	// Since returns the sequence from which views have a revision; ok is false while they do not.
	Since(revision uint64) (sequence uint64, ok bool)
}

// errNoViews is the answer of a control plane without views of its own, or whose revisions are those of a cluster.
var errNoViews = errors.New("how far a change got is known where the control plane has agents, and a store of its own; " +
	"\"proxima top nodes\" shows how far agents are behind")

// withRollout adds the path of changes.
func withRollout(c Config, to map[string]http.Handler) map[string]http.Handler {
	to[ChangesPath] = get(rolloutHandler{c})
	return to
}

type rolloutHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h rolloutHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.Views == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, errNoViews)
		return
	}
	text := strings.TrimPrefix(r.URL.Path, ChangesPath)
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil || revision == 0 {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, fmt.Errorf("revision %.50q: use the resource version of an object, a number", text))
		return
	}
	answer(w, h.rollout(r.Context(), revision, r.Header.Get(forwardedHeader) == ""))
}

// rollout at this instance, and with others at all.
func (h rolloutHandler) rollout(ctx context.Context, revision uint64, others bool) Rollout {
	out := Rollout{Revision: revision}
	if newest, err := h.Store.Revision(ctx); err == nil && newest > 0 {
		out.Newest = uint64(newest) //nolint:gosec // positive
	}
	out.Committed = out.Newest >= revision
	sequence, viewed := h.Views.Since(revision)
	out.Viewed = viewed
	for _, s := range h.Streams.Status() {
		out.count(s, sequence, viewed)
	}
	if others {
		h.addOthers(ctx, &out)
	}
	slices.SortStableFunc(out.Slowest, func(a, b AgentRollout) int {
		return cmp.Or(cmp.Compare(b.Behind, a.Behind), cmp.Compare(a.Node, b.Node))
	})
	out.Slowest = out.Slowest[:min(len(out.Slowest), MaxSlowest)]
	out.Rejecting = out.Rejecting[:min(len(out.Rejecting), MaxSlowest)]
	return out
}

// count an agent. Its view has the revision from that sequence on.
func (r *Rollout) count(s stream.StreamStatus, sequence uint64, viewed bool) {
	sent, confirmed := viewed && len(s.Types) > 0, viewed && len(s.Types) > 0
	for _, t := range s.Types {
		sent = sent && (t.Unsent == 0 || t.Sent.Sequence >= sequence)
		confirmed = confirmed && (t.Unacked == 0 && t.Unsent == 0 || t.Confirmed.Sequence >= sequence)
	}
	a := agentStatus(s)
	row := AgentRollout{Node: a.Node, Since: a.Since, Sent: sent, Behind: a.Behind, Rejected: a.Rejected}
	r.Agents++
	if sent {
		r.Sent++
	}
	if confirmed {
		r.Confirmed++
	} else {
		r.Slowest = append(r.Slowest, row)
	}
	if row.Rejected != "" {
		r.Rejecting = append(r.Rejecting, row)
	}
}

// addOthers adds the agents of the other instances.
func (h rolloutHandler) addOthers(ctx context.Context, r *Rollout) {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	path := ChangesPath + strconv.FormatUint(r.Revision, 10)
	for got := range (others{h.Instances, h.Logger}).outcomes(ctx, http.MethodGet, path, nil) {
		var there Rollout
		if got.err != nil || got.answer == nil || got.answer.code != http.StatusOK || json.Unmarshal(got.answer.body, &there) != nil {
			r.SilentInstances = append(r.SilentInstances, got.name)
			continue
		}
		r.Viewed = r.Viewed && there.Viewed
		r.Agents, r.Sent, r.Confirmed = r.Agents+there.Agents, r.Sent+there.Sent, r.Confirmed+there.Confirmed
		for _, a := range there.Slowest {
			a.Instance = got.name
			r.Slowest = append(r.Slowest, a)
		}
		for _, a := range there.Rejecting {
			a.Instance = got.name
			r.Rejecting = append(r.Rejecting, a)
		}
	}
	slices.Sort(r.SilentInstances)
}
