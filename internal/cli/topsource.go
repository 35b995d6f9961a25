package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// topSorts are the orders of each view; the first is the default.
var topSorts = map[string][]string{
	"zones":    {"demand", "name", "in-zone", "worst", "cost", "endpoints"},
	"services": {"saving", "name", "demand", "inZone", "worst", "endpoints", "bytes", "cost"},
	"nodes":    {"behind", "name", "zone"},
	"sites":    {"name", "online"},
}

// topQuery is what a view is asked for.
type topQuery struct {
	view, filter, sort string
	reverse            bool
	first, limit       int
}

// topSource has what views show. Zones are followed, if somebody calls follow; all else is asked for.
type topSource struct {
	cfg *rest.Config

	mu      sync.Mutex
	zones   map[string]*summary.Zone
	flows   map[string]*topology.Flow
	total   *summary.Totals
	partial string
	// rest: the stream leaves flows out, as there are many zones.
	rest     bool
	position summary.Position
	// followed until then: the stream was alive.
	alive time.Time
}

func newTopSource(cfg *rest.Config) *topSource { return &topSource{cfg: cfg} }

// fetch a view. It blocks for a request, but for zones that are followed.
func (s *topSource) fetch(ctx context.Context, q topQuery) (*topTable, error) {
	switch q.view {
	case "services":
		return s.services(ctx, q)
	case "nodes":
		return s.nodes(ctx, q)
	case "sites":
		return s.sites(ctx, q)
	}
	if table := s.followedZones(q); table != nil {
		return table, nil
	}
	var z summary.Zones
	if err := callJSON(ctx, s.cfg, http.MethodGet, admin.SummaryZonesPath, nil, &z); err != nil {
		return nil, err
	}
	table := zonesTable(z.Zones, z.Flows, &z.Total, z.Partial, q)
	table.at = time.Now()
	return table, nil
}

// streamDead is how long a stream may be silent, which says every 5 s that it is alive.
const streamDead = 12 * time.Second

// followedZones are those of the stream; nil: there is none.
func (s *topSource) followedZones(q topQuery) *topTable {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total == nil || s.rest || time.Since(s.alive) > streamDead {
		return nil
	}
	zones := make([]summary.Zone, 0, len(s.zones))
	for _, z := range s.zones {
		zones = append(zones, *z)
	}
	flows := make([]topology.Flow, 0, len(s.flows))
	for _, f := range s.flows {
		flows = append(flows, *f)
	}
	table := zonesTable(zones, flows, s.total, s.partial, q)
	table.at = s.alive
	return table
}

// follow the stream of zones until ctx ends, and call changed after each change.
func (s *topSource) follow(ctx context.Context, cfg *rest.Config, changed func()) {
	retry := backoff.Backoff{Policy: backoff.Policy{First: 500 * time.Millisecond, Last: 10 * time.Second}}
	for ctx.Err() == nil {
		began := time.Now()
		_ = s.followOnce(ctx, cfg, changed) // the view asks by itself meanwhile
		if time.Since(began) > streamDead {
			retry.Reset()
		}
		if !backoff.Sleep(ctx, retry.Next()) {
			return
		}
	}
}

