// Command planner measures the zone planner against what else there is: the policies
// on random services with known demand, how a plan follows demand that is
// estimated, and how long planning takes. Everything but the times follows from the
// seed; of the policies only comparisons between rows mean anything.
//
//	go run ./bench/planner [-smoke] [-seed 1]
package main

import (
	"flag"
	"os"
)

func main() {
	smoke := flag.Bool("smoke", false, "a quick look")
	seed := flag.Uint64("seed", 1, "of the random problems")
	flag.Parse()
	services, runs, rounds, fleet := 6000, 200, 21, 10000
	if *smoke {
		services, runs, rounds, fleet = 300, 5, 3, 500
	}
	compare(os.Stdout, *seed, services)
	dynamics(os.Stdout, *seed, runs)
	timings(os.Stdout, *seed, rounds, fleet)
}
