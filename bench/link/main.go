//go:build linux

// Command link measures what "proxima lab link" does to a path: how exact the delay is, what
// share of packets is lost, and how much traffic passes. It runs a lab of two zones (package
// lab) in network namespaces of one machine. It needs root and Linux.
//
//	go run ./bench/link [-smoke] [-packets 5000] [-seconds 5] [-binary bin/proxima]
//
// The error of the delay is the time from before a packet is sent until the kernel of the
// receiver has it, less the delay that was asked for; a packet that took the sender more than
// 0.2 ms to send is not counted, as the computer was busy with something else. It exits with 1 if something did not
// work, and not because a goal was missed: that depends on the machine.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
)

const (
	address     = "10.200.2.11"
	connections = 4
)

type plan struct {
	packets int
	length  time.Duration
	binary  string
}

func main() {
	p := plan{}
	smoke := flag.Bool("smoke", false, "only show that it works")
	flag.IntVar(&p.packets, "packets", 5000, "packets by which a delay is measured")
	seconds := flag.Float64("seconds", 5, "how long traffic is measured")
	flag.StringVar(&p.binary, "binary", "bin/proxima", "program to measure")
	flag.Parse()
	p.length = time.Duration(*seconds * float64(time.Second))
	if *smoke {
		p.packets, p.length = 200, 500*time.Millisecond
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, p); err != nil {
		fmt.Fprintln(os.Stderr, "link:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, p plan) (err error) {
	executable, err := filepath.Abs(p.binary)
	if err != nil {
		return err
	}
	l, err := lab.Start(ctx, lab.Spec{
		Name: fmt.Sprintf("l%d", os.Getpid()%10_000_000), Zones: 2, Nodes: 1, Mode: "userspace", Executable: executable, Temporary: true,
	})
	if err != nil {
		return err
	}
	defer func() {
		if downErr := l.Down(context.WithoutCancel(ctx)); err == nil {
			err = downErr
		}
	}()
	w := &world{lab: l, plan: p}
	for _, n := range []struct {
		place string
		to    **netns.NS
	}{{"client-a", &w.here}, {"b-1", &w.there}} {
		if *n.to, err = netns.Open(l.Namespace(n.place)); err != nil {
			return err
		}
		defer (*n.to).Close()
	}
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "DELAY\tLOSS\tERROR P50, MS\tP99, MS\tLOST\tGBIT/S\tGOAL")
	for _, q := range []lab.Quality{
		{}, {Delay: time.Millisecond}, {Delay: 20 * time.Millisecond}, {Delay: 100 * time.Millisecond}, {Delay: 20 * time.Millisecond, Loss: 0.001},
	} {
		if err := w.measure(ctx, table, q); err != nil {
			return fmt.Errorf("delay %s, loss %g: %w", q.Delay, q.Loss, err)
		}
	}
	return table.Flush()
}

// world is a lab, with the client of the first zone and the node of the second one.
type world struct {
	lab         *lab.Lab
	plan        plan
	here, there *netns.NS
}

func (w *world) measure(ctx context.Context, out io.Writer, q lab.Quality) error {
	if err := w.lab.Link(ctx, "zone-a", "zone-b", q); err != nil {
		return err
	}
	late, counted, err := w.packets(ctx, q.Delay)
	if err != nil {
		return err
	}
	rate, err := w.traffic(ctx)
	if err != nil {
		return err
	}
	goal := "p99 ≤ 1 ms, ≥ 1 Gbit/s"
	switch {
	case q == (lab.Quality{}):
		goal = "the path itself"
	case q.Loss > 0 || q.Delay > 20*time.Millisecond:
		goal = "p99 ≤ 1 ms; TCP limits itself"
	}
	lost := 1 - float64(len(late))/float64(counted)
	_, err = fmt.Fprintf(out, "%s\t%g %%\t%.3f\t%.3f\t%.2f %%\t%.2f\t%s\n", q.Delay, q.Loss*100, quantile(late, 0.5), quantile(late, 0.99), lost*100, rate/1e9, goal)
	return err
}

// packets sends datagrams and returns how many count, and how much later than the delay each
// of these arrived.
func (w *world) packets(ctx context.Context, delay time.Duration) (late []time.Duration, counted int, err error) {
	listener, err := w.there.ListenPacket("udp", net.JoinHostPort(address, "9000"))
	if err != nil {
		return nil, 0, err
	}
	defer listener.Close()
	server := listener.(*net.UDPConn)
	raw, err := server.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var failure error
	if err := raw.Control(func(fd uintptr) {
		failure = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	}); err != nil || failure != nil {
		return nil, 0, fmt.Errorf("timestamps of packets: %w", failure)
	}
	client, err := w.here.DialContext(ctx, "udp", net.JoinHostPort(address, "9000"))
	if err != nil {
		return nil, 0, err
	}
	defer client.Close()
	arrived := map[int64]time.Duration{} // by when they were sent
	done := make(chan error, 1)
	go func() {
		buf, control := make([]byte, 8), make([]byte, 128)
		for {
			_, n, _, _, err := server.ReadMsgUDP(buf, control)
			if err != nil {
				done <- nil // the end, or the deadline after the last packet
				return
			}
			at, err := arrival(control[:n])
			if err != nil {
				done <- err
				return
			}
			sent := int64(binary.BigEndian.Uint64(buf))
			arrived[sent] = time.Duration(at-sent) - delay
		}
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var sent []int64
	for range w.plan.packets {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
		begin := time.Now()
		if _, err := client.Write(binary.BigEndian.AppendUint64(nil, uint64(begin.UnixNano()))); err != nil {
			return nil, 0, err
		}
		if time.Since(begin) <= 200*time.Microsecond {
			sent = append(sent, begin.UnixNano())
		}
	}
	if err := server.SetReadDeadline(time.Now().Add(2*delay + 500*time.Millisecond)); err != nil {
		return nil, 0, err
	}
	if err := <-done; err != nil {
		return nil, 0, err
	}
	for _, at := range sent {
		if l, ok := arrived[at]; ok {
			late = append(late, l)
		}
	}
	return late, len(sent), nil
}

// arrival is when the kernel had a packet, by its clock in nanoseconds.
func arrival(control []byte) (int64, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return int64(binary.NativeEndian.Uint64(m.Data))*1e9 + int64(binary.NativeEndian.Uint64(m.Data[8:])), nil
		}
	}
	return 0, fmt.Errorf("a packet without a timestamp")
}

