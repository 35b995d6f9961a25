package fromview

import (
	"errors"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// followed are the sampled changes of a response; nil: there are none.
type followed struct {
	feed    *Feed
	begin   time.Time
	typ     string
	changes []followedChange
}

type followedChange struct {
	name          string
	views, agents tracing.Parents
}

// follow the sampled changes of a response: the agent is told of them by its update. What it cannot read it leaves out. The first state
// of an agent is no change.
func (f *Feed) follow(r *stream.Response, u *node.Update) *followed {
	if f.config.Tracer == nil || len(r.Traced) == 0 || !f.synced { // only this goroutine writes synced
		return nil
	}
	out := &followed{feed: f, begin: time.Now(), typ: r.Type}
	for _, t := range r.Traced {
		views, err := tracing.ParseParents(t.Context)
		if err != nil {
			continue
		}
		c := followedChange{name: t.Name, views: views, agents: views.Children()}
		out.changes = append(out.changes, c)
		namespace, name, _ := wire.SplitName(t.Name)
		switch r.Type {
		case wire.ServiceType:
			u.Traced = append(u.Traced, proxy.Traced{Service: proxy.ServiceName{Namespace: namespace, Name: name}, Agents: c.agents})
		case wire.SliceType:
			u.Traced = append(u.Traced, proxy.Traced{Slice: proxy.SliceName{Namespace: namespace, Name: name}, Agents: c.agents})
		}
	}
	return out
}

// record the spans of this agent, once its model has the changes. refusal is why resources were not taken; empty: all were.
func (f *followed) record(refusal string) {
	if f == nil {
		return
	}
	var err error
	if refusal != "" {
		err = errors.New(refusal)
	}
	end := time.Now()
	for _, c := range f.changes {
		namespace, name, _ := wire.SplitName(c.name)
		f.feed.config.Tracer.RecordEach(c.agents, c.views, tracing.Span{
			Name: tracing.Agent, Begin: f.begin, End: end, Err: err,
			Attributes: []tracing.Attribute{
				tracing.Text(tracing.KeyNode, f.feed.config.Node), tracing.Text(tracing.KeyZone, string(f.feed.zone)),
				tracing.Text(tracing.KeyType, f.typ[strings.LastIndexByte(f.typ, '.')+1:]),
				tracing.Text(tracing.KeyNamespace, namespace), tracing.Text(tracing.KeyName, name),
			},
		})
	}
}
