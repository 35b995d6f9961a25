// Package adstest is a small control plane for tests of proxies and their supervisor: delta ADS
// with mutual TLS, and load reports. What it serves is set by the test.
//
// Enter at New. It is written apart from the product's server, so that one's mistakes do not
// hide the other's.
package adstest

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Server is a control plane. Its fields are the test's until Start.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	loadv3.UnimplementedLoadReportingServiceServer
	t testing.TB

	// Resolve answers for a name that is not set, by type URL; nil: it does not exist.
	Resolve func(typeURL, name string) proto.Message

	mu        sync.Mutex
	resources map[string]map[string]*resource
	streams   map[*stream]bool
	changed   chan struct{} // closed at each change of what is observed below

	// Requests that came, answers excluded, and what was refused.
	Requests []*discoveryv3.DeltaDiscoveryRequest
	Acks     int
	Nacks    []Nack
	Loads    []*loadv3.LoadStatsRequest
	// Programs are the IDs of the nodes that have asked for state of the world.
	Programs []string
	// SentResources counts the resources that were sent.
	SentResources int
}

// Nack is a refused response.
type Nack struct {
	TypeURL, Message string
	Names            []string
}

type resource struct {
	version  string
	body     *anypb.Any
	onDemand bool
}

type stream struct {
	server discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	types  map[string]*subscription
	sent   map[string]Nack // by nonce
	nonce  int
}

type subscription struct {
	wildcard bool
	names    map[string]bool
	known    map[string]string
	answered bool
}

// New makes a server without resources.
func New(t testing.TB) *Server {
	return &Server{t: t, resources: map[string]map[string]*resource{}, streams: map[*stream]bool{}, changed: make(chan struct{})}
}

// Clone is another instance, with the same resources.
func (s *Server) Clone() *Server {
	out := New(s.t)
	s.mu.Lock()
	defer s.mu.Unlock()
	for url, all := range s.resources {
		out.resources[url] = maps.Clone(all)
	}
	out.Resolve = s.Resolve
	return out
}

// Start serves on an address ("127.0.0.1:0" is a free port) until stop is called or the test
// ends, and returns the address.
func (s *Server) Start(address string, config *tls.Config) (listening string, stop func()) {
	s.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	return l.Addr().String(), s.Serve(l, config)
}

// Serve is Start on a listener.
func (s *Server) Serve(l net.Listener, config *tls.Config) (stop func()) {
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	loadv3.RegisterLoadReportingServiceServer(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // its end is stop
	}()
	stop = sync.OnceFunc(func() {
		server.Stop()
		<-done
	})
	s.t.Cleanup(stop)
	return stop
}

// Set a resource, or delete it with a nil body, and push it. Version says what is in it.
func (s *Server) Set(typeURL, name, version string, body proto.Message) {
	s.t.Helper()
	s.Update(func(set func(typeURL, name, version string, body proto.Message)) { set(typeURL, name, version, body) })
}

// Update sets several resources, and pushes one response for each type.
func (s *Server) Update(f func(set func(typeURL, name, version string, body proto.Message))) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	f(func(typeURL, name, version string, body proto.Message) {
		if s.resources[typeURL] == nil {
			s.resources[typeURL] = map[string]*resource{}
		}
		if body == nil {
			delete(s.resources[typeURL], name)
			return
		}
		s.resources[typeURL][name] = &resource{version: version, body: s.pack(typeURL, body)}
	})
	for st := range s.streams {
		s.push(st)
	}
}

func (s *Server) pack(typeURL string, body proto.Message) *anypb.Any {
	value, err := proto.Marshal(body)
	if err != nil {
		s.t.Error(err)
	}
	return &anypb.Any{TypeUrl: typeURL, Value: value}
}

// Await blocks until a condition on the server's records holds; it is asked under the lock after
// every change.
func (s *Server) Await(ctx context.Context, what string, holds func(*Server) bool) {
	s.t.Helper()
	for {
		s.mu.Lock()
		ok, changed := holds(s), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			s.t.Fatalf("control plane: not so: %s", what)
		}
	}
}

// Read runs f under the lock.
func (s *Server) Read(f func(*Server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *Server) note() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// DeltaAggregatedResources implements the service.
func (s *Server) DeltaAggregatedResources(server discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	st := &stream{server: server, types: map[string]*subscription{}, sent: map[string]Nack{}}
	s.mu.Lock()
	s.streams[st] = true
	s.note()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.note()
		s.mu.Unlock()
	}()
	for {
		r, err := server.Recv()
		if err != nil {
			return nil // the client has gone
		}
		s.mu.Lock()
		s.request(st, r)
		s.note()
		s.mu.Unlock()
	}
}

