package cli

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/doctor"
	"github.com/proxima-mesh/proxima/internal/diag/refusal"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	// maxAsked proxies, so many at a time: the doctor is not to be a load.
	maxAsked    = 64
	askedAtOnce = 8
	// refusalMoment is between two readings of a proxy that has refused something.
	refusalMoment = 2 * time.Second
	// maxStatistics of one proxy in bytes.
	maxStatistics = 16 << 20
)

// Refusals implements doctor.ControlPlane. Proxies of this control plane are asked, by admins.
func (c controlPlane) Refusals(ctx context.Context, proxies []doctor.Proxy) []doctor.Refusal {
	var asked []string
	for i := range proxies {
		p := &proxies[i]
		if v := p.Status.Versions; p.Status.Online && !p.Copied && v != nil && v.Supervisor != "" && !strings.HasPrefix(p.Name, "*/") && len(asked) < maxAsked {
			asked = append(asked, p.Name)
		}
	}
	before := c.readings(ctx, asked)
	asked = nil
	for name := range before {
		asked = append(asked, name)
	}
	if len(asked) == 0 {
		return nil
	}
	select {
	case <-time.After(refusalMoment):
	case <-ctx.Done():
		return nil
	}
	var out []doctor.Refusal
	for name, now := range c.readings(ctx, asked) {
		if since := refusal.Since(before[name], now); len(since) > 0 {
			out = append(out, doctor.Refusal{Workload: name, Counts: since})
		}
	}
	if len(out) == 0 {
		return nil
	}
	c.namePolicies(ctx, out)
	return out
}

// readings of proxies that have refused something, by name.
func (c controlPlane) readings(ctx context.Context, names []string) map[string][]refusal.Count {
	out := map[string][]refusal.Count{}
	var mu sync.Mutex
	var running sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for _, name := range names {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if counts := refusalsOf(ctx, c.cfg, name); len(counts) > 0 {
				mu.Lock()
				defer mu.Unlock()
				out[name] = counts
			}
		})
	}
	running.Wait()
	return out
}

// refusalsOf a proxy since it started; none if it cannot be asked.
func refusalsOf(ctx context.Context, cfg *rest.Config, name string) []refusal.Count {
	path, err := proxyPath(admin.ProxyStatsPath, "", name)
	if err != nil {
		return nil
	}
	resp, err := send(ctx, cfg, http.MethodGet, path, nil)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	statistics, err := io.ReadAll(io.LimitReader(resp.Body, maxStatistics))
	if err != nil {
		return nil
	}
	if path, err = proxyPath(admin.ProxyStatusPath, "", name); err != nil {
		return nil
	}
	var state admin.ProxyState
	_ = callJSON(ctx, cfg, http.MethodGet, path, nil, &state) // the statistics are most of it
	return refusal.Read(statistics, state.Own)
}

// namePolicies by which workloads refuse callers.
func (c controlPlane) namePolicies(ctx context.Context, all []doctor.Refusal) {
	client, err := kubeclient.New(c.cfg, kind.All())
	if err != nil {
		return
	}
	w, err := readAccess(ctx, client)
	if err != nil {
		return
	}
	for i := range all {
		namespace, name, _ := strings.Cut(all[i].Workload, "/")
		all[i].Policies = w.refusers(resource.Key{Namespace: namespace, Name: name})
	}
}
