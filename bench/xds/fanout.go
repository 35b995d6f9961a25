package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

var plain = grpc.WithTransportCredentials(insecure.NewCredentials())

// measureFanout: one endpoint that all streams hold changes, until the last one has it. Servers take
// turns.
func measureFanout(ctx context.Context, p plan, out io.Writer) error {
	var servers []server
	var crowds []*crowd
	for _, start := range []func(plan) (server, error){newFloor, newOurs, newSnapshot} {
		s, err := start(p)
		if err != nil {
			return err
		}
		defer s.stop()
		c := newCrowd(ctx, adsMethod, clusterOf(0))
		defer c.end()
		for i := range p.streams {
			c.add(s.address(), s.asks(i, usedBy(i, p)), plain)
		}
		if err := c.wait(&c.complete, p.streams); err != nil {
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		servers, crowds = append(servers, s), append(crowds, c)
	}
	last, cpu := make([]times, len(servers)), make([]times, len(servers))
	const warmup = 3
	for round := range warmup + p.rounds {
		for i, s := range servers {
			if err := pause(ctx, settle); err != nil {
				return err
			}
			crowds[i].changed.Store(0)
			before, begin := ownCPU(), time.Now()
			if err := s.set(turned(0, 1+round)); err != nil {
				return err
			}
			if err := crowds[i].wait(&crowds[i].changed, p.streams); err != nil {
				return fmt.Errorf("%s: %w", s.name(), err)
			}
			took := time.Since(begin)
			if err := pause(ctx, settle); err != nil { // acknowledgements
				return err
			}
			if round >= warmup {
				last[i], cpu[i] = append(last[i], took), append(cpu[i], ownCPU()-before)
			}
		}
	}
	fmt.Fprintf(out, "%d streams, %d services, %d of them used by each; medians of %d interleaved rounds\n", p.streams, p.services, p.used, p.rounds)
	for i, s := range servers {
		m, c := last[i].quantile(0.5), cpu[i].quantile(0.5)
		fmt.Fprintf(out, "%-14s last stream p50 %s, p99 %s ms (%.2f × floor); CPU of server and streams %s ms (%.2f × floor), %.1f µs for each update\n", s.name(),
			ms(m), ms(last[i].quantile(0.99)), float64(m)/float64(last[0].quantile(0.5)), ms(c), float64(c)/float64(cpu[0].quantile(0.5)),
			float64(c.Microseconds())/float64(p.streams))
	}
	return nil
}

// settle is the time for acknowledgements to be processed, before the next server has its turn.
const settle = 50 * time.Millisecond

// ownCPU is the CPU time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// clientsEnv tells the program that it is the process of the streams of measureMemory.
const clientsEnv = "PROXIMA_BENCH_XDS_CLIENTS"

// measureMemory of streams at the server: what heap and stacks take after a collection. The streams
// are another process's.
func measureMemory(ctx context.Context, p plan, out io.Writer) error {
	n := 5 * p.streams
	fmt.Fprintf(out, "%d streams, %d services, %d of them used by each\n", n, p.services, p.used)
	for _, start := range []func(plan) (server, error){newFloor, newOurs, newSnapshot} {
		s, err := start(p)
		if err != nil {
			return err
		}
		each, err := serverEnd(ctx, s, p, n)
		s.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		fmt.Fprintf(out, "%-14s %.1f kB for each stream at the server: %.1f of heap, %.1f of stacks\n", s.name(),
			(each.heap+each.stacks)/1e3, each.heap/1e3, each.stacks/1e3)
	}
	return nil
}

// usage of memory, in bytes.
type usage struct{ heap, stacks float64 }

// serverEnd is the memory of each of n streams.
func serverEnd(ctx context.Context, s server, p plan, n int) (usage, error) {
	first := newCrowd(ctx, adsMethod, "") // what the first one needs is not the others'
	defer first.end()
	first.add(s.address(), s.asks(n-1, usedBy(n-1, p)), plain)
	if err := first.wait(&first.complete, 1); err != nil {
		return usage{}, err
	}
	before := inUse()
	cmd := exec.CommandContext(ctx, os.Args[0], s.name(), s.address(), strconv.Itoa(n-1), strconv.Itoa(p.services), strconv.Itoa(p.used))
	cmd.Env, cmd.Stderr = append(os.Environ(), clientsEnv+"=1"), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return usage{}, err
	}
	answer, err := cmd.StdoutPipe()
	if err != nil {
		return usage{}, err
	}
	if err := cmd.Start(); err != nil {
		return usage{}, err
	}
	line, err := bufio.NewReader(answer).ReadString('\n')
	time.Sleep(settle)
	after := inUse()
	if p.heap != "" && s.name() == "proxima" {
		err = errors.Join(err, writeHeap(p.heap))
	}
	err = errors.Join(err, in.Close(), cmd.Wait())
	if err == nil && line != connected {
		err = fmt.Errorf("the streams' process says %q", line)
	}
	return usage{(after.heap - before.heap) / float64(n-1), (after.stacks - before.stacks) / float64(n-1)}, err
}

func writeHeap(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(pprof.WriteHeapProfile(f), f.Close())
}

// connected is what the streams' process prints when all have what there is.
const connected = "connected\n"

// clients is the streams' process. It keeps them until its standard input ends.
func clients(args []string, out io.Writer, in io.Reader) error {
	if len(args) != 5 {
		return fmt.Errorf("arguments %q: want server, address, streams, services and used ones", args)
	}
	var numbers [3]int
	for i := range numbers {
		n, err := strconv.Atoi(args[2+i])
		if err != nil {
			return err
		}
		numbers[i] = n
	}
	p := plan{streams: numbers[0], services: numbers[1], used: numbers[2]}
	kinds := map[string]server{"floor": &floor{}, "proxima": &ours{}, "SnapshotCache": &snapshot{}}
	c := newCrowd(context.Background(), adsMethod, "")
	defer c.end()
	for i := range p.streams {
		c.add(args[1], kinds[args[0]].asks(i, usedBy(i, p)), plain)
	}
	if err := c.wait(&c.complete, p.streams); err != nil {
		return err
	}
	fmt.Fprint(out, connected)
	_, err := io.Copy(io.Discard, in)
	return err
}

// inUse is the memory that this process's heap and stacks take, after what is not used was
// collected.
func inUse() usage {
	// More than one, for what finalizers and pools held on to. Stacks that are mostly unused shrink by
	// half in each.
	for range 5 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{float64(m.HeapAlloc), float64(m.StackInuse)}
}
