package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
)

// packetPort of the virtual address, for datagrams.
const packetPort = 53

// packets measures what a translated packet costs the sender while the kernel counts bytes, and
// while it does not. A connection is counted if the setting is on when it begins, so each series
// is a connection of its own. Each round has three of them: off, on, and off again, which shows
// the noise; which is first changes by turns. Nobody reads the datagrams: the kernel drops them
// where they arrive.
func (s sizes) packets(ctx context.Context, out io.Writer) error {
	t, err := newTable(ctx, 0, 0)
	if err != nil {
		return err
	}
	defer func() { _ = t.close() }() // nothing is left of it
	rule := []string{
		"-w", "-t", "nat", "-A", "OUTPUT", "-p", "udp", "-d", virtual, "--dport", fmt.Sprint(packetPort), "-j", "DNAT",
		"--to-destination", endpoint + ":8053",
	}
	if text, err := t.ns.Output(ctx, "iptables-legacy", rule...); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	sink, err := t.ns.ListenPacket("udp4", endpoint+":8053")
	if err != nil {
		return err
	}
	defer sink.Close()

	var cost [3][]time.Duration
	for round := range s.packetRounds {
		for k := range cost {
			k = (k + round) % len(cost)
			used, err := t.series(k == 1, s.packetSeries)
			if err != nil {
				return err
			}
			cost[k] = append(cost[k], used)
		}
	}
	var counted, again []float64
	for round, off := range cost[0] {
		counted = append(counted, float64(cost[1][round])/float64(off))
		again = append(again, float64(cost[2][round])/float64(off))
	}
	fmt.Fprintf(out, "packets, %d series of %d datagrams each way, load average %s\n", s.packetRounds, s.packetSeries, load())
	fmt.Fprintf(out, "  a datagram: %.0f ns of the sender's processor time; counted %.3f times that, not counted once more %.3f (%.3f to %.3f)\n",
		float64(median(cost[0]).Nanoseconds())/float64(s.packetSeries), middle(counted), middle(again), slices.Min(again), slices.Max(again))
	return nil
}

// series of datagrams through the virtual address, and the processor time of the sending thread.
func (t *table) series(count bool, datagrams int) (used time.Duration, err error) {
	setting := "0"
	if count {
		setting = "1"
	}
	if err := t.ns.SetSysctl("net.netfilter.nf_conntrack_acct", setting); err != nil {
		return 0, err
	}
	if on, err := conntrack.NewReader(t.ns.Fd()).Counting(); err != nil || on != count {
		return 0, fmt.Errorf("counting is %t, want %t: %w", on, count, err)
	}
	err = t.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // nothing waits in it
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(virtual).As4(), Port: packetPort}); err != nil {
			return err
		}
		payload := make([]byte, 64)
		send := func(n int) error {
			for range n {
				if err := unix.Send(fd, payload, 0); err != nil {
					return err
				}
			}
			return nil
		}
		if err := send(1 + datagrams/100); err != nil { // the connection is in the table, and caches are warm
			return err
		}
		runtime.GC()
		var a, b unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &a); err != nil {
			return err
		}
		if err := send(datagrams); err != nil {
			return err
		}
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &b); err != nil {
			return err
		}
		used = time.Duration(b.Utime.Nano() + b.Stime.Nano() - a.Utime.Nano() - a.Stime.Nano())
		return nil
	})
	if err == nil && used <= 0 {
		err = fmt.Errorf("%d datagrams took no processor time: more are needed", datagrams)
	}
	return used, err
}

func middle(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