func (s *topSource) followOnce(ctx context.Context, cfg *rest.Config, changed func()) error {
	q := url.Values{"topics": {"zones"}}
	s.mu.Lock()
	if s.position.Epoch != "" {
		q.Set("position", s.position.Epoch+":"+strconv.FormatUint(s.position.Sequence, 10))
	}
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := send(ctx, cfg, http.MethodGet, admin.StreamPath+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dead := time.AfterFunc(streamDead, cancel)
	defer dead.Stop()
	for in := json.NewDecoder(resp.Body); ; {
		var frame admin.Frame
		if err := in.Decode(&frame); err != nil {
			return err
		}
		dead.Reset(streamDead)
		if err := s.take(&frame); err != nil {
			return err
		}
		if frame.Delta != nil {
			changed()
		}
	}
}

// take a frame of the stream.
func (s *topSource) take(frame *admin.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if frame.Error != "" {
		return errors.New(frame.Error)
	}
	s.alive = time.Now()
	if frame.Topic != "zones" || frame.Delta == nil {
		return nil
	}
	var d summary.Delta
	if err := json.Unmarshal(frame.Delta, &d); err != nil {
		return err
	}
	if d.Snapshot {
		s.zones, s.flows, s.rest = map[string]*summary.Zone{}, map[string]*topology.Flow{}, false
	}
	for name, data := range d.Rows {
		var err error
		switch kind, _, _ := strings.Cut(name, "/"); kind {
		case "zone":
			err = put(s.zones, name, data)
		case "flow":
			err = put(s.flows, name, data)
		case "rest":
			s.rest = true
		case "total":
			s.total = new(summary.Totals)
			err = json.Unmarshal(data, s.total)
		case "scope":
			var scope struct{ Partial string }
			err = json.Unmarshal(data, &scope)
			s.partial = scope.Partial
		}
		if err != nil {
			return fmt.Errorf("row %s: %w", name, err)
		}
	}
	for _, name := range d.Gone {
		s.rest = s.rest && name != "rest"
		delete(s.zones, name)
		delete(s.flows, name)
	}
	s.position = d.Position
	return nil
}

func put[T any](rows map[string]*T, name string, data json.RawMessage) error {
	row := new(T)
	if err := json.Unmarshal(data, row); err != nil {
		return err
	}
	rows[name] = row
	return nil
}

// zonesTable of sums.
func zonesTable(zones []summary.Zone, flows []topology.Flow, total *summary.Totals, partial string, q topQuery) *topTable {
	most := map[string]*topology.Flow{}
	for i := range flows {
		f := &flows[i]
		if of := most[string(f.From)]; f.From != f.To && (of == nil || strength(f) > strength(of) || strength(f) == strength(of) && f.To < of.To) {
			most[string(f.From)] = f
		}
	}
	zones = slices.DeleteFunc(zones, func(z summary.Zone) bool { return !contains(string(z.Name), q.filter) })
	slices.SortFunc(zones, func(a, b summary.Zone) int {
		n := 0
		switch q.sort {
		case "demand":
			n = cmp.Or(cmp.Compare(b.Demand, a.Demand), cmp.Compare(b.Guess, a.Guess))
		case "in-zone":
			n = cmp.Compare(a.InZone, b.InZone)
		case "worst":
			n = cmp.Compare(b.Worst, a.Worst)
		case "cost":
			n = cmp.Compare(b.Cost, a.Cost)
		case "endpoints":
			n = cmp.Compare(b.Endpoints, a.Endpoints)
		}
		return turned(cmp.Or(n, cmp.Compare(a.Name, b.Name)), q.reverse)
	})
	t := &topTable{
		head: totalText(total), partial: partial,
		columns: []string{"ZONE", "REGION", "NODES", "ENDPOINTS", "DEMAND/S", "IN-ZONE", "WORST", "COST", "MOST LEAVES TO"},
	}
	page(t, zones, q, func(z *summary.Zone) []string {
		demand := figure(z.Demand)
		if z.Demand == 0 && z.Guess > 0 {
			demand = "estimated"
		}
		to := "-"
		if f := most[string(z.Name)]; f != nil && strength(f) > 0 {
			to = fmt.Sprintf("%s %s/s", f.To, figure(strength(f)))
			if f.Planned == 0 && f.Measured == 0 {
				to = string(f.To) + ", estimated"
			}
		}
		return []string{
			string(z.Name), orDash(string(z.Region)), fmt.Sprintf("%d/%d", z.Ready, z.Nodes), strconv.FormatInt(z.Endpoints, 10),
			demand, share(z.InZone), figure(z.Worst), figure(z.Cost), to,
		}
	})
	return t
}

// strength of a flow, for comparison.
func strength(f *topology.Flow) float64 { return cmp.Or(f.Measured, f.Planned, f.Guess) }

// page of rows that a query asks for.
func page[T any](t *topTable, all []T, q topQuery, row func(*T) []string) {
	t.total, t.first = len(all), min(max(q.first, 0), max(len(all)-1, 0))
	for i := range all[t.first:min(len(all), t.first+q.limit)] {
		t.rows = append(t.rows, row(&all[t.first+i]))
	}
}

func (s *topSource) services(ctx context.Context, q topQuery) (*topTable, error) {
	query := url.Values{
		"q": {q.filter}, "sort": {q.sort}, "reverse": {strconv.FormatBool(q.reverse)}, "limit": {strconv.Itoa(min(q.limit, summary.MaxLimit))},
		"continue": {strconv.Itoa(max(q.first, 0))},
	}
	var found summary.Services
	if err := callJSON(ctx, s.cfg, http.MethodGet, admin.SummaryServicesPath+"?"+query.Encode(), nil, &found); err != nil {
		return nil, err
	}
	t := &topTable{
		head: fmt.Sprintf("%d of %d Services, by %s", found.Total, found.All, q.sort), partial: found.Partial, first: max(q.first, 0), total: found.Total, at: time.Now(),
		columns: []string{"NAMESPACE", "NAME", "MODE", "DEMAND/S", "IN-ZONE", "BEST", "WORST", "ENDPOINTS", "COST", "SAVING", "CODE"},
	}
	for i := range found.Services {
		l := &found.Services[i]
		demand := figure(l.Demand)
		if !l.Measured {
			demand = "estimated"
		}
		mode := strings.TrimPrefix(l.Mode, "proxima.dev/")
		if l.Refused {
			mode += " (refused)"
		}
		t.rows = append(t.rows, []string{
			l.Namespace, l.Name, orDash(mode), demand, share(l.InZone), share(l.Ways.Best.InZone), figure(l.Worst), strconv.Itoa(l.Endpoints),
			money(l.Cost, l.Currency), money(l.Saving, l.Currency), l.Code,
		})
	}
	return t, nil
}

func (s *topSource) nodes(ctx context.Context, q topQuery) (*topTable, error) {
	o := &overview{}
	if err := o.askControlPlane(ctx, s.cfg); err != nil {
		return nil, err
	}
	nodes := o.Nodes
	since := map[string]time.Time{}
	rejected := map[string]string{}
	listed := len(nodes) > 0
	for _, a := range o.ControlPlane.Agents {
		since[a.Node], rejected[a.Node] = a.Since, a.Rejected
		if !listed { // Nodes are of a cluster, which this is not
			nodes = append(nodes, nodeLine{Name: a.Node, Ready: "-", Version: a.Version, Following: true, Instance: a.Instance, Behind: a.Behind})
		}
	}
	nodes = slices.DeleteFunc(nodes, func(n nodeLine) bool { return !contains(n.Name, q.filter) })
	slices.SortFunc(nodes, func(a, b nodeLine) int {
		n := 0
		switch q.sort {
		case "behind":
			n = cmp.Or(cmp.Compare(b.Behind, a.Behind), compareBool(a.Following, b.Following))
		case "zone":
			n = cmp.Compare(a.Zone, b.Zone)
		}
		return turned(cmp.Or(n, cmp.Compare(a.Name, b.Name)), q.reverse)
	})
	following := 0
	for i := range nodes {
		if nodes[i].Following {
			following++
		}
	}
	t := &topTable{
		head: fmt.Sprintf("%d nodes, %d follow their view", len(nodes), following), at: time.Now(),
		columns: []string{"NODE", "ZONE", "READY", "FOLLOWING", "BEHIND", "SINCE", "VERSION", "INSTANCE", "REJECTED"},
	}
	page(t, nodes, q, func(n *nodeLine) []string {
		ready := n.Ready
		if n.Suspect {
			ready += ", suspect"
		}
		if n.Drain != "" {
			ready += ", " + strings.ToLower(n.Drain)
		}
		age := "-"
		if at := since[n.Name]; !at.IsZero() {
			age = duration.HumanDuration(max(time.Since(at), 0))
		}
		return []string{
			n.Name, orDash(n.Zone), ready, strconv.FormatBool(n.Following), strconv.FormatUint(n.Behind, 10), age, orDash(n.Version), orDash(n.Instance), orDash(rejected[n.Name]),
		}
	})
	return t, nil
}

func (s *topSource) sites(ctx context.Context, q topQuery) (*topTable, error) {
	var status admin.Status
	if err := callJSON(ctx, s.cfg, http.MethodGet, admin.StatusPath, nil, &status); err != nil {
		return nil, err
	}
	t := &topTable{at: time.Now(), columns: []string{"SITE", "ENABLED", "ONLINE", "SINCE", "VERSION", "LAG TO", "LAG FROM", "HELD", "REFUSED"}}
	f := status.Federation
	switch {
	case f == nil:
		t.head = "this control plane stands alone: \"proxima global\" makes one of several sites"
		return t, nil
	case f.Zone != "":
		state := "not connected"
		if f.Connected {
			state = fmt.Sprintf("connected, %d changes behind", f.Behind)
		} else if f.Elsewhere {
			state = "another instance has the connection"
		}
		t.head = fmt.Sprintf("site %s, global %s, %s; the other sites are at global", f.Zone, f.Global, state)
		if f.Link != nil {
			t.head += "; lag to global: " + lagText(f.Link.Sent)
		}
		return t, nil
	}
	all := slices.DeleteFunc(f.Zones, func(z admin.ZoneState) bool { return !contains(z.Name, q.filter) })
	online := func(z *admin.ZoneState) bool { return z.Insight != nil && z.Insight.Online }
	slices.SortFunc(all, func(a, b admin.ZoneState) int {
		n := 0
		if q.sort == "online" {
			n = compareBool(online(&a), online(&b))
		}
		return turned(cmp.Or(n, cmp.Compare(a.Name, b.Name)), q.reverse)
	})
	up := 0
	for i := range all {
		if online(&all[i]) {
			up++
		}
	}
	t.head = fmt.Sprintf("%d sites, %d online", len(all), up)
	page(t, all, q, func(z *admin.ZoneState) []string {
		since, version, held, refused := "-", "", int64(0), 0
		if z.Insight != nil {
			if n := len(z.Insight.Subscriptions); n > 0 {
				last := z.Insight.Subscriptions[n-1]
				version = last.Version
				at := last.ConnectTime
				if last.DisconnectTime != nil {
					at = *last.DisconnectTime
				}
				since = duration.HumanDuration(max(time.Since(at.Time), 0))
			}
			for _, t := range z.Insight.Types {
				held, refused = held+int64(t.Held), refused+len(t.Refused)
			}
		}
		to, from := "-", "-"
		if z.Link != nil {
			to, from = lagCell(z.Link.Sent), lagCell(z.Link.Received)
		}
		return []string{z.Name, strconv.FormatBool(z.Enabled), strconv.FormatBool(online(z)), since, orDash(version), to, from, strconv.FormatInt(held, 10), strconv.Itoa(refused)}
	})
	return t, nil
}

func totalText(t *summary.Totals) string {
	parts := []string{fmt.Sprintf("%d Services, %d planned", t.Services, t.Planned)}
	if t.Demand > 0 {
		parts = append(parts, figure(t.Demand)+" connections/s")
	} else {
		parts = append(parts, "no demand is measured")
	}
	parts = append(parts, share(t.InZone)+" stays in its zone (best plans "+share(t.Ways.Best.InZone)+")")
	if t.Cost != nil {
		parts = append(parts, money(t.Cost, t.Currency)+" a month")
	}
	return strings.Join(parts, ", ")
}

func contains(name, filter string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(filter))
}

func turned(n int, reverse bool) int {
	if reverse {
		return -n
	}
	return n
}

// compareBool has false first.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func orDash(s string) string { return cmp.Or(s, "-") }

// figure with three digits; a dash for none.
func figure(x float64) string {
	switch {
	case x == 0:
		return "-"
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

func share(x float64) string { return strconv.FormatFloat(100*x, 'f', 0, 64) + "%" }

func money(x *float64, currency string) string {
	if x == nil {
		return "-"
	}
	return strings.TrimSpace(strconv.FormatFloat(*x, 'f', 2, 64) + " " + currency)
}
