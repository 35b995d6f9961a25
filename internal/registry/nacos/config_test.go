package nacos

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// fakeStream of a client without a network, so that its time can be fake.
type fakeStream struct {
	grpc.ServerStream
	sent func(*payload)
}

func (f *fakeStream) SendMsg(m any) error {
	p, err := decode(*m.(*[]byte))
	if err == nil {
		f.sent(p)
	}
	return err
}

// bubble is a connection in fake time. notes has when it was told of entries that changed, since it began.
type bubble struct {
	t     *testing.T
	plane *registrytest.Plane
	conn  *conn
	notes []time.Duration
	began time.Time
}

func newBubble(t *testing.T) *bubble {
	b := &bubble{t: t, plane: registrytest.New(t), began: time.Now()}
	s := New(b.plane.Core)
	b.conn = connOf(s.TagConn(t.Context(), &stats.ConnTagInfo{RemoteAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}}))
	b.conn.setUp = true
	ctx, stop := context.WithCancel(t.Context())
	stream := &fakeStream{sent: func(p *payload) {
		if p.kind != "ConfigChangeNotifyRequest" {
			t.Errorf("sent %s", p.kind)
		}
		b.notes = append(b.notes, time.Since(b.began).Round(100*time.Millisecond))
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-b.conn.wake:
				if err := s.send(stream, b.conn); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	t.Cleanup(func() { stop(); <-done; b.conn.close() })
	return b
}

// ask a request of the connection, without its transport.
func (b *bubble) ask(kind string, message any) map[string]any {
	b.t.Helper()
	body, err := json.Marshal(message)
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := requests[kind](b.t.Context(), b.conn, registry.User{}, body)
	if err != nil {
		b.t.Fatal(err)
	}
	text, err := json.Marshal(out)
	if err != nil {
		b.t.Fatal(err)
	}
	answer := map[string]any{}
	if err := json.Unmarshal(text, &answer); err != nil {
		b.t.Fatal(err)
	}
	return answer
}

func (b *bubble) listen(md5 string) {
	b.t.Helper()
	b.ask("ConfigBatchListenRequest", map[string]any{"listen": true, "configListenContexts": []any{
		map[string]any{"dataId": "a", "group": "g", "md5": md5},
	}})
}

func (b *bubble) publish(content string) {
	b.t.Helper()
	b.ask("ConfigPublishRequest", map[string]any{"dataId": "a", "group": "g", "content": content})
}

// told waits, and compares the seconds at which the client was told, since the last call.
func (b *bubble) told(what string, after time.Duration, want ...time.Duration) {
	b.t.Helper()
	time.Sleep(after)
	synctest.Wait()
	if !slices.Equal(b.notes, want) {
		b.t.Errorf("%s: told after %v, want %v", what, b.notes, want)
	}
	b.notes, b.began = nil, time.Now()
}

// A client that loses the note of a change is told again, until it says that it has what there is.
func TestChangeIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.listen("")
		b.told("before there is a change", time.Minute)
		b.publish("1")
		b.told("a client that does nothing", time.Minute, 0, time.Second, 3*time.Second, 7*time.Second)
		b.publish("2")
		b.told("the change", 500*time.Millisecond, 0)
		b.listen(kind.ContentMD5("1")) // what it had read before the change
		b.told("a client that has what was there before", 700*time.Millisecond, 500*time.Millisecond)
		b.listen(kind.ContentMD5("2"))
		b.told("a client that has it", time.Minute)
		b.publish("3")
		b.told("another change", 500*time.Millisecond, 0)
		b.ask("ConfigBatchListenRequest", map[string]any{"listen": false, "configListenContexts": []any{map[string]any{"dataId": "a", "group": "g"}}})
		b.told("a client that listens no more", time.Minute)
	})
}

