package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/heuristic"
)

func TestSameRegion(t *testing.T) {
	got, err := sameRegion(heuristic.Question{
		Zones: []heuristic.Zone{{Name: "a", Region: "eu"}, {Name: "b", Region: "eu"}, {Name: "c", Region: "us"}},
		Endpoints: []heuristic.Endpoint{
			{Address: "10.0.0.1", Zone: "a", Ready: true}, {Address: "10.0.0.2", Zone: "b", Ready: true}, {Address: "10.0.0.3", Zone: "b", Ready: true},
			{Address: "10.0.0.4", Zone: "c"},
		},
	})
	want := heuristic.Answer{
		Zones:   [][]string{{"a", "b"}, {"a", "b"}, {"a", "b"}, {"c"}},
		Weights: [][]float64{{1, 1, 0}, {0.5, 0.5, 0}, {0.5, 0.5, 0}, {0, 0, 0}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
}
