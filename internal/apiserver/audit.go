package apiserver

import (
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// AuditEvent is a request over HTTP that has ended: one that writes, reads what
// Config.AuditReads names, or was refused.
type AuditEvent struct {
	Time time.Time
	// User in whose name the request was; Actor who sent it, if that is another.
	User, Actor string
	// Source addresses, the client's own last. All but the last are the
	// client's claim.
	Source []string
	Verb   string
	// Group, Resource, Subresource, Namespace and Name of what was written. A
	// request that is not for a resource has its Path only.
	Group, Resource, Subresource, Namespace, Name, Path string
	// Code is the HTTP status; Reason is set on failures.
	Code   int32
	Reason string
	// Refused: the request was rejected before its handler ran, because of its
	// credential, a missing permission or a limit.
	Refused bool
	// Details are the request's audit annotations with the prefix mesh.proxima.dev/,
	// without it.
	Details map[string]string
}

// detailPrefix marks what handlers give to the audit log among upstream's annotations.
const detailPrefix = "mesh.proxima.dev/"

// auditor hands events to a sink. It is policy and backend in one.
type auditor struct {
	sink func(AuditEvent)
	// reads are paths that are recorded when they are read.
	reads []string
}

var (
	_ audit.Backend             = auditor{}
	_ audit.PolicyRuleEvaluator = auditor{}
)

// EvaluatePolicyRule selects an event for every request, once it has ended: only then
// is it known whether a read was refused.
func (a auditor) EvaluatePolicyRule(authorizer.Attributes) audit.RequestAuditConfig {
	return audit.RequestAuditConfig{
		Level:      auditinternal.LevelMetadata,
		OmitStages: []auditinternal.Stage{auditinternal.StageRequestReceived},
	}
}

// ProcessEvents implements audit.Sink.
func (a auditor) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, e := range events {
		// Upstream processes a failed authentication when the answer begins, and no
		// more; all else when it is complete.
		unauthenticated := e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusUnauthorized
		if e.Stage == auditinternal.StageResponseStarted && !unauthenticated {
			continue
		}
		if refused := isRefused(e); refused || a.isRecorded(e) {
			a.sink(auditEvent(e, refused))
		}
	}
	return true
}

func auditEvent(e *auditinternal.Event, refused bool) AuditEvent {
	out := AuditEvent{
		Time:    e.StageTimestamp.Time,
		User:    e.User.Username,
		Source:  slices.Clone(e.SourceIPs),
		Verb:    e.Verb,
		Path:    e.RequestURI,
		Refused: refused,
	}
	if e.ImpersonatedUser != nil {
		out.Actor, out.User = out.User, e.ImpersonatedUser.Username
	}
	if ref := e.ObjectRef; ref != nil {
		out.Group, out.Resource, out.Subresource = ref.APIGroup, ref.Resource, ref.Subresource
		out.Namespace, out.Name = ref.Namespace, ref.Name
	}
	if e.ResponseStatus != nil {
		out.Code, out.Reason = e.ResponseStatus.Code, string(e.ResponseStatus.Reason)
	}
	for name, value := range e.Annotations {
		if name, ours := strings.CutPrefix(name, detailPrefix); ours {
			if out.Details == nil {
				out.Details = map[string]string{}
			}
			out.Details[name] = value
		}
	}
	return out
}

func isRefused(e *auditinternal.Event) bool {
	if e.ResponseStatus == nil {
		return false
	}
	switch e.ResponseStatus.Code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge,
		http.StatusTooManyRequests:
		return true
	}
	return false
}

// isRecorded reports whether a request that was not refused is recorded: only if it
// may have changed something. Renewals of nodes' Leases are left out, as they would
// make up most of the log.
func (a auditor) isRecorded(e *auditinternal.Event) bool {
	if !isMutating(e.Verb) {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		return slices.Contains(a.reads, path)
	}
	ref := e.ObjectRef
	if ref == nil {
		return true
	}
	switch {
	case ref.APIGroup == authorizationv1.GroupName, ref.APIGroup == authenticationv1.GroupName:
		return false // a review is a question
	case ref.APIGroup == coordinationv1.GroupName && ref.Resource == "leases" && ref.Namespace == corev1.NamespaceNodeLease:
		failed := e.ResponseStatus != nil && e.ResponseStatus.Code >= http.StatusBadRequest
		renewal := e.Verb == "update" || e.Verb == "patch"
		return failed || !renewal || !slices.Contains(e.User.Groups, user.NodesGroup)
	}
	return true
}

// Run, Shutdown and String implement audit.Backend; events are never held back.
func (a auditor) Run(<-chan struct{}) error { return nil }

// Shutdown has nothing to flush.
func (a auditor) Shutdown() {}

func (a auditor) String() string { return "proxima" }
