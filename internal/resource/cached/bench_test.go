package cached_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/cached"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// BenchmarkGet reads a Node as controllers do: through the client of its kind, from
// memory.
func BenchmarkGet(b *testing.B) {
	server := resourcetest.New(kind.Node, kind.ConfigMap)
	server.Seed(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	memory := cached.New(cached.Config{Client: server, Kinds: []*resource.Descriptor{kind.Node}})
	client, err := resource.NewRouter(server, resource.Override{Kind: kind.Node, Client: memory})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- memory.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	key := resource.Key{Name: "n"}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := client.Get(ctx, kind.Node, key); err != nil {
			b.Fatal(err)
		}
		if hits, _ := memory.Reads(kind.Node); hits > 0 {
			break
		}
		if time.Now().After(deadline) {
			b.Fatal("reads never came from memory")
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Get(ctx, kind.Node, key); err != nil {
			b.Fatal(err)
		}
	}
}
