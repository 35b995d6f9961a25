package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	shortClients = 8
	shortSize    = 64
)

// result is what one way took, a value for each round.
type result struct {
	down, up   []float64 // bytes per second
	short      []float64 // connections per second
	echo       []float64 // seconds, the median of a round
	cpuPerGB   []float64 // seconds of both proxies
	cpuPerConn []float64 // seconds of both proxies
}

func (r *result) measure(p plan, w *way) error {
	cpu := w.cpu()
	down, err := w.bulk(askDownload, p.Bulk)
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	up, err := w.bulk(askUpload, p.Bulk)
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	bulk := w.cpu()
	begin := time.Now()
	if err := w.shorts(p.Short); err != nil {
		return fmt.Errorf("short connections: %w", err)
	}
	took, end := time.Since(begin), w.cpu()
	echo, err := w.echo(p.Echoes)
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	r.down, r.up = append(r.down, down), append(r.up, up)
	r.short = append(r.short, float64(p.Short)/took.Seconds())
	r.echo = append(r.echo, echo)
	r.cpuPerGB = append(r.cpuPerGB, (bulk-cpu).Seconds()/(float64(2*p.Bulk)/1e9))
	r.cpuPerConn = append(r.cpuPerConn, (end-bulk).Seconds()/float64(p.Short))
	return nil
}

func (w *way) request(ask byte, size int64) (net.Conn, error) {
	c, err := net.Dial("tcp", w.Addr)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(5 * time.Minute)) // a way that hangs ends
	if err := request(c, ask, size); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func request(c net.Conn, ask byte, size int64) error {
	_, err := c.Write(binary.BigEndian.AppendUint64([]byte{ask}, uint64(size)))
	return err
}

// bulk carries size bytes on one connection, and returns bytes per second.
func (w *way) bulk(ask byte, size int64) (rate float64, err error) {
	c, err := w.request(ask, size)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	begin := time.Now()
	if err := transfer(c, ask, size); err != nil {
		return 0, err
	}
	return float64(size) / time.Since(begin).Seconds(), nil
}

func transfer(c net.Conn, ask byte, size int64) error {
	if ask == askDownload {
		return discard(c, size)
	}
	if err := send(c, size); err != nil {
		return err
	}
	return discard(c, 1)
}

// echo is the median time of n exchanges of one byte on one connection.
func (w *way) echo(n int) (float64, error) {
	c, err := w.request(askEcho, int64(n))
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	var all []float64
	var b [1]byte
	for range n {
		begin := time.Now()
		if _, err := c.Write(b[:]); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return 0, err
		}
		all = append(all, time.Since(begin).Seconds())
	}
	return median(all), nil
}

// shorts makes n transactions, divided among clients, each on a connection of its own.
func (w *way) shorts(n int) error {
	errs := make(chan error, shortClients)
	for i := range shortClients {
		go func() {
			var err error
			for range (n + i) / shortClients {
				if err = w.once(); err != nil {
					break
				}
			}
			errs <- err
		}()
	}
	var all error
	for range shortClients {
		all = errors.Join(all, <-errs)
	}
	return all
}

func (w *way) once() error {
	c, err := w.request(askShort, shortSize)
	if err != nil {
		return err
	}
	err = send(c, shortSize)
	if err == nil {
		err = discard(c, shortSize)
	}
	return errors.Join(err, c.Close())
}

// memory is what both sides hold for idle connections that have carried data both ways.
func memory(out io.Writer, p plan, ways []way) error {
	fmt.Fprintf(out, "\nresident memory for %d idle connections, after %d kB both ways on each\n", p.Idle, p.Each>>10)
	for i := range ways {
		w := &ways[i]
		if len(w.Proxies) == 0 {
			continue
		}
		if err := w.memory(out, p); err != nil {
			return fmt.Errorf("%s: %w", w.Name, err)
		}
	}
	return nil
}

