package admin

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/proxima-mesh/proxima/internal/plot"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

const (
	// PlotZonesPath draws the traffic between zones. Query of all drawings: format, svg (default) or json, which is the geometry as a
	// plot.Drawing.
	PlotZonesPath = "/proxima/v1/plot/zones"
	// PlotServicePath draws one Service. Query: namespace, name.
	PlotServicePath = "/proxima/v1/plot/service"
	// PlotHistoryPath draws a series. Query: those of SeriesPath.
	PlotHistoryPath = "/proxima/v1/plot/history"
)

// plotHandler draws, on the instance that has the sums.
type plotHandler struct {
	Config
	scopes *scopes
	draw   func(*summary.Table, summary.Scope, url.Values) (*plot.Drawing, error)
}

// ServeHTTP implements http.Handler.
func (h plotHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A browser that opens a drawing runs and loads nothing, whichever instance drew it.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	scope, err := h.scopes.of(r)
	if err != nil {
		refuseSummary(w, err)
		return
	}
	format := r.URL.Query().Get("format")
	if format != "" && format != "svg" && format != "json" {
		refuseSummary(w, &badQuery{fmt.Errorf("format %.50q: use svg or json", format)})
		return
	}
	table := h.Sums()
	if table == nil {
		h.elsewhereWithin(w, r, scope)
		return
	}
	drawing, err := h.draw(table, scope, r.URL.Query())
	if err != nil {
		refuseSummary(w, err)
		return
	}
	if format == "json" {
		answer(w, drawing)
		return
	}
	w.Header().Set("Content-Type", "image/svg+xml")
	_, _ = w.Write(drawing.SVG()) // the client may be gone
}

func plotZones(t *summary.Table, scope summary.Scope, _ url.Values) (*plot.Drawing, error) {
	zones, err := t.Zones(scope)
	if err != nil {
		return nil, err
	}
	return plot.Zones(zones), nil
}

func plotService(t *summary.Table, scope summary.Scope, q url.Values) (*plot.Drawing, error) {
	key, err := keyOf(q)
	if err != nil {
		return nil, err
	}
	zones, err := t.Zones(scope)
	if err != nil {
		return nil, err
	}
	d, ok := t.Detail(scope, key)
	if !ok {
		return nil, &topology.UnknownError{What: "service", Name: key.String()}
	}
	regions := map[string]string{}
	for i := range zones.Zones {
		regions[string(zones.Zones[i].Name)] = string(zones.Zones[i].Region)
	}
	return plot.Service(d, regions), nil
}

func plotHistory(t *summary.Table, scope summary.Scope, q url.Values) (*plot.Drawing, error) {
	series, err := seriesIn(t, scope, q)
	if err != nil {
		return nil, err
	}
	name := ""
	if q.Has("name") {
		name = q.Get("namespace") + "/" + q.Get("name")
	}
	return plot.History(&series, name), nil
}
