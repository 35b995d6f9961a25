// Package wire carries reports of demand over gRPC.
//
// It owns both ends: Client, in an agent, reads a mode's counters and reports them
// every 10 seconds; Server, in a control plane, hands them to the aggregator. Between
// them lie the messages of api/demand/v1, which decode checks. It listens to no port
// and dials no server: servers and connections come from the caller. What is counted, and
// how often, is decided by package demand.
package wire

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	demandv1 "github.com/proxima-mesh/proxima/api/demand/v1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Receiver takes reports. A *demand.Aggregator is one.
type Receiver interface {
	// Receive takes a report, or says that it was taken before. A *demand.FieldError is
	// final, with any other error the report will be repeated. The report is the receiver's.
	Receive(r *demand.Report) (fresh bool, err error)
}

// Server takes reports over gRPC.
type Server struct {
	demandv1.UnimplementedDemandServer
	receiver Receiver
	admit    func(ctx context.Context, node string) error
	relay    *Relay // nil: this instance is the only one
}

// NewServer makes a server. admit decides from the credentials in ctx whether the
// caller may report for a node; its errors should be gRPC statuses.
func NewServer(to Receiver, admit func(ctx context.Context, node string) error) *Server {
	return &Server{receiver: to, admit: admit}
}

// PassOn has reports passed on to the leader, where there are several instances. It must be
// called before the server serves.
func (s *Server) PassOn(r *Relay) { s.relay = r }

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { demandv1.RegisterDemandServer(r, s) }

// Report implements the service.
func (s *Server) Report(ctx context.Context, in *demandv1.ReportRequest) (*demandv1.ReportResponse, error) {
	passed := s.relay != nil && s.relay.Passed(ctx)
	if !passed {
		if err := s.admit(ctx, in.GetNode()); err != nil {
			return nil, err
		}
		if in.GetProxy() != "" {
			return nil, status.Error(codes.InvalidArgument, "proxy: an agent reports for its node alone")
		}
	}
	if err := s.take(ctx, decode(in), in, passed); err != nil {
		return nil, err
	}
	return &demandv1.ReportResponse{Sequence: in.GetSequence()}, nil
}

// Take a report that came to this process on another way, as those of proxies do, and pass it on
// to the leader. It is safe for concurrent use, and blocks while the leader is asked. Errors are
// gRPC statuses: after InvalidArgument the report is to be given up, after any other to be
// repeated, as it is.
func (s *Server) Take(ctx context.Context, r *demand.Report) error {
	return s.take(ctx, r, encode(r), false)
}

func (s *Server) take(ctx context.Context, r *demand.Report, in *demandv1.ReportRequest, passed bool) error {
	_, err := s.receiver.Receive(r)
	switch field := (*demand.FieldError)(nil); {
	case errors.As(err, &field):
		return status.Error(codes.InvalidArgument, err.Error())
	case err != nil:
		return status.Error(codes.Unavailable, err.Error())
	}
	// It counts here, too: this instance may be the next leader.
	if s.relay != nil {
		return s.relay.pass(ctx, in, passed)
	}
	return nil
}

// decode translates a message; Report.Check judges the outcome, so what does not fit
// becomes something that it refuses.
func decode(in *demandv1.ReportRequest) *demand.Report {
	r := &demand.Report{
		Node: in.GetNode(), Zone: locality.Zone(in.GetZone()), Run: string(in.GetRun()), Sequence: in.GetSequence(),
		Proxy: in.GetProxy(), Traffic: make([]demand.Traffic, len(in.GetTraffic())),
	}
	if ms := in.GetElapsedMilliseconds(); ms <= uint64(demand.MaxElapsed/time.Millisecond) {
		r.Elapsed = time.Duration(ms) * time.Millisecond
	}
	if a := in.GetAccounting(); a != nil {
		r.Accounting = decodeAccounting(a)
	}
	for i, t := range in.GetTraffic() {
		r.Traffic[i] = demand.Traffic{
			Exchanges: decodeExchanges(t.GetExchanges()),
			Port: proxy.PortName{
				ServiceName: proxy.ServiceName{Namespace: t.GetNamespace(), Name: t.GetService()}, Port: t.GetPort(),
			},
			Family:      decodeFamily(t.GetFamily()),
			Connections: t.GetConnections(), BytesIn: t.GetBytesIn(), BytesOut: t.GetBytesOut(), Requests: t.GetRequests(),
			Utilisation: demand.Utilisation{Sum: t.GetUtilisation(), Reports: t.GetUtilisationReports()},
		}
	}
	return r
}

