package topology

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
)

// Reasons of events about plans and parameters.
const (
	reasonNotPlanned           = "TopologyNotPlanned"
	reasonPlanned              = "TopologyPlanned"
	reasonParametersInvalid    = "TopologyParametersInvalid"
	reasonParametersUnresolved = "TopologyParametersUnresolved"
	reasonParametersValid      = "TopologyParametersValid"
)

// maxEventMessage is the limit of a message in bytes (events.k8s.io/v1, note).
const maxEventMessage = 1024

// tell writes Events of what the conditions of a Service refuse now, and of what they refused
// before and do no longer. The conditions are in the API when it is called, so that another
// leader does not write the same Events.
func (c *Controller) tell(ctx context.Context, snapshot *catalog.Snapshot, service *corev1.Service, is []metav1.Condition) {
	mode := c.modeOf(snapshot, service)
	for _, typ := range []string{ConditionPlan, ConditionParameters} {
		before := c.eventOf(mode, meta.FindStatusCondition(service.Status.Conditions, typ))
		now := c.eventOf(mode, meta.FindStatusCondition(is, typ))
		same := now.reason == before.reason && (now.reason == reasonNotPlanned || now.message == before.message)
		if now.reason != "" && !same && (now.warning || before.warning) {
			c.event(ctx, service, now)
		}
	}
}

// eventOf a condition, a warning where it refuses something. Its reason is empty where there is no
// event of it.
func (c *Controller) eventOf(mode Mode, is *metav1.Condition) event {
	if is == nil {
		return event{}
	}
	e := event{message: is.Message}
	if len(e.message) > maxEventMessage {
		e.message = strings.ToValidUTF8(e.message[:maxEventMessage], "")
	}
	switch is.Reason {
	case ReasonNotPlanned:
		e.warning, e.reason = true, reasonNotPlanned
	case ReasonPlanned:
		e.reason = reasonPlanned
	case ReasonInvalid:
		e.warning, e.reason = true, reasonParametersInvalid
	case ReasonUnresolved:
		e.warning, e.reason = true, reasonParametersUnresolved
	case ReasonValid:
		e.reason = reasonParametersValid
	case ReasonHeuristic:
		// Where hints are asked for, the event is written with them (advice.go).
		if c.config.ForeignSlices && is.Status == metav1.ConditionFalse {
			e.warning, e.reason = true, c.ruleReason(mode)
		}
	}
	return e
}

// ruleReason is the reason of the event of a heuristic without a usable answer.
func (c *Controller) ruleReason(mode Mode) string {
	if c.config.Heuristics != nil {
		if _, known := c.config.Heuristics.Find(mode.Name); known {
			return reasonFailed
		}
	}
	if strings.HasPrefix(mode.Name, meshv1alpha1.TopologyHeuristicPrefix) {
		return reasonAbsent
	}
	return reasonUnknown
}
