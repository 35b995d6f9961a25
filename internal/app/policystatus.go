package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/federation/observed"
	"github.com/proxima-mesh/proxima/internal/federation/zones"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// observedKinds are the policies of global of which zones say what they observe, by the name of their type.
func observedKinds(kinds []local.Kind) map[string]*resource.Descriptor {
	out := map[string]*resource.Descriptor{}
	observable := observed.Kinds()
	for _, k := range kinds {
		if k.Type.Direction == federation.GlobalToZone && slices.Contains(observable, k.Descriptor) {
			out[k.Type.Name] = k.Descriptor
		}
	}
	return out
}

// policyStatuses takes what zones observe of the policies of global.
type policyStatuses struct {
	federationv1.UnimplementedPolicyStatusesServer
	zones    *zones.Zones
	recorder *observed.Recorder
}

// maxReport of a zone: its reporter sends fewer at a time.
const maxReport = 1000

// Report implements PolicyStatusesServer. The zone is that of the credential.
func (p *policyStatuses) Report(ctx context.Context, q *federationv1.PolicyReport) (*federationv1.PolicyReportTaken, error) {
	zone, err := p.zones.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(q.GetPolicies()); n > maxReport {
		return nil, status.Errorf(codes.InvalidArgument, "a report on %d policies: the limit is %d", n, maxReport)
	}
	var all []observed.Status
	for _, s := range q.GetPolicies() {
		all = append(all, observed.Status{
			Type: s.GetType(), Policy: resource.Key{Namespace: s.GetNamespace(), Name: s.GetName()}, Conditions: s.GetConditions(),
		})
	}
	var invalid *observed.InvalidError
	switch err := p.recorder.Record(ctx, zone, all); {
	case errors.As(err, &invalid):
		return nil, status.Error(codes.InvalidArgument, err.Error())
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &federationv1.PolicyReportTaken{}, nil
}

// reportTimeout bounds one report.
const reportTimeout = 10 * time.Second

// newReporter sends what this zone observes over a connection to global.
func (l *zoneLink) newReporter(conn grpc.ClientConnInterface) *observed.Reporter {
	client := federationv1.NewPolicyStatusesClient(conn)
	return observed.NewReporter(observed.ReporterConfig{
		Client: l.client, Kinds: observedKinds(l.kinds), Logger: l.log,
		Send: func(ctx context.Context, all []observed.Status) error {
			ctx, cancel := context.WithTimeout(ctx, reportTimeout)
			defer cancel()
			report := &federationv1.PolicyReport{}
			for _, s := range all {
				report.Policies = append(report.Policies, &federationv1.PolicyStatus{
					Type: s.Type, Namespace: s.Policy.Namespace, Name: s.Policy.Name, Conditions: s.Conditions,
				})
			}
			_, err := client.Report(ctx, report)
			switch status.Code(err) {
			case codes.Unimplemented: // by an older version, which shows nothing of it
				return nil
			case codes.InvalidArgument:
				l.log.Warn("global does not take what this zone observes of a policy", "error", err)
				return nil
			}
			return err
		},
	})
}
