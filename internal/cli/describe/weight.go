package describe

import (
	"fmt"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// weighing is what is shown of weights and warm-up of a Service's endpoints; nil: all have the
// default weight, and none warms up.
type weighing struct {
	service *proxy.Service
	// ages has the endpoints of all slices in their order, with the times when they became ready.
	ages *proxy.Slice
	now  time.Time
}

// weigh the endpoints of a Service.
func (p *page) weigh(in *serviceInput) *weighing {
	period := kind.WarmUpOf(in.service)
	w := &weighing{service: &proxy.Service{WarmUp: period}, ages: &proxy.Slice{}, now: p.now}
	different := period > 0
	endpoints := 0
	for _, s := range in.slices {
		endpoints += len(s.Endpoints)
	}
	for _, s := range in.slices {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			at := len(w.ages.Endpoints)
			w.ages.Endpoints = append(w.ages.Endpoints, proxy.SliceEndpoint{Ready: ptr.Deref(e.Conditions.Ready, true)})
			workload := in.workloadOf(e)
			if workload == nil {
				continue
			}
			different = different || workload.weight != mesh.DefaultWeight
			if !workload.readySince.IsZero() {
				w.ages.SetReadySince(at, workload.readySince.Unix(), endpoints)
			}
		}
	}
	if !different {
		return nil
	}
	return w
}

// of the endpoint at an index, whose workload may not be known.
func (w *weighing) of(at int, from *workload) string {
	weight := mesh.DefaultWeight
	if from != nil {
		weight = from.weight
	}
	text := fmt.Sprint(weight)
	if step := choose.WarmStep(w.service, []*proxy.Slice{w.ages}, w.ages, at, w.now); step < choose.WarmSteps {
		text += fmt.Sprintf(", warming up: %d %% of it", 100*step/choose.WarmSteps)
	}
	return text
}

// workloadOf an endpoint; nil: it is not known.
func (in *serviceInput) workloadOf(e *discoveryv1.Endpoint) *workload {
	if e.TargetRef == nil {
		return nil
	}
	for i := range in.workloads {
		if w := &in.workloads[i]; w.kind+"/"+w.Key.String() == refName(in, e.TargetRef) {
			return w
		}
	}
	return nil
}

// weighted has the weight, which is the last cell of each row, behind the state.
func weighted(columns []string, rows [][]string) []string {
	const behind = 2
	for _, row := range rows {
		last := len(row) - 1
		weight := row[last]
		copy(row[behind+1:], row[behind:last])
		row[behind] = weight
	}
	return slices.Insert(columns, behind, "WEIGHT")
}
