// Command planner measures the zone planner against what else there is: the policies
// on random services with known demand, how a plan follows demand that is
// estimated, and how long planning takes. Everything but the times follows from the
// seed; of the policies only comparisons between rows mean anything. It ends with every
// figure that planner.md requires, with its limit, and the word pass or miss.
//
//	go run ./bench/planner [-smoke] [-seed 1] [-only dynamics,lab]
//
// With -plot it draws what the long test of real traffic measured:
//
//	go run ./bench/planner -plot samples.json > plot.svg
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	smoke := flag.Bool("smoke", false, "a quick look")
	seed := flag.Uint64("seed", 1, "of the random problems")
	only := flag.String("only", "", "parts to run, separated by commas: "+strings.Join(partNames(), ", ")+"; empty: all")
	samples := flag.String("plot", "", "draw the samples of this file, and nothing else")
	flag.Parse()
	if *samples != "" {
		if err := plotFile(*samples); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	chosen, err := choose(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	z := size{seed: *seed, services: 6000, runs: 200, rounds: 21, fleet: 10000, small: 600}
	if *smoke {
		z = size{seed: *seed, services: 300, runs: 5, rounds: 3, fleet: 500, small: 30}
	}
	var verdicts []verdict
	for _, p := range chosen {
		verdicts = append(verdicts, p.run(z)...)
	}
	if len(verdicts) > 0 {
		judge(os.Stdout, verdicts)
	}
}

// size is how much is measured.
type size struct {
	seed                                 uint64
	services, runs, rounds, fleet, small int
}

// part is what can be run by itself.
type part struct {
	name string
	run  func(size) []verdict
}

func parts() []part {
	return []part{
		{"policies", func(z size) []verdict { return judgePolicies(compare(os.Stdout, z.seed, z.services)) }},
		{"hints", func(z size) []verdict { return judgeHints(z.seed, z.small) }},
		{"dynamics", func(z size) []verdict {
			all := dynamics(os.Stdout, z.seed, z.runs)
			return append(judgeDynamics(all), judgeNear(all)...)
		}},
		{"lab", func(z size) []verdict { lab(os.Stdout, z.seed, z.runs); return nil }},
		{"autoscaler", func(size) []verdict { autoscalers(os.Stdout); return nil }},
		{"times", func(z size) []verdict { return timings(os.Stdout, z.seed, z.rounds, z.fleet) }},
	}
}

func partNames() (names []string) {
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

// choose the parts of a list of names, in the order in which all are run; empty: all.
func choose(list string) ([]part, error) {
	all := parts()
	if list == "" {
		return all, nil
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if known := partNames(); !slices.Contains(known, name) {
			return nil, fmt.Errorf("-only %q: no such part, want some of %s", name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(p part) bool { return !slices.Contains(names, p.name) }), nil
}

func plotFile(name string) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	return plot(os.Stdout, in)
}