// The SDK of Go before 2.3 asks for an entry that was deleted without end, unless it is told that it is
// empty. Others are told what is.
func TestDeletedEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.publish("1")
		b.listen(kind.ContentMD5("1"))
		named := map[string]any{"dataId": "a", "group": "g"}
		b.ask("ConfigRemoveRequest", named)
		if answer := b.ask("ConfigQueryRequest", named); answer["errorCode"] != 300.0 {
			t.Errorf("another client reads %v", answer)
		}
		b.conn.golang = true
		if answer := b.ask("ConfigQueryRequest", named); answer["success"] != true || answer["content"] != "" {
			t.Errorf("the SDK of Go reads %v", answer)
		}
		if answer := b.ask("ConfigQueryRequest", map[string]any{"dataId": "b", "group": "g"}); answer["errorCode"] != 300.0 {
			t.Errorf("the SDK of Go reads of what it does not listen to: %v", answer)
		}
		b.listen("") // it has noted that it is empty
		if answer := b.ask("ConfigQueryRequest", named); answer["errorCode"] != 300.0 {
			t.Errorf("the SDK of Go reads again: %v", answer)
		}
	})
}

// Entries that clients encrypt are Secrets: with their key, and without a history.
func TestSecretEntry(t *testing.T) {
	p := registrytest.New(t)
	address := p.Serve(New(p.Core).Serve)
	c := connect(t, address)
	c.setUp()
	named := map[string]any{"dataId": "cipher-aes-db", "group": "DEFAULT_GROUP"}
	entry := func(content, dataKey string) map[string]any {
		return map[string]any{"dataId": "cipher-aes-db", "group": "DEFAULT_GROUP", "content": content, "additionMap": map[string]string{"encryptedDataKey": dataKey}}
	}
	c.ask("ConfigBatchListenRequest", map[string]any{"listen": true, "configListenContexts": []any{named}})
	for i, content := range []string{"one", "two"} {
		if answer := c.ask("ConfigPublishRequest", entry(content, "k"+content)); answer["success"] != true {
			t.Fatal(answer)
		}
		if answer := c.ask("ConfigQueryRequest", named); answer["content"] != content || answer["encryptedDataKey"] != "k"+content || answer["md5"] != kind.ContentMD5(content) {
			t.Errorf("write %d is read as %v", i, answer)
		}
		if push := c.pushed("ConfigChangeNotifyRequest"); push["dataId"] != "cipher-aes-db" {
			t.Errorf("told of %v", push)
		}
	}
	if list, _, err := p.Client.List(t.Context(), kind.RegistryConfig, resource.ListOptions{}); err != nil || len(list) != 0 {
		t.Errorf("it is in %d RegistryConfigs: %v", len(list), err)
	}
	list, _, err := p.Client.List(t.Context(), kind.Secret, resource.ListOptions{})
	if err != nil || len(list) != 1 {
		t.Fatalf("it is in %d Secrets: %v", len(list), err)
	}
	s := list[0].(*corev1.Secret)
	if s.Type != registry.SecretTypeConfig || string(s.Data["content"]) != "two" || strings.Contains(fmt.Sprint(s.ObjectMeta), "two") {
		t.Errorf("secret %+v", s)
	}
	reader := registry.User{Name: "reader", ReadOnly: true}
	if reader.MayReadEntry(registry.ConfigKey{Namespace: "default", Group: "DEFAULT_GROUP", DataID: "cipher-aes-db"}) {
		t.Error("who may only read reads a Secret")
	}
	p.Restart()
	c = connect(t, p.Serve(New(p.Core).Serve))
	c.setUp()
	if answer := c.ask("ConfigQueryRequest", named); answer["content"] != "two" {
		t.Errorf("after a restart: %v", answer)
	}
	if answer := c.ask("ConfigRemoveRequest", named); answer["success"] != true {
		t.Error(answer)
	}
	if answer := c.ask("ConfigQueryRequest", named); answer["errorCode"] != 300.0 {
		t.Errorf("after it was removed: %v", answer)
	}
}
