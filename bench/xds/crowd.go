package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/proxima-mesh/proxima/bench/procstat"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// measureCrowd: numbers of sidecars connect to a control plane, each of which uses some of its
// Services; one endpoint that all of them hold changes, and one that few of them hold.
func measureCrowd(ctx context.Context, p plan, out io.Writer) error {
	dir, err := os.MkdirTemp("", "xds")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c, err := startControl(ctx, p, dir, p.services)
	if err != nil {
		return err
	}
	defer c.stop()
	most := p.sidecars[len(p.sidecars)-1]
	if err := each(most, func(i int) error {
		_, err := c.client.Create(ctx, kind.Dataplane, newDataplane(proxyName(i), proxyAddress(i), usedBy(i, p)))
		return err
	}); err != nil {
		return err
	}
	streams := newCrowd(ctx, adsMethod, clusterOf(0))
	defer streams.end()
	few := newCrowd(ctx, adsMethod, clusterOf(1))
	defer few.end()
	pid := c.cmd.Process.Pid
	empty, err := settled(ctx, pid, p.settle)
	if err != nil {
		return err
	}
	join := func(i int) {
		streams.add(c.xds, sidecarAsks(nodeID(proxyName(i)), usedBy(i, p)), grpc.WithTransportCredentials(credentials.NewTLS(c.tls)))
	}
	begin := time.Now()
	join(0) // from the first one on, the control plane keeps what proxies need
	if err := streams.wait(&streams.complete, 1); err != nil {
		return err
	}
	first := time.Since(begin)
	one, err := settled(ctx, pid, p.settle)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d services, %d of them used by each proxy, on SQLite with mutual TLS\n", p.services, p.used)
	fmt.Fprintf(out, "no proxy: %.0f MB; the first one after %s ms: %.0f MB\n", empty/1e6, ms(first), one/1e6)
	here := 1
	for _, n := range p.sidecars {
		if err := p.join(ctx, c, streams, out, here, n, join, one); err != nil {
			return err
		}
		here = n
	}
	return nil
}

// join until there are n sidecars, and measure.
func (p plan) join(ctx context.Context, c *control, streams *crowd, out io.Writer, here, n int, join func(int), one float64) error {
	pid := c.cmd.Process.Pid
	cpu, err := procstat.CPU(pid)
	if err != nil {
		return err
	}
	begin := time.Now()
	for i := here; i < n; i++ {
		join(i)
	}
	if err := streams.wait(&streams.complete, n); err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := procstat.CPU(pid)
	if err != nil {
		return err
	}
	memory, err := settled(ctx, pid, p.settle)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d more connected in %.2f s (CPU %s ms each); memory with %d: %.0f MB, %.1f kB each\n",
		n-here, took.Seconds(), ms((after-cpu)/time.Duration(n-here)), n, memory/1e6, (memory-one)/float64(n-1)/1e3)
	return p.pushes(ctx, c, streams, out, n)
}

// pushes of one endpoint that all streams hold, and of one that a few hold.
func (p plan) pushes(ctx context.Context, c *control, streams *crowd, out io.Writer, n int) error {
	pid := c.cmd.Process.Pid
	rounds := min(p.rounds, 30)
	var all times
	before, err := procstat.CPU(pid)
	if err != nil {
		return err
	}
	for round := range rounds {
		streams.changed.Store(0)
		begin := time.Now()
		if _, err := c.client.Update(ctx, kind.EndpointSlice, turned(0, n+1+round)); err != nil {
			return err
		}
		if err := streams.wait(&streams.changed, n); err != nil {
			return err
		}
		all = append(all, time.Since(begin))
	}
	after, err := procstat.CPU(pid)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "one endpoint that all %d hold: the last one has it after p50 %s, p99 %s ms; CPU %.1f µs for each update pushed\n",
		n, ms(all.quantile(0.5)), ms(all.quantile(0.99)), float64((after-before).Microseconds())/float64(rounds*n))
	before = after
	for round := range rounds { // the last Service is used by few
		if _, err := c.client.Update(ctx, kind.EndpointSlice, turned(p.services-1, n+1+round)); err != nil {
			return err
		}
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	if after, err = procstat.CPU(pid); err != nil {
		return err
	}
	fmt.Fprintf(out, "one endpoint that %d of them hold: CPU %s ms for the change and its pushes\n",
		holders(n, p), ms((after-before)/time.Duration(rounds)))
	return nil
}

// holders of the last Service among n proxies.
func holders(n int, p plan) (count int) {
	for i := range n {
		for _, s := range usedBy(i, p) {
			if s == p.services-1 {
				count++
				break
			}
		}
	}
	return count
}
