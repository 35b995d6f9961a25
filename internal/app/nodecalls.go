package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/prometheus/common/expfmt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	witnessv1 "github.com/proxima-mesh/proxima/api/witness/v1"
	"github.com/proxima-mesh/proxima/internal/admin"
)

// answerCall answers a call of the control plane for what this agent has.
func (a *agent) answerCall(ctx context.Context, call *witnessv1.Call) ([]byte, error) {
	state := agentState{a}
	switch call.GetKind() {
	case witnessv1.CallKind_CALL_KIND_CONFIG:
		dump, err := state.Dump(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(dump)
	case witnessv1.CallKind_CALL_KIND_CLUSTERS:
		return json.Marshal(state.clusters())
	case witnessv1.CallKind_CALL_KIND_STATS:
		return a.stats()
	case witnessv1.CallKind_CALL_KIND_CONNECTIONS:
		open, err := openConnections(call.GetBody())
		if err != nil {
			return nil, err
		}
		return json.Marshal(admin.NodeConnections{Node: a.cfg.Name, Open: open})
	}
	return nil, status.Errorf(codes.Unimplemented, "its version does not know the question %d", call.GetKind())
}

// clusters are the service ports that are in place, without what the kernel has of them.
func (a agentState) clusters() *admin.NodeClusters {
	out := &admin.NodeClusters{Node: a.agent.agent.Status().Node, Mode: a.mode.Name(), Ports: []admin.DumpPort{}}
	for _, s := range a.agent.agent.AllStates() {
		out.Ports = append(out.Ports, admin.DumpPortOf(s))
	}
	return out
}

// stats are the metrics in the text format of Prometheus. They are those of the metrics
// port, which may be off.
func (a *agent) stats() ([]byte, error) {
	families, err := a.registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather the metrics: %w", err)
	}
	var out bytes.Buffer
	encoder := expfmt.NewEncoder(&out, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return nil, fmt.Errorf("encode metric %s: %w", f.GetName(), err)
		}
	}
	return out.Bytes(), nil
}
