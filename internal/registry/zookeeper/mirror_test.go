package zookeeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/registry/mirror/mirrortest"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

func TestMirror(t *testing.T) { mirrortest.Run(t, newTown) }

func TestMirrorEntries(t *testing.T) { mirrortest.RunEntries(t, newTown) }

func newTown(t *testing.T) *mirrortest.Town {
	t.Helper()
	p := registrytest.New(t)
	server := New(p.Core)
	server.minTimeout = time.Second
	address := p.Serve(server.Serve)
	return &mirrortest.Town{
		Plane: p, Protocol: registry.ZooKeeper, Apart: CopiedApart,
		Client: func(here bool) mirror.Client {
			return NewClient(ClientConfig{Servers: []string{address}, Namespace: "default", Proxima: here, Timeout: time.Second})
		},
		Entries: func(here bool) mirror.EntryClient {
			return NewEntries(ClientConfig{Servers: []string{address}, Namespace: "default", Proxima: here, Timeout: time.Second})
		},
		Provide: func(t *testing.T, service string, ports ...int) (stop func()) {
			c := dial(t, address, nil)
			var paths []string
			for _, port := range ports {
				id := fmt.Sprintf("10.1.0.7:%d", port)
				path := "/services/" + service + "/" + id
				data := fmt.Sprintf(`{"name":%q,"id":%q,"address":"10.1.0.7","port":%d,"payload":{"@class":"x","id":%q,"name":%q,"metadata":{"version":"v2"}}}`, service, id, port, id, service)
				if _, result := c.ask(opCreate, func(e *encoder) { encodeChange(e, opCreate, path, data, modeEphemeral) }); result != codeOK {
					t.Fatalf("create %s: %d", path, result)
				}
				paths = append(paths, path)
			}
			return func() {
				for _, path := range paths {
					if _, result := c.ask(opDelete, func(e *encoder) { encodeChange(e, opDelete, path, "", anyVersion) }); result != codeOK && result != codeNoNode {
						t.Errorf("delete %s: %d", path, result)
					}
				}
			}
		},
	}
}
