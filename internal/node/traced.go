package node

import (
	"errors"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// noteTraced notes the changes of an update that are followed, by the Service that they concern: called before the model takes
// the update, and after, as a slice may go, or come. a.mu is held.
func (a *Agent) noteTraced(all []proxy.Traced) {
	for _, t := range all {
		service := t.Service
		if service == (proxy.ServiceName{}) {
			s := a.model.slices[t.Slice]
			if s == nil {
				continue
			}
			service = s.Service
		}
		if a.traced == nil {
			a.traced = map[proxy.ServiceName]tracing.Parents{}
		}
		a.traced[service] = a.traced[service].Add(t.Agents)
	}
}

// recordKernel records a call of the mode, in the traces of the changes that it was for.
func (a *Agent) recordKernel(done []work, begin time.Time, err error) {
	if a.opts.Tracer == nil {
		return
	}
	type outcome struct {
		ports int64
		err   error
	}
	of := map[tracing.Parent]*outcome{}
	var perPort *proxy.PortError
	alone := errors.As(err, &perPort)
	for _, w := range done {
		for _, agent := range w.traced {
			o := of[agent]
			if o == nil {
				o = &outcome{}
				of[agent] = o
			}
			o.ports++
			if failed := err; failed != nil {
				if alone {
					failed = perPort.Failed[w.name]
				}
				o.err = errors.Join(o.err, failed)
			}
		}
	}
	end := time.Now()
	for agent, o := range of {
		a.opts.Tracer.Record(&tracing.Span{
			Name: tracing.Kernel, ID: agent.Child(), Of: agent.Span, Begin: begin, End: end, Err: o.err,
			Attributes: []tracing.Attribute{
				tracing.Text(tracing.KeyNode, a.opts.Facts.Name), tracing.Text(tracing.KeyMode, a.opts.Mode.Name()),
				tracing.Number(tracing.KeyPorts, o.ports),
			},
		})
	}
}