// traffic sends as much as passes by some connections of TCP, and returns bits per second.
func (w *world) traffic(ctx context.Context) (float64, error) {
	listener, err := w.there.Listen("tcp", net.JoinHostPort(address, "9001"))
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	var received atomic.Int64
	var running sync.WaitGroup
	running.Go(func() {
		for range connections {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				buf := make([]byte, 256<<10)
				for {
					n, err := c.Read(buf)
					received.Add(int64(n))
					if err != nil {
						return
					}
				}
			})
		}
	})
	end := time.Now().Add(w.plan.length + time.Second)
	for range connections {
		c, err := w.here.DialContext(ctx, "tcp", net.JoinHostPort(address, "9001"))
		if err != nil {
			return 0, err
		}
		defer c.Close()
		if err := c.SetDeadline(end); err != nil {
			return 0, err
		}
		running.Go(func() {
			defer c.Close()
			buf := make([]byte, 256<<10)
			for {
				if _, err := c.Write(buf); err != nil {
					return // the deadline
				}
			}
		})
	}
	time.Sleep(500 * time.Millisecond) // windows grow
	before, began := received.Load(), time.Now()
	time.Sleep(w.plan.length)
	rate := float64(received.Load()-before) * 8 / time.Since(began).Seconds()
	running.Wait()
	return rate, nil
}

// quantile in milliseconds; 0 of nothing.
func quantile(times []time.Duration, q float64) float64 {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]) / float64(time.Millisecond)
}
