package app

import (
	"cmp"
	"path"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/audit"
)

// auditTo writes what the API server audits to the logs.
func auditTo(logs *audit.Logs) func(apiserver.AuditEvent) {
	return func(e apiserver.AuditEvent) {
		r := audit.Record{
			Time: e.Time, User: e.User, Actor: e.Actor, Verb: e.Verb, Object: auditedObject(e), From: e.Source,
			Code: e.Code, Reason: e.Reason, Details: e.Details,
		}
		if e.Refused {
			logs.Refuse(r, auditSource(e))
			return
		}
		logs.Write(r)
	}
}

// auditSource is what shares a rate: a user, or an address for requests without one.
func auditSource(e apiserver.AuditEvent) string {
	if who := cmp.Or(e.Actor, e.User); who != "" && who != user.Anonymous {
		return "user " + who
	}
	if len(e.Source) == 0 {
		return ""
	}
	return audit.SourceOf(e.Source[len(e.Source)-1])
}

func auditedObject(e apiserver.AuditEvent) string {
	if e.Resource == "" {
		return e.Path
	}
	return strings.Trim(path.Join(e.Group, e.Resource, e.Namespace, e.Name, e.Subresource), "/")
}
