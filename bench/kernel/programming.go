//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

const (
	layoutName = "nft -f, its layout"
	// kernelWork is the most that one change may cost, at any size.
	kernelWork = 100e-6
)

// sides are two machines with the same services: ours, and kube-proxy's layout.
type sides struct {
	ours, theirs *machine
	mode         *nftables.Mode
}

func (s *sides) close() {
	if s.mode != nil {
		_ = s.mode.Close(context.Background())
	}
	for _, m := range []*machine{s.ours, s.theirs} {
		if m != nil {
			m.close()
		}
	}
}

func newSides(ctx context.Context) (s *sides, err error) {
	s = &sides{}
	if s.ours, err = newMachine(ctx, "pmus-ours"); err == nil {
		s.theirs, err = newMachine(ctx, "pmus-theirs")
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// begin starts our mode and hands it all services, in an empty kernel or in one
// that an earlier mode has left; when Apply returns, they are in place.
func (s *sides) begin(ctx context.Context, services []proxy.Change) (time.Duration, error) {
	begin := time.Now()
	var err error
	if s.mode, err = newNftables(s.ours.NS); err != nil {
		return 0, err
	}
	if err := s.mode.Apply(ctx, services); err != nil {
		return 0, err
	}
	return time.Since(begin), nil
}

// end stops our mode; its table stays.
func (s *sides) end(ctx context.Context) error {
	m := s.mode
	s.mode = nil
	return m.Close(ctx)
}

// programming measures installs, restarts and single changes of the nftables mode.
func (b *bench) programming(ctx context.Context) error {
	b.section("nftables: the mode alone, by netlink, compared with the text of kube-proxy's nftables mode through nft")
	for _, n := range b.services {
		if err := b.programmingOf(ctx, n); err != nil {
			return fmt.Errorf("%d services: %w", n, err)
		}
	}
	return nil
}

func (b *bench) programmingOf(ctx context.Context, n int) error {
	services, cold, warm := all(n), layoutOf(n, false), layoutOf(n, true)
	var coldOurs, coldTheirs, warmOurs, warmTheirs []float64
	rounds := b.installs
	if n > 1000 {
		rounds = (rounds + 1) / 2 // each takes the other side a minute
	}
	for round := range rounds {
		s, err := newSides(ctx)
		if err != nil {
			return err
		}
		defer s.close()
		runtime.GC()
		for _, step := range []struct {
			text         string
			ours, theirs *[]float64
		}{{cold, &coldOurs, &coldTheirs}, {warm, &warmOurs, &warmTheirs}} {
			if s.mode != nil {
				if err := s.end(ctx); err != nil {
					return err
				}
			}
			took, err := s.begin(ctx, services)
			if err != nil {
				return err
			}
			*step.ours = append(*step.ours, took.Seconds())
			if took, err = s.theirs.nft(ctx, step.text); err != nil {
				return err
			}
			*step.theirs = append(*step.theirs, took.Seconds())
		}
		if round < rounds-1 {
			s.close()
			s.mode, s.ours, s.theirs = nil, nil, nil
			continue
		}
		b.add(row{"cold: all services, 3 endpoints each", n, seconds, coldOurs, layoutName, coldTheirs, atMost(0.5)})
		b.add(row{"warm: the same over what an earlier run left", n, seconds, warmOurs, layoutName, warmTheirs, atMost(0.5)})
		return b.changesOf(ctx, s, n)
	}
	return errors.New("no rounds")
}

// step is a change on both sides; steps of a kind undo each other.
type step struct {
	ours   proxy.Change
	theirs string
}

func endpointsStep(i, from, to int) step {
	e := endpointsOf(i, from, to)
	return step{change(i, e), layoutEndpoints(i, e)}
}

// changesOf one service among n: the time of one call of the mode, of which
// kernel work is a part, is what counts.
func (b *bench) changesOf(ctx context.Context, s *sides, n int) error {
	i, added := n/2, n
	for _, c := range []struct {
		what  string
		steps [2]step
	}{
		{"one endpoint replaced", [2]step{endpointsStep(i, 1, 4), endpointsStep(i, 0, 3)}},
		{"one endpoint more, one fewer (3, 4)", [2]step{endpointsStep(i, 0, 4), endpointsStep(i, 0, 3)}},
		{"a service added, removed", [2]step{
			{change(added, endpointsOf(added, 0, 3)), layoutAdd(added, endpointsOf(added, 0, 3))},
			{removal(added), layoutRemove(added)},
		}},
	} {
		var ours, theirs []float64
		// The first time makes what later ones find.
		for round := -1; round < b.changes; round++ {
			var batch []time.Duration
			for k := range 20 {
				begin := time.Now()
				if err := s.mode.Apply(ctx, []proxy.Change{c.steps[k%2].ours}); err != nil {
					return err
				}
				batch = append(batch, time.Since(begin))
			}
			var took [2]time.Duration
			for k := range took {
				var err error
				if took[k], err = s.theirs.nft(ctx, c.steps[k].theirs); err != nil {
					return err
				}
			}
			if round >= 0 {
				ours, theirs = append(ours, middle(batch)), append(theirs, middle(took[:]))
			}
		}
		b.add(row{c.what, n, seconds, ours, layoutName, theirs, atMost(kernelWork)})
	}
	return nil
}
