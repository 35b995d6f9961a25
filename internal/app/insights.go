package app

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// insights record what this instance observes of proxies, and of certificates.
type insights struct {
	*insight.Recorder
	// runs reports whether an instance does; set before components run.
	runs func(instance string) bool
	// leader's client, which writes in its term alone.
	client resource.Client
}

func newInsights(client resource.Client, s *storage, a *api, log *slog.Logger) *insights {
	return &insights{client: client, Recorder: insight.New(insight.Config{
		Client: client, Instance: instanceName(a.address), Logger: log.With("component", "insights"), Registerer: s.metrics,
	})}
}

func (x *insights) components() []component {
	if x == nil {
		return nil
	}
	return []component{
		{Name: "insights of proxies", Run: x.Run},
		{Name: "insights of instances that are gone", Scope: leader, Run: x.lead},
	}
}

func (x *insights) lead(ctx context.Context) error { return x.Lead(ctx, x.client, x.runs) }

// runs reports whether an instance is in the list.
func (x *instances) runs(instance string) bool {
	return x.members != nil && slices.ContainsFunc(x.members.List(), func(m cluster.Member) bool { return m.Name == instance })
}

// recorded keeps the record of a certificate, and notes it in the insight of its workload.
func (x *insights) recorded(record func(context.Context, issue.Issued) error) func(context.Context, issue.Issued) error {
	return func(ctx context.Context, i issue.Issued) error {
		if err := record(ctx, i); err != nil {
			return err
		}
		if i.Workload != "" {
			x.Certified(resource.Key{Namespace: i.Namespace, Name: i.Workload}, insight.Certificate{
				Identity: i.ID.String(), Issued: time.Now(), Expiry: i.NotAfter,
			})
		}
		return nil
	}
}
