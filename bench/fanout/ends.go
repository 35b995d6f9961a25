package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
)

// connected is what the clients' process prints when all streams have what there is.
const connected = "connected"

// serverEnd is the memory that each of n idle streams takes at the server, in bytes: its
// clients are in another process.
func serverEnd(srv server, n int) (uint64, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	g := srv.grpcServer()
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	before := inUse()
	clients := exec.Command(os.Args[0], l.Addr().String(), srv.method(), strconv.Itoa(n))
	clients.Env, clients.Stderr = append(os.Environ(), clientsEnv+"=1"), os.Stderr
	in, err := clients.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := clients.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := clients.Start(); err != nil {
		return 0, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	after := inUse()
	err = errors.Join(err, in.Close(), clients.Wait())
	if err != nil {
		return 0, fmt.Errorf("clients of %s: %w", srv.name(), err)
	}
	if line != connected+"\n" {
		return 0, fmt.Errorf("clients of %s say %q", srv.name(), line)
	}
	return (after - before) / uint64(n), nil
}

// clientsEnv tells a test's program that it is the clients' process.
const clientsEnv = "PROXIMA_BENCH_FANOUT_CLIENTS"

// connect is the clients' process: its arguments are address, method and number of streams. It
// keeps them until its standard input ends.
func connect(args []string, out io.Writer, in io.Reader) error {
	if len(args) != 3 {
		return fmt.Errorf("arguments %q: want address, method and number of streams", args)
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &subject{cancel: cancel, streams: int64(n), all: make(chan struct{}, 1), failed: make(chan error, n)}
	defer s.stop()
	if err := s.connect(ctx, args[1], args[0]); err != nil {
		return err
	}
	fmt.Fprintln(out, connected)
	_, err = io.Copy(io.Discard, in)
	return err
}
