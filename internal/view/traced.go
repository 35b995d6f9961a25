package view

import (
	"time"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// followed are the sampled changes of a delta; nil: there are none.
type followed struct {
	begin   time.Time
	changes []catalog.TracedDelta
	// alone: the delta is of one object, so that all that changes in views is of it.
	alone bool
}

func (b *Builder) follow(d *catalog.Delta) *followed {
	changes, _ := d.Traced(b.config.Tracer)
	if len(changes) == 0 {
		return nil
	}
	return &followed{begin: time.Now(), changes: changes, alone: d.Len() == 1}
}

// typesOf a kind are the resources that have its name.
var typesOf = map[string][]string{
	"Service":       {wire.ServiceType, wire.NameType},
	"EndpointSlice": {wire.SliceType, wire.NameSliceType},
	"Dataplane":     {wire.WorkloadType},
	"Mesh":          {wire.MeshType},
	"ServiceExport": {wire.RemoteType, wire.OfferType},
	"ServiceImport": {wire.RemoteType, wire.OfferType},
}

// of returns which of the sampled changes a resource is of; -1: none. Changes that have an effect on resources of other names,
// as policies have, are found where nothing else changed with them.
func (f *followed) of(typ, name string) int {
	if f.alone {
		return 0
	}
	for i, c := range f.changes {
		object := wire.ResourceName(c.Object.Namespace, c.Object.Name)
		if c.Object.Namespace == "" {
			object = c.Object.Name
		}
		for _, t := range typesOf[c.Object.Kind] {
			if t == typ && object == name {
				return i
			}
		}
	}
	return -1
}

// zoneSpans are the spans of a sampled change in the view of a zone.
type zoneSpans struct {
	spans   tracing.Parents
	context string
	traces  []*delta.Trace
}

// attach the traces of sampled changes to the changes of a zone's view.
func (f *followed) attach(changes []delta.Change) []zoneSpans {
	if f == nil {
		return nil
	}
	out := make([]zoneSpans, len(f.changes))
	for i := range out {
		spans := f.changes[i].Writes.Children()
		out[i] = zoneSpans{spans: spans, context: spans.String()}
	}
	for i := range changes {
		c := &changes[i]
		if at := f.of(c.Type, c.Name); at >= 0 {
			c.Trace = &delta.Trace{Context: out[at].context}
			out[at].traces = append(out[at].traces, c.Trace)
		}
	}
	return out
}

// record the spans of changes that made a difference in the zone.
func (f *followed) record(r *tracing.Recorder, zone locality.Zone, spans []zoneSpans, err error) {
	for i, s := range spans {
		made := 0
		for _, t := range s.traces {
			if t.Made {
				made++
			}
		}
		if made == 0 {
			continue
		}
		o := f.changes[i].Object
		r.RecordEach(s.spans, f.changes[i].Writes, tracing.Span{
			Name: tracing.View, Begin: f.begin, End: time.Now(), Err: err,
			Attributes: []tracing.Attribute{
				tracing.Text(tracing.KeyZone, string(zone)), tracing.Text(tracing.KeyKind, o.Kind),
				tracing.Text(tracing.KeyNamespace, o.Namespace), tracing.Text(tracing.KeyName, o.Name),
				tracing.Number(tracing.KeyResources, int64(made)),
			},
		})
	}
}
