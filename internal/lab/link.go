package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/lab/relay"
)

// Quality of the path between two places. The zero value is what the computer has: no delay
// to speak of, no loss.
type Quality struct {
	// Delay in each direction: a round trip takes twice as long.
	Delay time.Duration
	// Loss is the share of packets that are dropped in each direction, 0 to 1.
	Loss float64
}

// linkState is a path with a quality of its own.
type linkState struct {
	// From and To are zones or machines, as they were named.
	From string `json:"from"`
	To   string `json:"to"`
	// DelayNanoseconds and Loss as in Quality.
	DelayNanoseconds int64   `json:"delayNanoseconds"`
	Loss             float64 `json:"loss"`
	// Index is the number in the names of device, table of routes and process.
	Index int `json:"index"`
}

func (k linkState) device() string  { return "relay" + strconv.Itoa(k.Index) }
func (k linkState) process() string { return "link-" + strconv.Itoa(k.Index) }
func (k linkState) table() int      { return linkTable + k.Index }
func (k linkState) ends() [2]string { return [2]string{k.From, k.To} }

// linkTable is the first of the tables of routes that links use, beyond those of the kernel
// (rt_tables).
const linkTable = 1000

// Link gives the path between two places a delay and a loss, or the zero Quality the one that
// it had. The places are two zones, a zone and the control plane, or machines of different
// zones. A process of the lab relays the packets; it ends with the lab.
func (l *Lab) Link(ctx context.Context, a, b string, q Quality) error {
	ends, err := l.spec.path(a, b)
	if err != nil {
		return err
	}
	if ends[0].zone == ends[1].zone {
		return fmt.Errorf("%s and %s are in one zone: a path between zones can have a delay and a loss", a, b)
	}
	cfg := relay.Config{Device: "relay", Delay: q.Delay, Loss: q.Loss}
	if err := cfg.Check(); err != nil {
		return err
	}
	if l.ns.open[core] == nil {
		return errNoRouter
	}
	if old, ok := l.kept.link(a, b); ok {
		if err := l.unlink(ctx, old); err != nil {
			return err
		}
	}
	if q == (Quality{}) {
		return nil
	}
	k := linkState{From: a, To: b, DelayNanoseconds: int64(q.Delay), Loss: q.Loss, Index: l.kept.freeLink()}
	if err := l.kept.change(func(s *state) { s.Links = append(s.Links, k) }); err != nil {
		return err
	}
	if err := l.startLink(ctx, k); err != nil {
		return errors.Join(err, l.unlink(context.WithoutCancel(ctx), k))
	}
	return nil
}

var errNoRouter = errors.New("the router between the zones is gone: take the lab down and up again")

// startLink starts the relay of a path and sends the path's packets to it.
func (l *Lab) startLink(ctx context.Context, k linkState) error {
	router := l.ns.open[core]
	p, err := l.start(k.process(), router, "lab", "relay", "--device", k.device(),
		"--delay", time.Duration(k.DelayNanoseconds).String(), "--loss", formatLoss(k.Loss))
	if err != nil {
		return err
	}
	l.started = append(l.started, p)
	if err := p.ready(ctx); err != nil {
		return err
	}
	if err := router.SetLinkUp(k.device(), true); err != nil {
		return err
	}
	// What comes from the relay has a source that leads elsewhere.
	if err := router.SetSysctl("net.ipv4.conf."+k.device()+".rp_filter", "0"); err != nil {
		return err
	}
	return l.eachPair(k, func(a, b netip.Prefix) error { return router.Divert(a, b, k.device(), k.table()) })
}

// unlink ends a relay and what led to it.
func (l *Lab) unlink(ctx context.Context, k linkState) error {
	router := l.ns.open[core]
	err := l.eachPair(k, func(a, b netip.Prefix) error { return router.EndDivert(a, b, k.device(), k.table()) })
	if err != nil {
		return err
	}
	if pid := l.kept.process(k.process()); router.Holds(pid) {
		if err := router.KillProcess(ctx, pid); err != nil {
			return err
		}
	}
	return l.kept.change(func(s *state) {
		s.Links = slices.DeleteFunc(s.Links, func(o linkState) bool { return o.Index == k.Index })
		delete(s.Processes, k.process())
	})
}

// eachPair of ranges of one family at the two ends of a path.
func (l *Lab) eachPair(k linkState, do func(a, b netip.Prefix) error) error {
	ends, err := l.spec.path(k.From, k.To)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range l.spec.networks(ends[0]) {
		for _, b := range l.spec.networks(ends[1]) {
			if a.Addr().Is4() == b.Addr().Is4() {
				errs = append(errs, do(a.Masked(), b.Masked()))
			}
		}
	}
	return errors.Join(errs...)
}

// healLinks starts relays that died.
func (l *Lab) healLinks(ctx context.Context) error {
	for _, k := range l.kept.links() {
		if err := l.revive(k.process(), l.ns.open[core], func() error { return l.startLink(ctx, k) }); err != nil {
			return err
		}
	}
	return nil
}

func formatLoss(loss float64) string { return strconv.FormatFloat(loss*100, 'g', -1, 64) + "%" }

// LinkStatus is a path with a delay or a loss.
type LinkStatus struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Delay in each direction, as "20ms".
	Delay string `json:"delay"`
	// Loss of packets in each direction, as "0.1%".
	Loss string `json:"loss"`
	// Relay is running or dead: without it the path has neither delay nor loss.
	Relay string `json:"relay"`
}

func (l *Lab) linkStatus() []LinkStatus {
	var out []LinkStatus
	for _, k := range l.kept.links() {
		out = append(out, LinkStatus{
			From: k.From, To: k.To, Delay: time.Duration(k.DelayNanoseconds).String(), Loss: formatLoss(k.Loss),
			Relay: l.running(k.process(), l.ns.open[core]),
		})
	}
	return out
}

// Relay runs the relay of a path in the namespace of this process until ctx ends.
func Relay(ctx context.Context, device string, q Quality, ready func()) error {
	return relay.Run(ctx, relay.Config{Device: device, Delay: q.Delay, Loss: q.Loss, Seed: uint64(os.Getpid()), Ready: ready})
}
