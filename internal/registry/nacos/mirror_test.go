package nacos

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/registry/mirror/mirrortest"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

func TestMirror(t *testing.T) { mirrortest.Run(t, newTown) }

func TestMirrorEntries(t *testing.T) { mirrortest.RunEntries(t, newTown) }

// ports of HTTP and gRPC that are free.
func ports(t *testing.T) (a, b net.Listener) {
	t.Helper()
	for range 50 {
		a, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		b, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(a.Addr().(*net.TCPAddr).Port+grpcOffset)))
		if err == nil {
			return a, b
		}
		_ = a.Close()
	}
	t.Fatal("no two ports are free")
	return nil, nil
}

func newTown(t *testing.T) *mirrortest.Town {
	t.Helper()
	p := registrytest.New(t)
	a, b := ports(t)
	server := New(p.Core)
	server.grace = time.Second
	http, grpc := p.ServeOn(a, server.ServeHTTPOn), p.ServeOn(b, server.Serve)
	return &mirrortest.Town{
		Plane: p, Protocol: registry.Nacos,
		Client: func(bool) mirror.Client {
			return NewClient(ClientConfig{Servers: []string{http}, Namespaces: registry.Namespaces{"public": "default"}, Poll: 20 * time.Millisecond})
		},
		Entries: func(bool) mirror.EntryClient {
			return NewEntries(ClientConfig{Servers: []string{http}, Namespaces: registry.Namespaces{"public": "default"}, Poll: 50 * time.Millisecond})
		},
		Provide: func(t *testing.T, service string, ports ...int) (stop func()) {
			c := connect(t, grpc)
			c.setUp()
			message := register(service, ports...)
			if answer := c.ask("BatchInstanceRequest", message); answer["success"] != true {
				t.Fatal(answer)
			}
			return func() {
				for _, i := range message["instances"].([]map[string]any) {
					answer := c.ask("InstanceRequest", map[string]any{
						"namespace": "public", "serviceName": service, "groupName": "DEFAULT_GROUP", "type": "deregisterInstance", "instance": i,
					})
					if answer["success"] != true {
						t.Error(answer)
					}
				}
			}
		},
	}
}