func (w *way) memory(out io.Writer, p plan) error {
	before := make([]int64, len(w.Proxies))
	for i, pid := range w.Proxies {
		var err error
		if before[i], err = resident(pid); err != nil {
			return err
		}
	}
	conns, err := w.crowd(p)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	if err != nil {
		return err
	}
	time.Sleep(p.Settle)
	for i, pid := range w.Proxies {
		after, err := resident(pid)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-10s %s side %8.1f kB per connection (%.0f MB, before %.0f MB)\n", w.Name, []string{"client", "server"}[i],
			float64(after-before[i])/1024/float64(p.Idle), float64(after)/1e6, float64(before[i])/1e6)
	}
	return nil
}

// crowd opens connections, and carries data on each.
func (w *way) crowd(p plan) ([]net.Conn, error) {
	var mu sync.Mutex
	var conns []net.Conn
	errs := make(chan error, 16)
	for i := range cap(errs) {
		go func() {
			var err error
			for range (p.Idle + i) / cap(errs) {
				var c net.Conn
				if c, err = w.request(askDownload, p.Each); err != nil {
					break
				}
				mu.Lock()
				conns = append(conns, c)
				mu.Unlock()
				if err = transfer(c, askDownload, p.Each); err == nil {
					err = request(c, askUpload, p.Each)
				}
				if err == nil {
					err = transfer(c, askUpload, p.Each)
				}
				if err != nil {
					break
				}
			}
			errs <- err
		}()
	}
	var all error
	for range cap(errs) {
		all = errors.Join(all, <-errs)
	}
	return conns, all
}

func report(out io.Writer, p plan, ways []way, results []result) {
	added := make([][]float64, len(ways)) // by the way, over the direct one
	for i := range ways {
		for round := range results[i].echo {
			added[i] = append(added[i], results[i].echo[round]-results[0].echo[round])
		}
	}
	fmt.Fprintf(out, "medians of %d rounds; %d MB each way, 1-byte echo, connections of %d bytes both ways\n", p.Rounds, p.Bulk>>20, shortSize)
	fmt.Fprintf(out, "%-10s %10s %10s %10s %14s %12s %14s\n",
		"", "down MB/s", "up MB/s", "conn/s", "echo added µs", "cpu s/GB", "cpu µs/conn")
	for i, w := range ways {
		r := &results[i]
		fmt.Fprintf(out, "%-10s %10.0f %10.0f %10.0f %14.1f %12.2f %14.0f\n", w.Name, median(r.down)/1e6, median(r.up)/1e6, median(r.short),
			median(added[i])*1e6, median(r.cpuPerGB), median(r.cpuPerConn)*1e6)
	}
	for base, b := range ways {
		if b.Name != "haproxy" && b.Name != "envoy" {
			continue
		}
		fmt.Fprintf(out, "\ncompared with %s: median (least to greatest) of the rounds' ratios\n", b.Name)
		to := &results[base]
		for i, w := range ways {
			if w.Name == "direct" || i == base {
				continue
			}
			r := &results[i]
			fmt.Fprintf(out, "%-10s down %s, up %s, conn/s %s, echo added %s, cpu/GB %s, cpu/conn %s\n", w.Name,
				ratio(r.down, to.down), ratio(r.up, to.up), ratio(r.short, to.short), ratio(added[i], added[base]),
				ratio(r.cpuPerGB, to.cpuPerGB), ratio(r.cpuPerConn, to.cpuPerConn))
		}
	}
}

func median[T cmp.Ordered](all []T) T {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// ratios a/b, round by round.
func ratios(a, b []float64) []float64 {
	var all []float64
	for i := range a {
		all = append(all, a[i]/b[i])
	}
	return all
}

func ratio(a, b []float64) string {
	all := ratios(a, b)
	return fmt.Sprintf("%.2f (%.2f–%.2f)", median(all), slices.Min(all), slices.Max(all))
}
