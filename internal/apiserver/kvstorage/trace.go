package kvstorage

import (
	"context"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// verbs of changes in traces.
var verbs = map[WriteKind]string{OnCreate: "create", OnUpdate: "update", OnDelete: "delete"}

// trace tells the tracer of a change. It began with the request, if that is known, else with the commit.
func (s *Storage) trace(ctx context.Context, kind WriteKind, key string, rev store.Revision, began time.Time) {
	if received, ok := request.ReceivedTimestampFrom(ctx); ok {
		began = received
	}
	namespace, name, namespaced := strings.Cut(strings.TrimPrefix(key, s.pathPrefix+s.prefix[1:]), "/")
	if !namespaced {
		namespace, name = "", namespace
	}
	s.tracer.Committed(ctx, tracing.Commit{
		Object: tracing.Object{Kind: s.kind, Namespace: namespace, Name: name},
		Verb:   verbs[kind], Revision: uint64(rev), Begin: began, //nolint:gosec // revisions are positive
	})
}
