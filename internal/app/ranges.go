package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// rangesPatience is how long the start of an agent waits for an API that may be
// away; then it goes by what it was told the last time.
const rangesPatience = 3 * time.Second

// learnRanges asks the control plane for the ranges of virtual addresses: those of
// its ServiceCIDRs, which are fixed at its first start and need not be the ones
// of anybody's flags today. They are kept for a start without a control plane.
func (a *agent) learnRanges(ctx context.Context) error {
	file := filepath.Join(a.dir(), "ranges.json")
	ranges, err := a.fetchRanges(ctx)
	if err == nil {
		data, err := json.Marshal(ranges)
		if err != nil {
			return err
		}
		a.cfg.ServiceCIDRs = ranges
		return replaceFile(file, data)
	}
	a.log.Warn("the control plane did not tell the service ranges, the last known ones hold", "error", err)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the flags hold
	}
	if err == nil {
		err = json.Unmarshal(data, &ranges)
	}
	if err != nil {
		return fmt.Errorf("service ranges in %s: %w", file, err)
	}
	a.cfg.ServiceCIDRs = ranges
	return nil
}

func (a *agent) fetchRanges(ctx context.Context) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, rangesPatience)
	defer cancel()
	client, err := kubeclient.New(a.restConfig(), []*resource.Descriptor{kind.ServiceCIDR()})
	if err != nil {
		return nil, err
	}
	list, _, err := client.List(ctx, kind.ServiceCIDR(), resource.ListOptions{})
	if err != nil {
		return nil, err
	}
	ranges := []netip.Prefix{}
	for _, obj := range list {
		for _, text := range obj.(*networkingv1.ServiceCIDR).Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("servicecidr %s: %w", obj.GetName(), err)
			}
			if !slices.Contains(ranges, p) {
				ranges = append(ranges, p)
			}
		}
	}
	return ranges, nil
}
