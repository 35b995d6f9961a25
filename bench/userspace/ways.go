package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// way is one way to the server.
type way struct {
	name string
	addr string
	pid  int // of the proxy; 0: none
}

// message is request and answer.
const message = 64

// startWays starts server and proxies. stop ends them; it is never nil.
func startWays(out io.Writer) (ways []way, stop func(), err error) {
	var running []*exec.Cmd
	stop = func() {
		for _, c := range running {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
	start := func(role, vip, target string) (way, error) {
		cmd, addr, err := startSelf(role, vip, target)
		if cmd != nil {
			running = append(running, cmd)
		}
		if err != nil {
			return way{}, fmt.Errorf("starting %s: %w", role, err)
		}
		return way{role, addr, cmd.Process.Pid}, nil
	}
	server, err := start("server", "", "")
	if err != nil {
		return nil, stop, err
	}
	ways = append(ways, way{name: "direct", addr: server.addr})
	for _, role := range []string{"userspace", "naive"} {
		w, err := start(role, "127.96.251.1:8080", server.addr)
		if err != nil {
			return nil, stop, err
		}
		ways = append(ways, w)
	}
	path, err := exec.LookPath("haproxy")
	if err != nil {
		fmt.Fprintln(out, "haproxy is not installed, so nothing is compared with it")
		return ways, stop, nil
	}
	cmd, addr, err := startHAProxy(path, server.addr)
	if cmd != nil {
		running = append(running, cmd)
	}
	if err != nil {
		return nil, stop, fmt.Errorf("starting haproxy: %w", err)
	}
	return append(ways, way{"haproxy", addr, cmd.Process.Pid}), stop, nil
}

// startSelf runs this program in a role; it prints where it listens.
func startSelf(role, vip, target string) (*exec.Cmd, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.Command(self, "-role", role, "-vip", vip, "-target", target)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // whose end ends the process
		return nil, "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	return cmd, strings.TrimSpace(line), err
}

// haproxyConfig enables exactly what the others do: copy a stream.
// Two threads are as many as the userspace mode has on two processors. Without
// logs and health checks, which cost HAProxy time that the others do not spend.
const haproxyConfig = `global
  nbthread 2
  maxconn 4096
defaults
  mode tcp
  timeout connect 1s
  timeout client 1m
  timeout server 1m
frontend in
  bind %s
  default_backend out
backend out
  server one %s
`

func startHAProxy(path, target string) (*exec.Cmd, string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		return nil, "", err
	}
	dir, err := os.MkdirTemp("", "proxima-bench-")
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	config := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(config, fmt.Appendf(nil, haproxyConfig, addr, target), 0o600); err != nil {
		return nil, "", err
	}
	cmd := exec.Command(path, "-db", "-q", "-f", config)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) { // it does not report when it listens
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return cmd, addr, c.Close()
		}
		if time.Since(begin) > 10*time.Second {
			return cmd, addr, err
		}
	}
}

// once is a short transaction: connect, request, answer, close.
func (w way) once(buf []byte) error {
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		return err
	}
	return errors.Join(exchange(c, buf), c.Close())
}

func exchange(c net.Conn, buf []byte) error {
	if _, err := c.Write(buf); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buf)
	return err
}

// latencies is the median time of n short transactions, one after another.
func (w way) latencies(n int) (time.Duration, error) {
	buf := make([]byte, message)
	var all []time.Duration
	for range n {
		begin := time.Now()
		if err := w.once(buf); err != nil {
			return 0, err
		}
		all = append(all, time.Since(begin))
	}
	return median(all), nil
}

// roundTrips is the median time of n exchanges on one connection.
func (w way) roundTrips(n int) (time.Duration, error) {
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	buf := make([]byte, message)
	var all []time.Duration
	for range n {
		begin := time.Now()
		if err := exchange(c, buf); err != nil {
			return 0, err
		}
		all = append(all, time.Since(begin))
	}
	return median(all), nil
}

// shorts makes n short transactions, divided among clients.
func (w way) shorts(n, clients int) error {
	errs := make(chan error, clients)
	for i := range clients {
		go func() {
			buf := make([]byte, message)
			var err error
			for range (n + i) / clients {
				if err = w.once(buf); err != nil {
					break
				}
			}
			errs <- err
		}()
	}
	var all error
	for range clients {
		all = errors.Join(all, <-errs)
	}
	return all
}

// cpu is what the proxy's threads have used so far, from the scheduler, whose
// clock is finer than that of process times.
func (w way) cpu() time.Duration {
	if w.pid == 0 {
		return 0
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", w.pid))
	var sum time.Duration
	for _, f := range files {
		data, _ := os.ReadFile(f) // a thread may have ended
		spent, _, _ := strings.Cut(string(data), " ")
		ns, _ := strconv.ParseInt(spent, 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}
