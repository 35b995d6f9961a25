package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

// service is a random problem: where its traffic starts, where its endpoints are,
// and the CPU by zone that Kubernetes takes for its traffic.
type service struct {
	topology  *planner.Topology
	matrix    *planner.Topology // the same costs, spelled out
	demand    []float64
	weight    []int64
	endpoints []int // zone of each
	ratios    auto.Ratios
	cpu       []float64
}

// topologies are made once: 2 to 6 zones in one region, and in two.
type topologies map[[2]int][2]*planner.Topology

func (t topologies) get(zones, regions int) [2]*planner.Topology {
	key := [2]int{zones, regions}
	if made, ok := t[key]; ok {
		return made
	}
	var list []planner.Zone
	for i := range zones {
		list = append(list, planner.Zone{Name: locality.Zone(fmt.Sprintf("zone-%02d", i)), Region: locality.Region(fmt.Sprint("region-", i*regions/zones))})
	}
	levels := mustTopology(list, planner.Costs{})
	costs := make([][]float64, zones)
	for i := range costs {
		for j := range zones {
			costs[i] = append(costs[i], levels.Cost(i, j))
		}
	}
	made := [2]*planner.Topology{levels, mustTopology(list, planner.Costs{Matrix: costs})}
	t[key] = made
	return made
}

func mustTopology(zones []planner.Zone, costs planner.Costs) *planner.Topology {
	t, err := planner.NewTopology(zones, costs)
	if err != nil {
		panic(err) // the zones are ours
	}
	return t
}

// draw makes a service. CPU differs little between zones; demand follows it in a
// third of the services, loosely in another, and not at all in the last; endpoints
// are spread evenly by the scheduler, or fall where they fall. Sizes are log-uniform
// from 1 to 50, which is what clusters look like.
func (t topologies) draw(r *rand.Rand) *service {
	zones, regions := 2+r.IntN(5), 1
	if zones >= 4 && r.IntN(4) == 0 {
		regions = 2
	}
	tops := t.get(zones, regions)
	s := &service{
		topology: tops[0],
		matrix:   tops[1],
		demand:   make([]float64, zones),
		weight:   make([]int64, zones),
		cpu:      make([]float64, zones),
		ratios:   auto.Ratios{},
	}
	total := 0.0
	for z := range zones {
		s.cpu[z] = 1 + 0.5*r.Float64()
		total += s.cpu[z]
	}
	spread := []float64{0.1, 0.6, 1.5}[r.IntN(3)]
	for z := range zones {
		s.cpu[z] /= total
		s.ratios[s.topology.Zone(z).Name] = s.cpu[z]
		s.demand[z] = s.cpu[z] * math.Exp(spread*r.NormFloat64())
	}
	n := int(math.Exp(r.Float64() * math.Log(50.999)))
	even := r.IntN(2) == 0
	first := r.IntN(zones)
	for k := range n {
		z := r.IntN(zones)
		if even {
			z = (first + k) % zones
		}
		s.weight[z]++
		s.endpoints = append(s.endpoints, z)
	}
	return s
}

func (s *service) problem(params planner.Params) *planner.Problem {
	return &planner.Problem{Demand: s.demand, Weight: s.weight, Params: params}
}
