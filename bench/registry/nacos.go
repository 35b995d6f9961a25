package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
)

// nacosClient is a client of Nacos 2, on a link of its own. Its messages are those of the SDKs, made
// without reflection where they are many.
type nacosClient struct {
	link *link
	send func([]byte) error
	// changed is told of each push.
	changed func(body []byte, at time.Time)
}

const (
	nacosUnary  = "/Request/request"
	nacosStream = "/BiRequestStream/requestBiStream"
)

func newNacos(address string, changed func(body []byte, at time.Time)) (*nacosClient, error) {
	l, err := dial(address, nacosUnary, nacosStream)
	if err != nil {
		return nil, err
	}
	c := &nacosClient{link: l, changed: changed}
	if err := c.setUp(); err != nil {
		l.close()
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return c, nil
}

// setUp as SDKs do it: a check, then the stream. They then wait 100 ms; this asks until it is known.
func (c *nacosClient) setUp() (err error) {
	setup := payload("ConnectionSetupRequest", []byte(`{"clientVersion":"Nacos-Java-Client:v2.4.3","tenant":"public","labels":{"source":"sdk","module":"naming"},"abilityTable":{}}`))
	if _, err := c.ask("ServerCheckRequest", []byte(`{}`)); err != nil {
		return err
	}
	if c.send, err = c.link.stream(nacosStream, setup, c.receive); err != nil {
		return err
	}
	for range 200 {
		if _, err = c.ask("HealthCheckRequest", []byte(`{}`)); err == nil {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return err
}

func (c *nacosClient) close() { c.link.close() }

// receive a request of the server.
func (c *nacosClient) receive(message []byte) error {
	at := time.Now()
	kind, body, err := parse(message)
	if err != nil {
		return err
	}
	var head struct {
		RequestID string `json:"requestId"`
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return err
	}
	if c.changed != nil && kind == "NotifySubscriberRequest" {
		c.changed(body, at)
	}
	if name, ok := bytes.CutSuffix([]byte(kind), []byte("Request")); ok {
		answer := payload(string(name)+"Response", []byte(`{"resultCode":200,"errorCode":0,"success":true,"requestId":`+strconv.Quote(head.RequestID)+`}`))
		go func() { _ = c.send(answer) }() // the reader must not wait for windows; the end of the link is seen by calls
	}
	return nil
}

// ask is a unary call. An answer that is not a success is an error.
func (c *nacosClient) ask(kind string, body []byte) ([]byte, error) {
	out, err := c.link.invoke(nacosUnary, payload(kind, body))
	if err != nil {
		return nil, err
	}
	_, answer, err := parse(out)
	if err != nil {
		return nil, err
	}
	if kind != "ServerCheckRequest" && !bytes.Contains(answer, []byte(`"resultCode":200`)) {
		return nil, fmt.Errorf("%s: %.300s", kind, answer)
	}
	return answer, nil
}

// instance of a number: its address, at port 8080.
func addressOf(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func (c *nacosClient) instance(kind, service string, n int) error {
	body := fmt.Appendf(nil, `{"requestId":"1","namespace":"public","serviceName":%q,"groupName":"DEFAULT_GROUP","type":%q,"module":"naming","instance":{"ip":%q,"port":8080,"weight":1.0,"healthy":true,"enabled":true,"ephemeral":true,"clusterName":"DEFAULT","serviceName":%q,"metadata":{"preserved.register.source":"SPRING_CLOUD","version":"1.4.2","zone":"a"}}}`,
		service, kind, addressOf(n), service)
	_, err := c.ask("InstanceRequest", body)
	return err
}

func (c *nacosClient) register(service string, n int) error {
	return c.instance("registerInstance", service, n)
}

func (c *nacosClient) deregister(service string, n int) error {
	return c.instance("deregisterInstance", service, n)
}

func (c *nacosClient) query(service string) (instances int, err error) {
	out, err := c.ask("ServiceQueryRequest", fmt.Appendf(nil,
		`{"requestId":"1","namespace":"public","serviceName":%q,"groupName":"DEFAULT_GROUP","cluster":"","healthyOnly":false,"udpPort":0,"module":"naming"}`, service))
	return bytes.Count(out, []byte(`"ip":`)), err
}

func (c *nacosClient) subscribe(service string) error {
	_, err := c.ask("SubscribeServiceRequest", fmt.Appendf(nil,
		`{"requestId":"1","namespace":"public","serviceName":%q,"groupName":"DEFAULT_GROUP","subscribe":true,"clusters":"","module":"naming"}`, service))
	return err
}

func (c *nacosClient) publish(dataID, content string) error {
	_, err := c.ask("ConfigPublishRequest", fmt.Appendf(nil,
		`{"requestId":"1","dataId":%q,"group":"DEFAULT_GROUP","tenant":"","content":%q,"casMd5":"","additionMap":{},"module":"config"}`, dataID, content))
	return err
}

func (c *nacosClient) config(dataID string) error {
	_, err := c.ask("ConfigQueryRequest", fmt.Appendf(nil, `{"requestId":"1","dataId":%q,"group":"DEFAULT_GROUP","tenant":"","module":"config"}`, dataID))
	return err
}

// Fields of Payload and its parts (nacos_grpc_service.proto).
const (
	fieldMetadata = 2
	fieldBody     = 3
	fieldType     = 3
	fieldValue    = 2
)

func payload(kind string, body []byte) []byte {
	metadata := protowire.AppendString(protowire.AppendTag(nil, fieldType, protowire.BytesType), kind)
	value := protowire.AppendBytes(protowire.AppendTag(make([]byte, 0, len(body)+8), fieldValue, protowire.BytesType), body)
	out := protowire.AppendBytes(protowire.AppendTag(make([]byte, 0, len(value)+len(metadata)+16), fieldMetadata, protowire.BytesType), metadata)
	return protowire.AppendBytes(protowire.AppendTag(out, fieldBody, protowire.BytesType), value)
}

func parse(message []byte) (kind string, body []byte, err error) {
	err = rawgrpc.Fields(message, func(number protowire.Number, value []byte) error {
		return rawgrpc.Fields(value, func(inner protowire.Number, value []byte) error {
			switch {
			case number == fieldMetadata && inner == fieldType:
				kind = string(value)
			case number == fieldBody && inner == fieldValue:
				body = value
			}
			return nil
		})
	})
	return kind, body, err
}

// nacosRegistry is a nacosClient as a client.
type nacosRegistry struct {
	*nacosClient
	mu   sync.Mutex
	told map[string]func(has func(n int) bool, at time.Time)
}

func connectNacos(address string) (client, error) {
	r := &nacosRegistry{told: map[string]func(func(int) bool, time.Time){}}
	c, err := newNacos(address, r.pushed)
	if err != nil {
		return nil, err
	}
	r.nacosClient = c
	return r, nil
}

func (r *nacosRegistry) pushed(body []byte, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, told := range r.told { // a client follows one service
		told(func(n int) bool { return bytes.Contains(body, []byte(`"ip":"`+addressOf(n).String()+`"`)) }, at)
	}
}

func (r *nacosRegistry) follow(service string, changed func(func(int) bool, time.Time)) error {
	r.mu.Lock()
	r.told[service] = changed
	r.mu.Unlock()
	return r.subscribe(service)
}

func (c *nacosClient) list() (int, error) {
	out, err := c.ask("ServiceListRequest", []byte(`{"requestId":"1","namespace":"public","serviceName":"","groupName":"DEFAULT_GROUP","pageNo":1,"pageSize":100000,"selector":"","module":"naming"}`))
	return len(out), err
}