// StreamAggregatedResources implements state of the world, as gRPC asks: each request is answered with the
// resources that it names, once for each list of names. What is set later is not pushed.
func (s *Server) StreamAggregatedResources(server discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	asked := map[string][]string{}
	for nonce := 1; ; nonce++ {
		r, err := server.Recv()
		if err != nil {
			return nil // the client has gone
		}
		if r.ResponseNonce != "" && slices.Equal(asked[r.TypeUrl], r.ResourceNames) {
			continue // an answer
		}
		asked[r.TypeUrl] = slices.Clone(r.ResourceNames)
		out := &discoveryv3.DiscoveryResponse{TypeUrl: r.TypeUrl, VersionInfo: "1", Nonce: fmt.Sprint("s", nonce)}
		s.mu.Lock()
		if r.Node != nil {
			s.Programs = append(s.Programs, r.Node.Id)
		}
		for _, name := range r.ResourceNames {
			if one := s.resources[r.TypeUrl][name]; one != nil {
				out.Resources = append(out.Resources, one.body)
			}
		}
		s.note()
		s.mu.Unlock()
		if err := server.Send(out); err != nil {
			return nil // as above
		}
	}
}

// Streams that are open.
func (s *Server) Streams() int { return len(s.streams) }

func (s *Server) request(st *stream, r *discoveryv3.DeltaDiscoveryRequest) {
	if r.ResponseNonce == "" || len(r.ResourceNamesSubscribe)+len(r.ResourceNamesUnsubscribe) > 0 {
		s.Requests = append(s.Requests, r)
	}
	sub := st.types[r.TypeUrl]
	if sub == nil {
		sub = &subscription{names: map[string]bool{}, known: maps.Clone(r.InitialResourceVersions)}
		if sub.known == nil {
			sub.known = map[string]string{}
		}
		sub.wildcard = len(r.ResourceNamesSubscribe) == 0
		st.types[r.TypeUrl] = sub
	}
	if sent, ok := st.sent[r.ResponseNonce]; ok {
		delete(st.sent, r.ResponseNonce)
		if r.ErrorDetail != nil {
			sent.Message = r.ErrorDetail.Message
			s.Nacks = append(s.Nacks, sent)
		} else {
			s.Acks++
		}
	}
	for _, n := range r.ResourceNamesSubscribe {
		if n == "*" {
			sub.wildcard = true
			continue
		}
		sub.names[n] = true
		if len(r.InitialResourceVersions) == 0 {
			delete(sub.known, n) // asked for again: sent again
		}
		s.resolve(r.TypeUrl, n)
	}
	for _, n := range r.ResourceNamesUnsubscribe {
		delete(sub.names, n)
		delete(sub.known, n)
	}
	s.push(st)
}

func (s *Server) resolve(typeURL, name string) {
	if s.resources[typeURL][name] != nil || s.Resolve == nil {
		return
	}
	body := s.Resolve(typeURL, name)
	if body == nil {
		return
	}
	if s.resources[typeURL] == nil {
		s.resources[typeURL] = map[string]*resource{}
	}
	s.resources[typeURL][name] = &resource{version: "resolved", body: s.pack(typeURL, body), onDemand: true}
}

// push what a stream does not have, in the order of make before break.
func (s *Server) push(st *stream) {
	urls := slices.Sorted(maps.Keys(st.types)) // cluster, endpoint, listener, route
	for _, url := range urls {
		sub := st.types[url]
		out := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: url}
		for _, name := range slices.Sorted(maps.Keys(s.resources[url])) {
			r := s.resources[url][name]
			if wanted := sub.names[name] || sub.wildcard && !r.onDemand; wanted && sub.known[name] != r.version {
				out.Resources = append(out.Resources, &discoveryv3.Resource{Name: name, Version: r.version, Resource: r.body})
			}
		}
		for name := range sub.known {
			if s.resources[url][name] == nil {
				out.RemovedResources = append(out.RemovedResources, name)
			}
		}
		if len(out.Resources)+len(out.RemovedResources) == 0 && (sub.answered || !sub.wildcard) {
			continue
		}
		s.send(st, sub, out)
	}
}

func (s *Server) send(st *stream, sub *subscription, out *discoveryv3.DeltaDiscoveryResponse) {
	sub.answered = true
	st.nonce++
	out.Nonce = fmt.Sprint("n", st.nonce)
	record := Nack{TypeURL: out.TypeUrl}
	for _, r := range out.Resources {
		sub.known[r.Name] = r.Version
		record.Names = append(record.Names, r.Name)
	}
	for _, name := range out.RemovedResources {
		delete(sub.known, name)
	}
	st.sent[out.Nonce] = record
	s.SentResources += len(out.Resources)
	if err := st.server.Send(out); err != nil {
		s.t.Logf("control plane: send: %v", err)
	}
}

// StreamLoadStats implements the service: all clusters, each second.
func (s *Server) StreamLoadStats(server loadv3.LoadReportingService_StreamLoadStatsServer) error {
	for first := true; ; first = false {
		r, err := server.Recv()
		if err != nil {
			return nil // the client has gone
		}
		s.mu.Lock()
		s.Loads = append(s.Loads, r)
		s.note()
		s.mu.Unlock()
		if !first {
			continue
		}
		err = server.Send(&loadv3.LoadStatsResponse{SendAllClusters: true, LoadReportingInterval: durationpb.New(1e9)})
		if err != nil {
			return err
		}
	}
}
