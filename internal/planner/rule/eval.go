package rule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// Eval runs the rule for one Service. After an error there is no result: the expression
// failed, cost too much or took too long, or what it said cannot be done. ctx may end
// it sooner.
func (p *Program) Eval(ctx context.Context, in Input) (*Result, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	endpoints, zones := values(p.adapter, in.Endpoints), values(p.adapter, in.Zones)
	run := &evaluation{program: p, ctx: ctx, values: map[string]any{
		nameService: p.adapter.NativeToValue(in.Service), nameZones: types.NewRefValList(p.adapter, zones),
		nameEndpoints: types.NewRefValList(p.adapter, endpoints),
	}}
	for _, v := range p.variables {
		value, err := run.eval("variable "+v.name, v.program)
		if err != nil {
			return nil, err
		}
		run.values[v.name] = value
	}
	r := &Result{Zones: make([][]string, len(in.Endpoints))}
	for i, e := range in.Endpoints {
		if !e.Ready {
			continue
		}
		run.values[nameEndpoint] = endpoints[i]
		var err error
		if p.zones != nil {
			r.Zones[i], err = run.zones(e, in.Zones)
		}
		if err != nil {
			return nil, err
		}
	}
	var err error
	if p.weight != nil {
		err = run.weigh(r, in, endpoints, zones)
	} else {
		err = p.cover(r, in)
	}
	if err != nil {
		return nil, err
	}
	r.Cost = run.cost
	return r, nil
}

// values of CEL, made once and not at each use.
func values[T any](adapter types.Adapter, list []T) []ref.Val {
	out := make([]ref.Val, len(list))
	for i, one := range list {
		out[i] = adapter.NativeToValue(one)
	}
	return out
}

type evaluation struct {
	program *Program
	ctx     context.Context
	values  map[string]any
	cost    uint64
}

// eval an expression and add up what it cost.
func (r *evaluation) eval(what string, program cel.Program) (ref.Val, error) {
	value, details, err := program.ContextEval(r.ctx, r.values)
	if details != nil && details.ActualCost() != nil {
		r.cost += *details.ActualCost()
	}
	switch {
	case r.ctx.Err() != nil && errors.Is(context.Cause(r.ctx), context.DeadlineExceeded):
		return nil, fmt.Errorf("%s: took longer than %v", what, r.program.timeout)
	case r.ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", what, context.Cause(r.ctx))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	case r.cost > r.program.total:
		return nil, fmt.Errorf("%s: all expressions together cost more than %d", what, r.program.total)
	}
	return value, nil
}

// zones that the endpoint at hand is for.
func (r *evaluation) zones(e Endpoint, all []Zone) ([]string, error) {
	value, err := r.eval("zones of endpoint "+e.Address, r.program.zones)
	if err != nil {
		return nil, err
	}
	zones, err := allowed(value, e, all)
	if err == nil && r.program.weight == nil && len(zones) > MaxZonesPerEndpoint {
		err = fmt.Errorf("zones of endpoint %s: %d, and hints name %d at most", e.Address, len(zones), MaxZonesPerEndpoint)
	}
	return zones, err
}

// ignored is why an endpoint has to be for a zone.
const ignored = "hints are not used at all if a ready endpoint has none"

// allowed reads the zones that an expression gave: those that there are, each once, in
// order. The endpoint's own counts as one that there is.
func allowed(value ref.Val, e Endpoint, zones []Zone) ([]string, error) {
	native, err := value.ConvertToNative(reflect.TypeFor[[]string]())
	if err != nil {
		return nil, fmt.Errorf("zones of endpoint %s: %w", e.Address, err)
	}
	known := map[string]bool{}
	for _, name := range native.([]string) {
		if name != "" && (name == e.Zone || slices.ContainsFunc(zones, func(z Zone) bool { return z.Name == name })) {
			known[name] = true
		}
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("zones of endpoint %s: none, or none that there is: %s", e.Address, ignored)
	}
	return slices.Sorted(maps.Keys(known)), nil
}

// cover gives endpoints to zones that were left without any, as the fallback says.
func (p *Program) cover(r *Result, in Input) error {
	covered, ready := map[string]bool{}, false
	for i, zones := range r.Zones {
		ready = ready || in.Endpoints[i].Ready
		for _, zone := range zones {
			covered[zone] = true
		}
	}
	if !ready || p.fallback == None {
		return nil
	}
	for _, zone := range in.Zones {
		if covered[zone.Name] {
			continue
		}
		if p.fallback == Fail || !r.fill(zone.Name) {
			return fmt.Errorf("zone %s may use no endpoint", zone.Name)
		}
		r.Filled = append(r.Filled, zone.Name)
	}
	return nil
}

// fill lets a zone use all ready endpoints whose hints are not full.
func (r *Result) fill(zone string) (filled bool) {
	for i, zones := range r.Zones {
		if zones == nil || len(zones) == MaxZonesPerEndpoint {
			continue
		}
		at, _ := slices.BinarySearch(zones, zone)
		r.Zones[i] = slices.Insert(zones, at, zone)
		filled = true
	}
	return filled
}
