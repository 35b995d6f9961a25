//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

const (
	megabytesAtMost = 100
	// bytesPerEndpoint may come on top of that.
	bytesPerEndpoint = 400
	idlePercent      = 1
)

// agents are the clusters that are measured in turns: few services and many, with
// our agent, and with kube-proxy if there is one.
type agents struct {
	few, many           *cluster
	theirFew, theirMany *cluster // nil: no kube-proxy
}

func (a *agents) all() []*cluster {
	out := []*cluster{a.few, a.many}
	if a.theirMany != nil {
		out = append(out, a.theirFew, a.theirMany)
	}
	return out
}

// ofMany are those that have many services.
func (a *agents) ofMany() []*cluster {
	if a.theirMany != nil {
		return []*cluster{a.many, a.theirMany}
	}
	return []*cluster{a.many}
}

func (a *agents) end() {
	for _, c := range []*cluster{a.few, a.many, a.theirFew, a.theirMany} {
		if c != nil {
			c.end()
		}
	}
}

// agent measures whole agents, each with its own control plane on SQLite.
func (b *bench) agent(ctx context.Context) error {
	b.section("Agents: processes in nftables mode, each with a control plane on SQLite, 3 endpoints a service")
	if b.kubeProxy == "" {
		b.note("kube-proxy itself is skipped: KUBE_PROXY does not name a binary of it")
	}
	a := &agents{}
	defer a.end()
	for _, c := range []struct {
		to        **cluster
		kubeProxy string
		services  int
	}{{&a.few, "", b.agents[0]}, {&a.many, "", b.agents[1]}, {&a.theirFew, b.kubeProxy, b.agents[0]}, {&a.theirMany, b.kubeProxy, b.agents[1]}} {
		if c.kubeProxy == "" && c.to != &a.few && c.to != &a.many {
			continue
		}
		var err error
		if *c.to, err = newCluster(ctx, b.binary, c.kubeProxy, c.services); err != nil {
			return err
		}
		if err := (*c.to).run(); err != nil {
			return err
		}
		if _, err := (*c.to).reaction(ctx); err != nil {
			return err
		}
	}
	for _, measure := range []func(context.Context, *agents) error{b.react, b.idleOf, b.warmRestart, b.coldStart, b.memory} {
		if err := measure(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// beside are kube-proxy's figures, if there are any.
func (a *agents) beside(theirs []float64) (string, []float64) {
	if a.theirMany == nil {
		return "", nil
	}
	return "kube-proxy", theirs
}

// react measures from a slice's write to the new endpoint's answer.
func (b *bench) react(ctx context.Context, a *agents) error {
	const batch = 3
	took := map[*cluster][]float64{}
	for round := range b.reactions {
		for _, c := range a.all() {
			n := batch
			if c.kubeProxy != "" {
				// It gathers changes for a second after one: it gets that time.
				if n = 1; round%batch != 0 {
					continue
				}
				if err := pause(ctx, 1100*time.Millisecond); err != nil {
					return err
				}
			}
			var times []time.Duration
			for range n {
				// Apart from each other, as changes of an idle service are.
				if err := pause(ctx, 50*time.Millisecond); err != nil {
					return err
				}
				d, err := c.reaction(ctx)
				if err != nil {
					return err
				}
				times = append(times, d)
			}
			took[c] = append(took[c], middle(times))
		}
	}
	const what = "slice written to new backend's answer, p50"
	for _, pair := range [][2]*cluster{{a.few, a.theirFew}, {a.many, a.theirMany}} {
		name, theirs := a.beside(took[pair[1]])
		b.add(row{what, pair[0].services, seconds, took[pair[0]], name, theirs, atMost(0.01)})
	}
	b.add(row{what, a.many.services, seconds, took[a.many], fmt.Sprintf("%d services", a.few.services), took[a.few], ratioAtMost(1.5)})
	return nil
}

// idleOf agents with many services: CPU while nothing happens.
func (b *bench) idleOf(ctx context.Context, a *agents) error {
	if err := pause(ctx, b.settle); err != nil {
		return err
	}
	before := map[*cluster]float64{}
	var err error
	for _, c := range a.ofMany() {
		if before[c], err = c.agent.cpu(); err != nil {
			return err
		}
	}
	if err := pause(ctx, b.idle); err != nil {
		return err
	}
	used := map[*cluster][]float64{}
	resident := map[*cluster][]float64{}
	for _, c := range a.ofMany() {
		after, err := c.agent.cpu()
		if err != nil {
			return err
		}
		used[c] = []float64{100 * (after - before[c]) / b.idle.Seconds()}
		memory, err := c.agent.status("VmRSS")
		if err != nil {
			return err
		}
		resident[c] = []float64{memory}
	}
	name, theirs := a.beside(used[a.theirMany])
	b.add(
		row{fmt.Sprintf("CPU of one core while idle, over %s", b.idle), a.many.services, percent, used[a.many], name, theirs,
			atMost(idlePercent)},
	)
	name, theirs = a.beside(resident[a.theirMany])
	b.add(
		row{fmt.Sprintf("resident memory, %d endpoints", 3*a.many.services), a.many.services, megabytes, resident[a.many], name, theirs, nil})
	return nil
}

// warmRestart kills agents under traffic and starts them again, on the kernel's
// rules and the state on disk; meanwhile one slice was written.
func (b *bench) warmRestart(ctx context.Context, a *agents) error {
	caught := map[*cluster][]float64{}
	var ready, cpu []float64
	made, lost := 0, 0
	for range b.restarts {
		for _, c := range a.ofMany() {
			l := c.startLoad(ctx)
			begin, err := c.restart(ctx)
			if err == nil && c == a.many {
				var d time.Duration
				if d, err = c.agent.ready(ctx); err == nil {
					ready = append(ready, d.Seconds())
					var used float64
					used, err = c.agent.cpu()
					cpu = append(cpu, used)
				}
			}
			if err == nil {
				err = c.awaitMoved(ctx)
			}
			took := time.Since(begin)
			n, failed, first := l.end()
			if err != nil {
				return err
			}
			caught[c] = append(caught[c], took.Seconds())
			if c == a.many {
				made, lost = made+n, lost+failed
				if first != nil {
					b.note("a new connection failed: %v", first)
				}
			}
		}
	}
	n := a.many.services
	b.add(row{"warm restart: process started to serving", n, seconds, ready, "its CPU until then", cpu, atMost(0.5)})
	name, theirs := a.beside(caught[a.theirMany])
	b.add(row{"warm restart: to a change made meanwhile", n, seconds, caught[a.many], name, theirs, nil})
	b.add(row{fmt.Sprintf("warm restart: new connections that failed, of %d", made), n, count, []float64{float64(lost)}, "", nil, atMost(0)})
	return nil
}

// restart kills the agent, writes a slice and starts it again.
func (c *cluster) restart(ctx context.Context) (begin time.Time, err error) {
	c.agent.kill()
	if err := c.move(ctx); err != nil {
		return begin, err
	}
	begin = time.Now()
	return begin, c.run()
}

// coldStart starts agents in an empty kernel and without a state on disk.
func (b *bench) coldStart(ctx context.Context, a *agents) error {
	took := map[*cluster][]float64{}
	for range b.restarts {
		for _, c := range a.ofMany() {
			c.agent.kill()
			if err := c.forget(ctx); err != nil {
				return err
			}
			begin := time.Now()
			if err := c.run(); err != nil {
				return err
			}
			if err := c.await(ctx, vip(c.services-1), netip.Addr.IsValid); err != nil {
				return err
			}
			took[c] = append(took[c], time.Since(begin).Seconds())
		}
	}
	name, theirs := a.beside(took[a.theirMany])
	b.add(row{"cold start: process started to the last service", a.many.services, seconds, took[a.many], name, theirs, nil})
	return nil
}

// memory of our agent with as many endpoints, of many services and of a tenth of
// them.
func (b *bench) memory(ctx context.Context, a *agents) error {
	if a.theirMany != nil {
		a.theirMany.end()
		a.theirMany = nil
	}
	if err := b.memoryOf(ctx, a.many, b.perLarge); err != nil {
		return err
	}
	c, err := newCluster(ctx, b.binary, "", b.agents[1]/10)
	if err != nil {
		return err
	}
	defer c.end()
	if err := c.run(); err != nil {
		return err
	}
	return b.memoryOf(ctx, c, 10*b.perLarge)
}

func (b *bench) memoryOf(ctx context.Context, c *cluster, perService int) error {
	if err := c.each(ctx, func(i int) error { return c.put(ctx, slice(i, endpointsOf(i, 0, perService))) }); err != nil {
		return err
	}
	if _, err := c.reaction(ctx); err != nil { // in place, all of them
		return err
	}
	if err := b.residentOf(ctx, c, perService, "they came one by one"); err != nil {
		return err
	}
	if _, err := c.restart(ctx); err != nil {
		return err
	}
	if err := c.awaitMoved(ctx); err != nil {
		return err
	}
	return b.residentOf(ctx, c, perService, "a restart")
}

// residentOf an agent, once a burst is over. Pages of the program's file are part
// of what Linux calls resident; they are shown apart, as they are nobody's alone.
func (b *bench) residentOf(ctx context.Context, c *cluster, perService int, after string) error {
	if err := pause(ctx, b.settle); err != nil {
		return err
	}
	figures := map[string][]float64{}
	for _, name := range []string{"VmRSS", "RssFile", "VmHWM"} {
		v, err := c.agent.status(name)
		if err != nil {
			return err
		}
		figures[name] = []float64{v}
	}
	endpoints := c.services * perService
	limit := megabytesAtMost + float64(endpoints)*bytesPerEndpoint/1e6
	b.add(
		row{fmt.Sprintf("memory, %d endpoints, after %s", endpoints, after), c.services, megabytes, figures["VmRSS"],
			"pages of its file", figures["RssFile"], atMost(limit)},
	)
	b.add(row{"  the most there was", c.services, megabytes, figures["VmHWM"], "", nil, nil})
	return nil
}
