package wire

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	demandv1 "github.com/proxima-mesh/proxima/api/demand/v1"
)

// relayTimeout of one report to the leader: below that of the agent, which waits meanwhile.
const relayTimeout = 3 * time.Second

// Relay passes the reports that come to an instance on to the one that leads, which plans with
// them. All fields are required. Safe for concurrent use.
type Relay struct {
	// Leader returns the address (host:port) of the leader's gRPC port; empty: this instance
	// leads, or none is known to. It must not block.
	Leader func() string
	// Dial makes a connection to another instance, which the relay closes. It must not block.
	Dial func(address string) (*grpc.ClientConn, error)
	// Passed says, from the credentials in ctx, whether the caller is another instance.
	Passed func(ctx context.Context) bool

	mu   sync.Mutex
	at   string
	conn *grpc.ClientConn
}

// Close the connection to the leader. Idempotent.
func (r *Relay) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave()
}

func (r *Relay) leave() {
	if r.conn != nil {
		_ = r.conn.Close() // nothing is lost: reports are repeated until they are answered
	}
	r.conn, r.at = nil, ""
}

// pass a report on, unless this instance leads. The error is a gRPC status after which the agent
// repeats the report: the leader counts it once, on whatever ways it comes.
func (r *Relay) pass(ctx context.Context, in *demandv1.ReportRequest, passed bool) error {
	leader := r.Leader()
	if leader == "" {
		return nil
	}
	if passed {
		return status.Error(codes.Unavailable, "this instance does not lead any more")
	}
	conn, err := r.to(leader)
	if err != nil {
		return status.Error(codes.Unavailable, fmt.Sprintf("leader %s: %v", leader, err))
	}
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	if _, err := demandv1.NewDemandClient(conn).Report(ctx, in); err != nil {
		return status.Error(codes.Unavailable, fmt.Sprintf("leader %s: %s", leader, status.Convert(err).Message()))
	}
	return nil
}

// to is the connection to the leader.
func (r *Relay) to(leader string) (*grpc.ClientConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == leader {
		return r.conn, nil
	}
	r.leave()
	conn, err := r.Dial(leader)
	if err != nil {
		return nil, err
	}
	r.at, r.conn = leader, conn
	return conn, nil
}