// decodeFamily takes one that a later version may know for one that is not known.
func decodeFamily(f demandv1.Family) proxy.Family {
	switch f {
	case demandv1.Family_IPV4:
		return proxy.IPv4
	case demandv1.Family_IPV6:
		return proxy.IPv6
	}
	return proxy.AnyFamily
}

// decodeAccounting makes what Check refuses of what does not fit.
func decodeAccounting(a *demandv1.Accounting) demand.Accounting {
	out := demand.Accounting{Quality: proxy.Measured + 1, Reason: a.GetReason(), Covered: -1}
	if q := a.GetQuality(); q >= 0 && q <= demandv1.Accounting_Quality(proxy.Measured) {
		out.Quality = proxy.Quality(q)
	}
	if ms := a.GetCoveredMilliseconds(); ms <= uint64(demand.MaxElapsed/time.Millisecond) {
		out.Covered = time.Duration(ms) * time.Millisecond
	}
	return out
}

func decodeExchanges(in []*demandv1.Exchange) []proxy.Exchange {
	if len(in) == 0 {
		return nil
	}
	out := make([]proxy.Exchange, len(in))
	for i, x := range in {
		out[i] = proxy.Exchange{
			Zone: locality.Zone(x.GetZone()), Kept: x.GetKept(), Opened: x.GetOpened(), Closed: x.GetClosed(), Open: x.GetOpen(),
			BytesIn: x.GetBytesIn(), BytesOut: x.GetBytesOut(), Estimated: x.GetEstimatedBytes(),
		}
	}
	return out
}

func encodeExchanges(in []proxy.Exchange) []*demandv1.Exchange {
	out := make([]*demandv1.Exchange, len(in))
	for i, x := range in {
		out[i] = &demandv1.Exchange{
			Zone: string(x.Zone), Kept: x.Kept, Opened: x.Opened, Closed: x.Closed, Open: x.Open,
			BytesIn: x.BytesIn, BytesOut: x.BytesOut, EstimatedBytes: x.Estimated,
		}
	}
	return out
}

// encode is the inverse of decode, but for fractions of a millisecond.
func encode(r *demand.Report) *demandv1.ReportRequest {
	out := &demandv1.ReportRequest{
		Node: r.Node, Zone: string(r.Zone), Run: []byte(r.Run), Sequence: r.Sequence, Proxy: r.Proxy,
		ElapsedMilliseconds: uint64(max(1, r.Elapsed.Milliseconds())),
		Traffic:             make([]*demandv1.Traffic, len(r.Traffic)),
		Accounting: &demandv1.Accounting{
			Quality: demandv1.Accounting_Quality(r.Accounting.Quality), Reason: r.Accounting.Reason,
			CoveredMilliseconds: uint64(r.Accounting.Covered.Milliseconds()),
		},
	}
	for i := range r.Traffic {
		t := &r.Traffic[i]
		out.Traffic[i] = &demandv1.Traffic{
			Namespace: t.Port.Namespace, Service: t.Port.Name, Port: t.Port.Port, Family: demandv1.Family(t.Family),
			Connections: t.Connections, BytesIn: t.BytesIn, BytesOut: t.BytesOut,
			Exchanges: encodeExchanges(t.Exchanges), Requests: t.Requests,
			Utilisation: t.Utilisation.Sum, UtilisationReports: t.Utilisation.Reports,
		}
	}
	return out
}
