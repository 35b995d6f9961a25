package main

import (
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry/nacos"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/registry/zookeeper"
)

// TestClients: each client registers at our server, finds what it registered, and is told of it.
func TestClients(t *testing.T) {
	p := registrytest.New(t)
	for _, test := range []struct {
		name    string
		address string
		connect func(string) (client, error)
	}{
		{"nacos", p.Serve(nacos.New(p.Core).Serve), connectNacos},
		{"zookeeper", p.Serve(zookeeper.New(p.Core).Serve), connectZooKeeper},
	} {
		t.Run(test.name, func(t *testing.T) {
			writer, err := test.connect(test.address)
			if err != nil {
				t.Fatal(err)
			}
			defer writer.close()
			reader, err := test.connect(test.address)
			if err != nil {
				t.Fatal(err)
			}
			defer reader.close()
			service := "bench-" + test.name
			if err := writer.register(service, 0); err != nil {
				t.Fatal(err)
			}
			p.Eventually("the instance is found", func() bool {
				n, err := reader.query(service)
				return err == nil && n == 1
			})
			told, once := make(chan struct{}), sync.Once{}
			err = reader.follow(service, func(has func(int) bool, _ time.Time) {
				if has(1) {
					once.Do(func() { close(told) })
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			other, err := test.connect(test.address) // a client of Nacos has one instance of a service
			if err != nil {
				t.Fatal(err)
			}
			defer other.close()
			if err := other.register(service, 1); err != nil {
				t.Fatal(err)
			}
			select {
			case <-told:
			case <-time.After(10 * time.Second):
				t.Error("the subscriber is not told of the second instance")
			}
			if err := writer.deregister(service, 0); err != nil {
				t.Fatal(err)
			}
			p.Eventually("the instance is gone", func() bool {
				n, err := reader.query(service)
				return err == nil && n == 1
			})
			if l, ok := reader.(lister); ok {
				if n, err := l.list(); err != nil || n == 0 {
					t.Errorf("list: %d bytes, %v", n, err)
				}
			}
		})
	}
}
