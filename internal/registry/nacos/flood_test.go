package nacos

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

// A client that never reads what it is told, and one that asks without end, keep nobody else from being
// served, and the server keeps for them no more than what they follow.
func TestFlood(t *testing.T) {
	p := registrytest.New(t)
	s := New(p.Core)
	address := p.Serve(s.Serve)

	// Its stream is open, and never read.
	deaf := connect(t, address)
	stream, err := deaf.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream")
	if err != nil {
		t.Fatal(err)
	}
	b, err := encode("ConnectionSetupRequest", map[string]any{"clientVersion": "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&b); err != nil {
		t.Fatal(err)
	}
	p.Eventually("it is set up", func() bool { return deaf.ask("HealthCheckRequest", map[string]any{})["errorCode"] == 0.0 })
	deaf.ask("SubscribeServiceRequest", subscribe("orders"))

	flooder := connect(t, address)
	flooder.setUp()
	ctx, stop := context.WithCancel(t.Context())
	var floods sync.WaitGroup
	defer floods.Wait()
	defer stop()
	for range 300 { // more than are served at a time
		floods.Go(func() {
			in := appendPayload(nil, "ServiceQueryRequest", nil, []byte(`{"serviceName":"orders"}`))
			for ctx.Err() == nil {
				var out []byte
				_ = flooder.conn.Invoke(ctx, "/Request/request", &in, &out)
			}
		})
	}

	reader, writer := connect(t, address), connect(t, address)
	reader.setUp()
	writer.setUp()
	reader.ask("SubscribeServiceRequest", subscribe("orders"))
	time.Sleep(settle) // as it holds the first change back
	metadata := strings.Repeat("x", 8000)
	for n := range 10 { // changes of 64 KB: more than is on the way to a client
		list := []map[string]any{}
		for i := range 8 {
			list = append(list, map[string]any{"ip": "10.1.0.7", "port": 1 + i, "metadata": map[string]string{"a": metadata, "n": fmt.Sprint(n)}})
		}
		began := time.Now()
		answer := writer.ask("BatchInstanceRequest", map[string]any{"serviceName": "orders", "type": "batchRegisterInstance", "instances": list})
		if answer["success"] != true {
			t.Fatal(answer)
		}
		for told := ""; told != fmt.Sprint(n); {
			info := reader.pushed("NotifySubscriberRequest")["serviceInfo"].(map[string]any)
			hosts := info["hosts"].([]any)
			told = fmt.Sprint(hosts[len(hosts)-1].(map[string]any)["metadata"].(map[string]any)["n"])
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Fatalf("change %d reached another client after %s", n, took)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.mu.Lock()
		if len(c.waitingSubs) > 1 || len(c.waitingConfigs) > 0 {
			t.Errorf("%d and %d changes wait for a client", len(c.waitingSubs), len(c.waitingConfigs))
		}
		c.mu.Unlock()
	}
}
