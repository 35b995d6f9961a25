// Command fanout measures how long one changed resource takes to reach the last
// of many delta xDS streams, for our engine as agents and as zones use it, for the
// least that any server could do, and for the cache of go-control-plane.
//
// It is a module of its own, so that the product does not link what it is
// compared with. Server and clients share the process and talk over loopback TCP,
// one connection for each stream. Rounds of the servers alternate: what disturbs
// one disturbs all, so the ratios hold where the times do not.
//
// The memory of a stream is what the server's end takes, less what the resources do. It is
// measured apart, with the clients in a process of their own.
//
//	go run . -streams 200,1000 -rounds 30
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	streams := flag.String("streams", "200,1000", "numbers of streams")
	rounds := flag.Int("rounds", 30, "rounds for each server")
	resources := flag.Int("resources", 1000, "resources of 10 endpoints each")
	flag.Parse()
	if flag.NArg() > 0 { // the clients' process: see ends
		if err := connect(flag.Args(), os.Stdout, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "fanout:", err)
			os.Exit(1)
		}
		return
	}
	for _, field := range strings.Split(*streams, ",") {
		n, err := strconv.Atoi(field)
		if err == nil {
			err = compare(os.Stdout, n, *rounds, *resources)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "fanout:", err)
			os.Exit(1)
		}
	}
}

// sample is one round: until the last stream had it, and the processor time of
// servers and clients together until all was acknowledged.
type sample struct{ last, cpu time.Duration }

// compare runs all servers with n streams each and prints medians and ratios to
// the floor.
func compare(out io.Writer, n, rounds, resources int) error {
	var subjects []*subject
	var memory []uint64
	for _, make := range []func(int) (server, error){newFloor, newOurs, newZones, newLinear} {
		server, err := make(resources)
		if err != nil {
			return err
		}
		end, err := serverEnd(server, n)
		if err != nil {
			return err
		}
		memory = append(memory, end)
		s, err := start(server, n)
		if err != nil {
			return err
		}
		defer s.stop()
		subjects = append(subjects, s)
	}
	samples := make([][]sample, len(subjects))
	const warmup = 3
	for round := range warmup + rounds {
		for i, s := range subjects {
			got, err := s.round(round)
			if err != nil {
				return err
			}
			if round >= warmup {
				samples[i] = append(samples[i], got)
			}
		}
	}
	fmt.Fprintf(out, "%d streams, %d resources, medians of %d interleaved rounds\n", n, resources, rounds)
	fmt.Fprintf(out, "%-14s %12s %8s %12s %8s  %s\n", "server", "last client", "ratio", "cpu", "ratio", "kB per stream at the server")
	floor := median(samples[0])
	for i, s := range subjects {
		m := median(samples[i])
		fmt.Fprintf(out, "%-14s %12s %8.2f %12s %8.2f  %.1f\n", s.server.name(), m.last.Round(10*time.Microsecond),
			float64(m.last)/float64(floor.last), m.cpu.Round(10*time.Microsecond), float64(m.cpu)/float64(floor.cpu), float64(memory[i])/1e3)
	}
	return nil
}

func median(in []sample) sample {
	last, cpu := make([]time.Duration, 0, len(in)), make([]time.Duration, 0, len(in))
	for _, s := range in {
		last, cpu = append(last, s.last), append(cpu, s.cpu)
	}
	slices.Sort(last)
	slices.Sort(cpu)
	return sample{last[len(last)/2], cpu[len(cpu)/2]}
}

// inUse is the memory that this process's heap and stacks take, after what is not used was
// collected.
func inUse() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held on to
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// cpuTime of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
