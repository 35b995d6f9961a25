package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// measureCost of one endpoint change as the number of Services grows: from the tables to the response
// of the stream that holds it.
func measureCost(ctx context.Context, p plan, out io.Writer) error {
	for _, size := range p.sizes {
		if err := costOf(ctx, p, size, out); err != nil {
			return err
		}
	}
	return nil
}

func costOf(ctx context.Context, p plan, size int, out io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	p.services, p.used = size, min(p.used, size/2)
	objects := memory.New(kind.All()...)
	for i := range size {
		if err := objects.Put(newService(i), turned(i, 0)); err != nil {
			return err
		}
	}
	if err := objects.Put(newDataplane(proxyName(0), proxyAddress(0), usedBy(0, p))); err != nil {
		return err
	}
	tables := catalog.New(catalog.Config{Client: objects, Descriptors: kind.All()})
	b := build.NewBuilder(build.Config{Site: "local"})
	sub := tables.Subscribe(build.Tables()...)
	defer sub.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = tables.Run(ctx)
	}()
	defer func() { end(); <-ended }()
	if err := tables.WaitSynced(ctx); err != nil {
		return err
	}
	d, err := sub.Next(ctx)
	if err != nil {
		return err
	}
	b.Apply(&d, nil)
	c, err := b.Connect(catalog.Key{Namespace: namespace, Name: proxyName(0)}, build.Sidecar)
	if err != nil {
		return err
	}
	defer c.Close(nil)
	s := delta.NewLayered(c.Config)
	defer s.Close()
	a := sidecarAsks(nodeID(proxyName(0)), usedBy(0, p))
	for _, typ := range a.types {
		if err := s.Step(delta.Request{Type: typ, Subscribe: a.names[typ]}); err != nil {
			return err
		}
	}
	if _, err := drainSession(s); err != nil {
		return err
	}
	var took times
	var bytes, allocated, count uint64
	for round := range p.rounds {
		if err := objects.Put(turned(0, 1+round)); err != nil {
			return err
		}
		d, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begin := time.Now()
		b.Apply(&d, nil)
		sent, err := drainSession(s)
		took = append(took, time.Since(begin))
		runtime.ReadMemStats(&after)
		if err != nil {
			return err
		}
		bytes += uint64(sent)
		allocated += after.TotalAlloc - before.TotalAlloc
		count += after.Mallocs - before.Mallocs
	}
	n := uint64(p.rounds)
	fmt.Fprintf(out, "%6d services: %d bytes sent, %d allocations of %.1f kB, p50 %.0f µs\n",
		size, bytes/n, count/n, float64(allocated/n)/1e3, float64(took.quantile(0.5).Nanoseconds())/1e3)
	return nil
}

// drainSession takes and acknowledges all responses, and returns their bytes.
func drainSession(s *delta.Layered) (bytes int, err error) {
	for {
		f, wake := s.Next(time.Now())
		if f == nil {
			if wake.IsZero() {
				return bytes, nil
			}
			continue
		}
		bytes += len(f.Data)
		r, err := wire.ParseResponse(f.Data)
		if err == nil {
			err = s.Step(delta.Request{Type: r.TypeURL, Nonce: r.Nonce})
		}
		if err != nil {
			return bytes, err
		}
	}
}
