package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// client of a registry, by one protocol. Instances are numbers: what they are called follows from them.
type client interface {
	register(service string, n int) error
	deregister(service string, n int) error
	// query asks for the instances of a service, and how many there are.
	query(service string) (instances int, err error)
	// follow calls changed with each list of a service that a client gets to know from now on, and when:
	// whether it has the instance of a number.
	follow(service string, changed func(has func(n int) bool, at time.Time)) error
	close()
}

// protocol that both of a pair speak.
type protocol struct {
	name string
	// start the peer; address of a server.
	start   func(ctx context.Context, p plan) (*process, error)
	address func(*process) string
	connect func(address string) (client, error)
}

func allProtocols() []protocol {
	return []protocol{
		{"nacos", startRNacos, func(p *process) string { return p.nacos }, connectNacos},
		{"zookeeper", startZooKeeper, func(p *process) string { return p.zookeeper }, connectZooKeeper},
		{"eureka", func(ctx context.Context, p plan) (*process, error) { return startEureka(ctx, p, false) },
			func(p *process) string { return p.eureka }, connectEureka},
	}
}

// pairs runs f for each protocol, with a new process of ours and, if it is installed, one of the peer.
func pairs(ctx context.Context, p plan, out io.Writer, f func(protocol, []*process) error) error {
	for _, proto := range allProtocols() {
		if !slices.Contains(p.protocols, proto.name) {
			continue
		}
		if err := pair(ctx, p, out, proto, f); err != nil {
			return fmt.Errorf("%s: %w", proto.name, err)
		}
	}
	return nil
}

func pair(ctx context.Context, p plan, out io.Writer, proto protocol, f func(protocol, []*process) error) error {
	ours, err := startOurs(ctx, p, proto.name)
	if err != nil {
		return err
	}
	defer ours.stop()
	servers := []*process{ours}
	peer, err := proto.start(ctx, p)
	if err != nil {
		fmt.Fprintf(out, "%s: no peer: %v; bench/registry/peers installs it\n", proto.name, err)
	} else {
		defer peer.stop()
		servers = append(servers, peer)
	}
	return f(proto, servers)
}

// connectAll opens clients, some at a time.
func connectAll(proto protocol, server *process, n int) ([]client, error) {
	out := make([]client, n)
	err := each(min(n, 32), n, func(_, i int) (err error) {
		out[i], err = proto.connect(proto.address(server))
		return err
	})
	if err != nil {
		closeAll(out)
		return nil, fmt.Errorf("connect to %s: %w", server.name, err)
	}
	return out, nil
}

func closeAll(list []client) {
	for _, c := range list {
		if c != nil {
			c.close()
		}
	}
}

// each calls f for the numbers below n, with so many at a time; a worker that had an error does no more.
func each(workers, n int, f func(worker, i int) error) error {
	next := make(chan int)
	errs := make([]error, workers)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := range next {
				if errs[w] == nil {
					errs[w] = f(w, i)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	running.Wait()
	return errors.Join(errs...)
}

// percentile of a list, which is sorted by it.
func percentile(list []time.Duration, p float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[min(int(float64(len(list))*p/100), len(list)-1)]
}

func millis(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// pause for a time.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
