// Command planner measures the zone planner against what else there is: the policies
// on random services with known demand, how a plan follows demand that is
// estimated, and how long planning takes. Everything but the times follows from the
// seed; of the policies only comparisons between rows mean anything. It ends with every
// figure that planner.md requires, with its limit, and the word pass or miss.
//
//	go run ./bench/planner [-smoke] [-seed 1]
//
// With -plot it draws what the long test of real traffic measured:
//
//	go run ./bench/planner -plot samples.json > plot.svg
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	smoke := flag.Bool("smoke", false, "a quick look")
	seed := flag.Uint64("seed", 1, "of the random problems")
	samples := flag.String("plot", "", "draw the samples of this file, and nothing else")
	flag.Parse()
	if *samples != "" {
		if err := plotFile(*samples); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	services, runs, rounds, fleet, small := 6000, 200, 21, 10000, 600
	if *smoke {
		services, runs, rounds, fleet, small = 300, 5, 3, 500, 30
	}
	verdicts := judgePolicies(compare(os.Stdout, *seed, services))
	verdicts = append(verdicts, judgeHints(*seed, small)...)
	moves := dynamics(os.Stdout, *seed, runs)
	verdicts = append(append(verdicts, judgeDynamics(moves)...), judgeNear(moves)...)
	lab(os.Stdout, *seed, runs)
	autoscalers(os.Stdout)
	verdicts = append(verdicts, timings(os.Stdout, *seed, rounds, fleet)...)
	judge(os.Stdout, verdicts)
}

func plotFile(name string) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	return plot(os.Stdout, in)
}
