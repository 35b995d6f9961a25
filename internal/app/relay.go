package app

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	sidecarv1 "github.com/proxima-mesh/proxima/api/sidecar/v1"
	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/demand/wire"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
)

// passReports has reports of demand, and of what proxies have acknowledged, passed on to the instance
// that leads: agents and proxies are connected to any. leader returns the address of its gRPC port; empty:
// this instance leads, or none is known to. It must be called before gRPC is served.
func (i *instance) passReports(ca *identity.Authority, leader func() string) {
	if i.reports == nil {
		return
	}
	dial := func(address string) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///"+address, append(stream.DialOptions(),
			grpc.WithTransportCredentials(credentials.NewTLS(instanceTLS(ca))))...)
	}
	i.relay = &wire.Relay{Leader: leader, Passed: access.CallerInstance, Dial: dial}
	i.reports.PassOn(i.relay)
	i.acks.leader, i.acks.dial = leader, dial
	sidecarv1.RegisterAcknowledgementsServer(i.server, i.acks)
}

// instanceTLS is how an instance calls another one. Each connection has a certificate of its own.
func instanceTLS(ca *identity.Authority) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: ca.Pool(), ServerName: peerServer,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := instanceCertificate(ca)
			return &c, err
		},
	}
}

// instanceCertificate by which an instance calls the others, for peerLife.
func instanceCertificate(ca *identity.Authority) (c tls.Certificate, err error) {
	subject, err := identity.SubjectFor(identity.Admin, identity.InstanceName)
	if err != nil {
		return c, err
	}
	pair, err := ca.IssueClient(subject, peerLife)
	if err == nil {
		c, err = tls.X509KeyPair(pair.Cert, pair.Key)
	}
	if err != nil {
		return c, fmt.Errorf("certificate for calls to other instances: %w", err)
	}
	return c, nil
}

// atAddress is between the name of an instance and the address of its gRPC port, in the holder
// of the Lease; apiAt between the name and the address of its API, before that.
const (
	atAddress = "@"
	apiAt     = "="
)

// holderIdentity of an instance in the Lease: NAME=API@GRPC. Versions before this one have NAME@GRPC.
func holderIdentity(name, api, grpc string) string { return name + apiAt + api + atAddress + grpc }

// apiIn the holder of the Lease is the address of its API; empty: it has none.
func apiIn(holder string) string {
	name, _, _ := strings.Cut(holder, atAddress)
	_, api, _ := strings.Cut(name, apiAt)
	return api
}

// leaderPeer is the instance that holds the Lease, as the API reaches it. holder returns the identity of another instance that does;
// empty: this one does, or none.
func leaderPeer(holder func() string, ca *identity.Authority) *peers {
	return &peers{ca: ca, list: func() []cluster.Member {
		name := holder()
		return []cluster.Member{{Name: name, API: apiIn(name)}}
	}}
}

// addressIn the holder of the Lease; empty: it has none.
func addressIn(holder string) string {
	_, address, _ := strings.Cut(holder, atAddress)
	return address
}

// grpcAddress by which other instances reach this one; empty: gRPC is off.
func (i *instance) grpcAddress(cfg ControlPlaneConfig) string {
	if i.listener == nil {
		return ""
	}
	return net.JoinHostPort(advertisedHost(cfg.AdvertiseAddress, i.listener.Addr()), portOf(i.listener.Addr()))
}
