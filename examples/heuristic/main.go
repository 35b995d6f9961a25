// Command heuristic is Proxima with a topology mode of its own, example.com/SameRegion:
// connections stay in their region, half of them in their zone where it has endpoints.
//
//	go build -o proxima-mine ./examples/heuristic
//	./proxima-mine up &
//	kubectl annotate service web service.kubernetes.io/topology-mode=example.com/SameRegion
package main

import (
	"os"

	"github.com/proxima-mesh/proxima/heuristic"
	"github.com/proxima-mesh/proxima/program"
)

func main() {
	os.Exit(program.Main(heuristic.Set{"example.com/SameRegion": heuristic.Func(sameRegion)}))
}

// maxHints that an endpoint may have (discovery.k8s.io/v1).
const maxHints = 8

// sameRegion gives each zone its own endpoints and those of its region. Together the
// endpoints of the zone weigh as much as those of all other zones of the region.
func sameRegion(q heuristic.Question) (heuristic.Answer, error) {
	region := map[string]string{}
	for _, z := range q.Zones {
		region[z.Name] = z.Region
	}
	perZone, perRegion := map[string]float64{}, map[string]float64{}
	for _, e := range q.Endpoints {
		if e.Ready {
			perZone[e.Zone]++
			perRegion[region[e.Zone]]++
		}
	}
	a := heuristic.Answer{Zones: make([][]string, len(q.Endpoints)), Weights: make([][]float64, len(q.Endpoints))}
	for i, e := range q.Endpoints {
		a.Weights[i] = make([]float64, len(q.Zones))
		for k, z := range q.Zones {
			if z.Region == "" || z.Region != region[e.Zone] {
				continue
			}
			if len(a.Zones[i]) < maxHints {
				a.Zones[i] = append(a.Zones[i], z.Name)
			}
			if here := perZone[z.Name]; e.Zone == z.Name {
				a.Weights[i][k] = 1 / here
			} else {
				a.Weights[i][k] = 1 / (perRegion[z.Region] - here)
			}
			if !e.Ready {
				a.Weights[i][k] = 0
			}
		}
	}
	return a, nil
}
