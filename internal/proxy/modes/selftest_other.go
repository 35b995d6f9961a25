//go:build !linux

package modes

import (
	"context"

	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
)

// EstimateLayer says that there is no layer on this system.
func EstimateLayer(ctx context.Context, _ []string, mode, dir string) ebpf.Estimate {
	return MeasureLayer(ctx, mode, dir)
}

// MeasureLayer says that there is no layer on this system.
func MeasureLayer(context.Context, string, string) ebpf.Estimate {
	return ebpf.Estimate{Unavailable: ebpf.Check(ebpf.Options{}).Error()}
}
