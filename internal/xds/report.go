package xds

import (
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// reporter implements delta.Reporter for a stream: its log, its metrics, and the Observer.
type reporter struct{ *stream }

// Acked implements delta.Reporter.
func (r reporter) Acked(typ string, names []string) {
	if o := r.server.config.Observer; o != nil {
		o.Acked(r.info.Client.Subject(), r.info.ID, typ, names)
	}
}

// Nacked implements delta.Reporter.
func (r reporter) Nacked(typ string, names []string, reason string) {
	r.nacked.Store(true)
	r.server.metrics.rejected(typ)
	r.server.config.Log.Warn("configuration refused by proxy", "client", r.info.Client, "type", typ, "reason", reason)
	if o := r.server.config.Observer; o != nil {
		o.Nacked(r.info.Client.Subject(), r.info.ID, typ, names, insight.Rejection{Error: reason})
	}
}

// Refused implements delta.Reporter.
func (r reporter) Refused(one delta.Quarantined, alone bool) {
	r.server.config.Log.Error("resource is refused by proxies, and not sent any more; the last good version stays",
		"client", r.info.Client, "type", one.Type, "name", one.Name, "version", one.Version, "this_proxy_alone", alone, "reason", one.Reason)
}

// Withheld implements delta.Reporter.
func (r reporter) Withheld(one delta.Quarantined) {
	r.nacked.Store(true)
	if o := r.server.config.Observer; o != nil {
		o.Withheld(r.info.Client.Subject(), r.info.ID, one.Type, one.Name, insight.Rejection{Error: one.Reason})
	}
}

// Released implements delta.Reporter.
func (r reporter) Released(ref delta.Ref) {
	if o := r.server.config.Observer; o != nil {
		o.Released(r.info.Client.Subject(), r.info.ID, ref.Type, ref.Name)
	}
}
