package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// nacosClient is a client of Nacos 2 with a list of servers, as the SDKs are one: it is connected to one of
// them, and when that is gone it goes on at the next, where it registers and subscribes again.
type nacosClient struct {
	t       *testing.T
	servers []string
	// register is an instance of "orders" that it has; 0: it has none.
	register int
	// address of it; empty: 127.0.0.1.
	address string

	mu    sync.Mutex
	at    string // the server that it is connected to
	hosts []string
	// empty is how often it was told that nothing is registered, and backwards how often a list that is not
	// newer than what it has, which clients drop.
	empty, backwards int
	position         float64
	// heard, if it is not nil, gets what it is told of.
	heard chan<- toldOf
}

// toldOf is what a client was told of at a time.
type toldOf struct {
	at        time.Time
	instances int
	weight    float64
}

// run until ctx ends.
func (c *nacosClient) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		if err := c.stay(ctx, c.servers[n%len(c.servers)]); err != nil && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond) // between servers, as SDKs do
		}
	}
}

// stay connected to a server until the connection ends.
func (c *nacosClient) stay(ctx context.Context, server string) error {
	conn, err := grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawgrpc.Codec{})))
	if err != nil {
		return err
	}
	defer conn.Close()
	ask := func(kind string, message map[string]any) (map[string]any, error) {
		in, out := nacosPayload(kind, message), []byte(nil)
		if err := conn.Invoke(ctx, "/Request/request", &in, &out); err != nil {
			return nil, err
		}
		_, answer, err := parseNacosPayload(out)
		if err == nil && answer["errorCode"] != 0.0 {
			err = fmt.Errorf("%s: %v", kind, answer)
		}
		return answer, err
	}
	if _, err := ask("ServerCheckRequest", map[string]any{}); err != nil {
		return err
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream")
	if err != nil {
		return err
	}
	setup := nacosPayload("ConnectionSetupRequest", map[string]any{"clientVersion": "test", "tenant": "", "labels": map[string]string{}})
	if err := stream.SendMsg(&setup); err != nil {
		return err
	}
	for _, err := ask("HealthCheckRequest", map[string]any{}); err != nil; _, err = ask("HealthCheckRequest", map[string]any{}) {
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	named := map[string]any{"namespace": "public", "serviceName": "orders", "groupName": "DEFAULT_GROUP", "clusters": ""}
	if c.register != 0 {
		named["type"], named["instance"] = "registerInstance", map[string]any{"ip": cmp.Or(c.address, "127.0.0.1"), "port": c.register, "ephemeral": true}
		if _, err := ask("InstanceRequest", named); err != nil {
			return err
		}
	}
	named["subscribe"] = true
	answer, err := ask("SubscribeServiceRequest", named)
	if err != nil {
		return err
	}
	c.told(server, answer)
	for {
		var in []byte
		if err := stream.RecvMsg(&in); err != nil {
			return err
		}
		kind, push, err := parseNacosPayload(in)
		if err != nil {
			return err
		}
		if kind == "NotifySubscriberRequest" {
			c.told(server, push)
			ack := nacosPayload("NotifySubscriberResponse", map[string]any{"requestId": push["requestId"], "resultCode": 200})
			if err := stream.SendMsg(&ack); err != nil {
				return err
			}
		}
	}
}

// told of the instances, in an answer or a push.
func (c *nacosClient) told(server string, message map[string]any) {
	info, _ := message["serviceInfo"].(map[string]any)
	list, _ := info["hosts"].([]any)
	position, _ := info["lastRefTime"].(float64)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = server
	if position < c.position {
		c.backwards++
		return
	}
	c.position = position
	if len(list) == 0 && len(c.hosts) > 0 {
		c.empty++
	}
	c.hosts = nil
	news := toldOf{at: time.Now(), instances: len(list)}
	for _, h := range list {
		host := h.(map[string]any)
		weight, _ := host["weight"].(float64)
		news.weight += weight
		c.hosts = append(c.hosts, net.JoinHostPort(host["ip"].(string), strconv.Itoa(int(host["port"].(float64)))))
	}
	if c.heard != nil {
		c.heard <- news
	}
}

func (c *nacosClient) state() (at string, hosts []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at, c.hosts
}

// nacosPayload is a message of Nacos 2: metadata = 2 {type = 3}, body = 3 {value = 2}.
func nacosPayload(kind string, message map[string]any) []byte {
	body, _ := json.Marshal(message) // texts, numbers and maps
	field := func(b []byte, n protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
	}
	return field(field(nil, 2, field(nil, 3, []byte(kind))), 3, field(nil, 2, body))
}

func parseNacosPayload(b []byte) (kind string, message map[string]any, err error) {
	err = rawgrpc.Fields(b, func(outer protowire.Number, value []byte) error {
		return rawgrpc.Fields(value, func(n protowire.Number, value []byte) error {
			switch {
			case outer == 2 && n == 3:
				kind = string(value)
			case outer == 3 && n == 2:
				return json.Unmarshal(value, &message)
			}
			return nil
		})
	})
	if err == nil && message == nil {
		err = errors.New("a message without a body")
	}
	return kind, message, err
}

// TestRegistryInstances: clients with a list of three servers, of which one runs no more, go on at another
// instance of the control plane when theirs ends: nobody is told of an empty list, or of an older one, no call
// fails, and what they registered is the same object.
func TestRegistryInstances(t *testing.T) {
	s := memory.New(memory.Options{})
	t.Cleanup(func() { s.Close() })
	key := clusterKey(t)
	var planes []*clustered
	var servers []string
	for range 2 {
		cfg := clusteredConfig(t.TempDir(), key)
		cfg.Registries = RegistriesConfig{
			NacosPort: nacosPort(t), TLS: registry.TLSOff, Anonymous: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		}
		planes = append(planes, startClustered(t, s, cfg))
		servers = append(servers, fmt.Sprintf("127.0.0.1:%d", cfg.Registries.NacosPort+nacosGRPCOffset))
	}
	gone := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	served := echoServer(t, "127.0.0.1")
	_, text, _ := net.SplitHostPort(served)
	port, _ := strconv.Atoi(text)

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	provider := &nacosClient{t: t, servers: []string{servers[0], gone, servers[1]}, register: port}
	moves := &nacosClient{t: t, servers: []string{gone, servers[0], servers[1]}}
	stays := &nacosClient{t: t, servers: []string{servers[1], servers[0], gone}}
	clients := []*nacosClient{provider, moves, stays}
	for _, c := range clients {
		running.Go(func() { c.run(ctx) })
	}
	for i, c := range clients {
		until(t, fmt.Sprintf("client %d is told of the instance", i), func() bool {
			_, hosts := c.state()
			return len(hosts) == 1 && hosts[0] == served
		})
	}
	dataplane := func() *meshv1alpha1.Dataplane {
		list, _, err := planes[1].client.List(t.Context(), kind.Dataplane, resource.ListOptions{})
		if err != nil || len(list) != 1 {
			t.Fatalf("dataplanes: %v, %v", list, err)
		}
		return list[0].(*meshv1alpha1.Dataplane)
	}
	before := dataplane()

	calls, failed := 0, error(nil)
	calling, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for calling.Err() == nil {
			for _, c := range clients {
				_, hosts := c.state()
				if len(hosts) == 0 {
					failed = errors.Join(failed, errors.New("a consumer has no instance to call"))
					return
				}
				if err := echoed(hosts[0]); err != nil {
					failed = errors.Join(failed, err)
				}
				calls++
			}
		}
	}()
	planes[0].stop()
	for i, c := range clients {
		until(t, fmt.Sprintf("client %d is at the other instance", i), func() bool { at, _ := c.state(); return at == servers[1] })
	}
	until(t, "the other instance owns what was registered", func() bool {
		return dataplane().Annotations[registry.AnnotationOwner] == instanceName(planes[1].cp.api.address)
	})
	stop()
	<-done
	if failed != nil || calls == 0 {
		t.Errorf("%d calls, failed: %v", calls, failed)
	}
	for i, c := range clients {
		c.mu.Lock()
		if c.empty != 0 || c.backwards != 0 || len(c.hosts) != 1 {
			t.Errorf("client %d was told of an empty list %d times, of an older one %d times, and has %v", i, c.empty, c.backwards, c.hosts)
		}
		c.mu.Unlock()
	}
	if after := dataplane(); after.UID != before.UID {
		t.Error("what was registered was deleted, and made again")
	}
}
