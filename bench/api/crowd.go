package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// watchersPerConnection of the idle ones; an HTTP/2 server takes 100 to 250
// streams on a connection.
const watchersPerConnection = 50

// crowd measures what watchers cost another client: many that get nothing, and
// some that are sent everything and read none of it.
func (b *bench) crowd(ctx context.Context) error {
	p, err := b.startPlane(ctx, "sqlite:")
	if err != nil {
		return err
	}
	defer p.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the watches
	clients, err := p.clients(ctx, 1)
	if err != nil {
		return err
	}
	if _, err := clients[0].CoreV1().ConfigMaps("default").Create(ctx, configMap("mine", 0), metav1.CreateOptions{}); err != nil {
		return err
	}
	alone, err := b.roundTrips(ctx, clients[0])
	if err != nil {
		return err
	}
	if err := p.idleWatchers(ctx, b.idle); err != nil {
		return err
	}
	idle, err := b.roundTrips(ctx, clients[0])
	if err != nil {
		return err
	}
	if err := p.slowReaders(ctx, b.slow); err != nil {
		return err
	}
	crowded, err := b.roundTrips(ctx, clients[0])
	if err != nil {
		return err
	}
	for i, what := range []string{"read", "write"} {
		quiet := alone[i].quantile(0.5)
		b.atMost(fmt.Sprintf("another client's %s, alone, p50", what), quiet, 0, "%.2f ms")
		b.atMost(fmt.Sprintf("… with %d idle watchers", b.idle), idle[i].quantile(0.5), 2*quiet, "%.2f ms")
		b.atMost(fmt.Sprintf("… and %d slow readers", b.slow), crowded[i].quantile(0.5), 2*quiet, "%.2f ms")
		b.atMost("… p99", crowded[i].quantile(0.99), 0, "%.2f ms")
	}
	memory, err := p.resident()
	b.atMost("memory of the control plane then", memory, 0, "%.0f MB")
	return err
}

// roundTrips are times of reads and of writes of 16 KiB, which slow readers are
// sent and do not read.
func (b *bench) roundTrips(ctx context.Context, c *kubernetes.Clientset) (times [2]durations, err error) {
	for range b.changes / 2 {
		began := time.Now()
		if _, err := c.CoreV1().ConfigMaps("default").Get(ctx, "mine", metav1.GetOptions{}); err != nil {
			return times, err
		}
		read := time.Now()
		obj := configMap("mine", 16<<10)
		obj.Data["at"] = read.String()
		if _, err := c.CoreV1().ConfigMaps("default").Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
			return times, err
		}
		times[0] = append(times[0], read.Sub(began))
		times[1] = append(times[1], time.Since(read))
	}
	return times, nil
}

// idleWatchers follow Services, of which none changes, until ctx ends.
func (p *process) idleWatchers(ctx context.Context, n int) error {
	var c *kubernetes.Clientset
	for i := range n {
		if i%watchersPerConnection == 0 {
			var err error
			if c, err = p.client(); err != nil {
				return err
			}
		}
		w, err := c.CoreV1().Services("default").Watch(ctx, metav1.ListOptions{ResourceVersion: "0", AllowWatchBookmarks: true})
		if err != nil {
			return err
		}
		go func() {
			for range w.ResultChan() { //nolint:revive // only there to be connected
			}
		}()
	}
	return nil
}

// slowReaders request everything and read none of it, until ctx ends.
func (p *process) slowReaders(ctx context.Context, n int) error {
	cfg, err := p.config()
	if err != nil {
		return err
	}
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return err
	}
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return err
	}
	tlsConfig.NextProtos = []string{"http/1.1"}
	if tlsConfig.ServerName == "" {
		tlsConfig.ServerName, _, _ = net.SplitHostPort(p.api)
	}
	for range n {
		raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.api)
		if err != nil {
			return err
		}
		if err := raw.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			return err
		}
		conn := tls.Client(raw, tlsConfig)
		if err := conn.HandshakeContext(ctx); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(conn, "GET /api/v1/namespaces/default/configmaps?watch=true HTTP/1.1\r\nHost: %s\r\n\r\n", p.api); err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { _ = raw.Close() })
	}
	return nil
}
