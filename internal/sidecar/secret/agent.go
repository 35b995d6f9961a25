package secret

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// Agent is a Source: the SPIFFE Workload API of the machine's agent, which makes the key, renews
// the certificate, and tells by the calling process whose it is.
type Agent struct {
	// Socket of the API, a path.
	Socket string
}

// retry spaces attempts to get an identity.
var retry = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.5}

// Run implements Source.
func (a Agent) Run(ctx context.Context, _ *Identity, update func(*Identity) error, problem func(error)) {
	backoff.Retry(ctx, retry, func(ctx context.Context) error { return a.follow(ctx, update, problem) }, func(err error, _ time.Duration) {
		if status.Code(err) == codes.PermissionDenied {
			err = fmt.Errorf("%w: it has to be registered on this node, in a mesh with spec.mtls", err)
		}
		problem(fmt.Errorf("the machine's agent (%s): %w", a.Socket, err))
	})
}

// follow one stream of the API.
func (a Agent) follow(ctx context.Context, update func(*Identity) error, problem func(error)) error {
	conn, err := grpc.NewClient("passthrough:///agent",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(a.Socket, "unix://"))
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(wire.Codec{})),
	)
	if err != nil {
		return err
	}
	defer conn.Close()
	// SPIFFE Workload Endpoint, 5.2: every call has this header.
	ctx = metadata.AppendToOutgoingContext(ctx, "workload.spiffe.io", "true")
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "FetchX509SVID", ServerStreams: true}, "/SpiffeWorkloadAPI/FetchX509SVID")
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(&wire.Frame{}), stream.CloseSend()); err != nil {
		return err
	}
	for {
		var frame wire.Frame
		if err := stream.RecvMsg(&frame); err != nil {
			return err
		}
		i, err := parseSVID(frame)
		if err == nil {
			err = update(i)
		}
		problem(err)
	}
}

// parseSVID reads an X509SVIDResponse: its first SVID, and the bundles.
func parseSVID(data []byte) (*Identity, error) {
	i := &Identity{Roots: map[string][][]byte{}}
	id, first := "", true
	var bundle []byte
	err := wire.Fields(data, func(num protowire.Number, value []byte) error {
		switch {
		case num == 1 && first: // svids
			first = false
			return wire.Fields(value, func(num protowire.Number, value []byte) error {
				var err error
				switch num {
				case 1:
					id = string(value)
				case 2:
					i.Chain, err = split(value)
				case 3:
					i.Key = value
				case 4:
					bundle = value
				}
				return err
			})
		case num == 3: // federated_bundles
			return i.federated(value)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	domain, _, _ := strings.Cut(strings.TrimPrefix(id, "spiffe://"), "/")
	i.Roots[domain], err = split(bundle)
	return i, err
}

func (i *Identity) federated(entry []byte) error {
	var domain string
	var roots [][]byte
	err := wire.Fields(entry, func(num protowire.Number, value []byte) error {
		var err error
		switch num {
		case 1:
			domain = strings.TrimPrefix(string(value), "spiffe://")
		case 2:
			roots, err = split(value)
		}
		return err
	})
	if err == nil && domain != "" {
		i.Roots[domain] = roots
	}
	return err
}

// split DER certificates that follow each other.
func split(der []byte) ([][]byte, error) {
	certs, err := x509.ParseCertificates(der)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, c := range certs {
		out = append(out, c.Raw)
	}
	return out, nil
}
