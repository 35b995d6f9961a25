package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/follow"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	// rangesPatience is how long the first start of an agent waits for an API that may
	// be away; then it goes by its flags.
	rangesPatience = 3 * time.Second
	// rangesRetry and rangesRetryMax bound the pause before a watch of the ranges
	// is taken up again.
	rangesRetry    = time.Second
	rangesRetryMax = 30 * time.Second
)

// learnRanges finds the ranges of virtual addresses: those of the control plane's
// ServiceCIDRs, which are fixed at its first start and need not be the ones of
// anybody's flags today. Those of the last run hold at once; followRanges hears of
// others. Only who has none waits for the control plane, and goes by the flags if
// it is away.
func (a *agent) learnRanges(ctx context.Context) error {
	kept, damage := a.keptRanges()
	if len(kept) > 0 {
		a.cfg.ServiceCIDRs = kept
		return nil
	}
	ranges, err := a.fetchRanges(ctx)
	if err == nil {
		a.cfg.ServiceCIDRs = ranges
		if err := a.keepRanges(ranges); err != nil {
			a.log.Error("service ranges not saved, a start without the control plane would not know them", "file", a.rangesFile(), "error", err)
		}
		return nil
	}
	if damage != nil {
		return fmt.Errorf("service ranges in %s: %w; and the control plane did not tell them: %w", a.rangesFile(), damage, err)
	}
	a.log.Warn("the control plane did not tell the service ranges, those of the flags hold", "error", err)
	return nil
}

// keptRanges are those of the last run; nil: none are kept.
func (a *agent) keptRanges() ([]netip.Prefix, error) { return readRanges(a.rangesFile()) }

// KeptRanges are the service ranges that the agent of a data directory keeps on
// disk; nil: none are kept.
func KeptRanges(dataDir string) ([]netip.Prefix, error) {
	return readRanges(filepath.Join(dataDir, "node", rangesFile))
}

// rangesFile in the agent's directory.
const rangesFile = "ranges.json"

func readRanges(file string) (ranges []netip.Prefix, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &ranges)
	}
	if err != nil || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return !p.IsValid() }) {
		return nil, cmp.Or(err, errors.New("an empty prefix"))
	}
	return ranges, nil
}

// forgetRanges that another control plane told.
func (a *agent) forgetRanges() error {
	if err := os.Remove(a.rangesFile()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (a *agent) rangesFile() string { return filepath.Join(a.dir(), rangesFile) }

func (a *agent) keepRanges(ranges []netip.Prefix) error {
	data, err := json.Marshal(ranges)
	if err != nil {
		return err
	}
	err = atomicfile.Write(a.rangesFile(), data, 0o600)
	a.unsaved.note(a.rangesFile(), err)
	return err
}

func (a *agent) fetchRanges(ctx context.Context) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, rangesPatience)
	defer cancel()
	client, err := kubeclient.New(a.restConfig(), []*resource.Descriptor{kind.ServiceCIDR})
	if err != nil {
		return nil, err
	}
	list, _, err := client.List(ctx, kind.ServiceCIDR, resource.ListOptions{})
	if err != nil {
		return nil, err
	}
	return rangesOf(list)
}

// rangesOf lists the ranges of ServiceCIDRs, each once, in an order that does not
// depend on theirs.
func rangesOf(list []resource.Object) ([]netip.Prefix, error) {
	ranges := []netip.Prefix{}
	for _, obj := range list {
		for _, text := range obj.(*networkingv1.ServiceCIDR).Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("servicecidr %s: %w", obj.GetName(), err)
			}
			ranges = append(ranges, p)
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return slices.Compact(ranges), nil
}

// followRanges puts ranges to use that come and go while the agent runs, until
// ctx ends. A Service may have an address of a new one a moment later.
func (a *agent) followRanges(client resource.Client) func(context.Context) error {
	return func(ctx context.Context) error {
		known := map[string]resource.Object{}
		return follow.Run(ctx, follow.Config{
			Client: client, Kind: kind.ServiceCIDR, Logger: a.log, Level: slog.LevelDebug,
			Pause: follow.Pause{First: rangesRetry, Last: rangesRetryMax},
		}, func(c follow.Change) error {
			if c.Lost != nil {
				return nil // the last ones hold
			}
			if c.Fresh {
				clear(known)
			}
			for _, obj := range c.Set {
				known[obj.GetName()] = obj
			}
			if c.Removed != nil {
				delete(known, c.Removed.GetName())
			}
			ranges, err := rangesOf(slices.Collect(maps.Values(known)))
			if err != nil {
				return err
			}
			return a.useRanges(ranges)
		})
	}
}

// useRanges hands changed ranges to those who work by them. None at all is not
// taken for an answer: a control plane that serves has at least one.
func (a *agent) useRanges(ranges []netip.Prefix) error {
	switch {
	case len(ranges) == 0:
		return nil
	case slices.Equal(ranges, a.cfg.ServiceCIDRs):
		if a.unsaved.has(a.rangesFile()) {
			return a.keepRanges(ranges)
		}
		return nil
	}
	if mode, ok := a.mode.(proxy.Ranged); ok {
		if err := mode.SetRanges(ranges); err != nil {
			a.log.Error("service ranges not put to use; it is tried again", "ranges", ranges, "error", err)
			return err
		}
	}
	if a.dns.server != nil {
		a.dns.server.SetServiceCIDRs(ranges)
	}
	a.log.Info("service ranges changed", "ranges", ranges)
	a.cfg.ServiceCIDRs = ranges
	return a.keepRanges(ranges)
}
