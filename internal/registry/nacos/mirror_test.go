package nacos

import (
	"cmp"
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
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

// An entry that clients have encrypted is copied as it is, with its key.
func TestMirrorEncrypted(t *testing.T) {
	old, here := newTown(t), newTown(t)
	key := registry.ConfigKey{Namespace: "default", Group: defaultGroup, DataID: "cipher-kms-aes-password"}
	put := func(w *mirrortest.Town, content, dataKey string) {
		t.Helper()
		err := w.Configs.PutEncrypted(t.Context(), registry.User{Admin: true}, key, dataKey, func(spec *meshv1alpha1.RegistryConfigSpec, _ bool) error {
			spec.Content = content
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put(old, "c2VjcmV0", "a2V5")
	m := mirror.New(mirror.Config{
		Old: old.Client(false), Catalogue: &mirror.Catalogue{Client: here.Plane.Client, Namespaces: []string{"default"}}, Here: here.Client(true),
		OldEntries: old.Entries(false), HereEntries: here.Entries(true), OldName: "old", HereName: "here", Follow: true,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	defer func() { cancel(); <-done }()
	has := func(w *mirrortest.Town, content, dataKey string) {
		t.Helper()
		w.Eventually(content, func() bool {
			o := w.Configs.Get(key)
			return o != nil && o.Spec.Content == content && o.Annotations[registry.AnnotationEncryptedKey] == dataKey
		})
	}
	has(here, "c2VjcmV0", "a2V5")
	put(here, "b3RoZXI", "a2V5Mg")
	has(old, "b3RoZXI", "a2V5Mg")
}

// Lists of entries of versions 1, 2 and 3, and of servers that are none.
func TestParseFound(t *testing.T) {
	for _, text := range []string{
		`{"totalCount":1,"pageItems":[{"dataId":"a","group":"g","md5":"m"}]}`,
		`{"code":0,"data":{"totalCount":1,"pageItems":[{"dataId":"a","groupName":"g","md5":"m"}]}}`,
	} {
		got, err := parseFound([]byte(text))
		if err != nil || got.Total != 1 || len(got.Items) != 1 || got.Items[0].DataID != "a" || cmp.Or(got.Items[0].Group, got.Items[0].GroupName) != "g" {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	if _, err := parseFound([]byte("<html>")); err == nil {
		t.Error("a page of HTML is read as a list")
	}
}

func FuzzParseFound(f *testing.F) {
	f.Add([]byte(`{"totalCount":1,"pageItems":[{"dataId":"a","group":"g"}]}`))
	f.Add([]byte(`{"code":0,"data":{"pageItems":[null]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := parseFound(b); err == nil && got == nil {
			t.Error("neither a list nor an error")
		}
	})
}
