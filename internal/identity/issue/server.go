package issue

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/ratelimit"
)

// MaxRequest is the largest certificate request that is read, in bytes; one of ours has
// about 300, the largest RSA key less than 4,000.
const MaxRequest = 16 << 10

// Workload is what the control plane has in its own records of a Dataplane. Nothing in
// it is taken from the caller.
type Workload struct {
	Mesh, Namespace, ServiceAccount string
	// Node that the workload runs on.
	Node string
}

// Workloads finds out what a node may have certificates for.
type Workloads interface {
	// Workload by its namespace and name; ok is false if there is none.
	Workload(ctx context.Context, namespace, name string) (w Workload, ok bool, err error)
	// NodeInMesh reports whether a node has workloads of a mesh, or is a gateway for it.
	NodeInMesh(ctx context.Context, node, mesh string) (bool, error)
	// Gateway reports whether a node is an ingress (mesh.IngressID) or egress
	// (mesh.EgressID) of the zone.
	Gateway(ctx context.Context, node string, kind mesh.Kind) (bool, error)
}

// Mesh is a mesh with the authority that issues now.
type Mesh struct {
	Name   string
	Domain mesh.Domain
	// Issuer is the authority's ID in the mesh's rotation.
	Issuer string
	Signer authority.Signer
	// Life of the certificates of workloads; 0: authority.LeafLife.
	Life time.Duration
}

// Issued is the record of a certificate.
type Issued struct {
	// Node that requested it.
	Node string `json:"node"`
	// Namespace and Workload of the Dataplane; empty: it is the node's own.
	Namespace string    `json:"namespace,omitempty"`
	Workload  string    `json:"workload,omitempty"`
	Mesh      string    `json:"mesh"`
	ID        mesh.ID   `json:"id"`
	Issuer    string    `json:"issuer"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// Config configures a Server. All fields but External, Members, Redirection, Limits, Registerer, Logger and Now are required.
type Config struct {
	// Zone is the site of this control plane, for the IDs of nodes.
	Zone string
	// Caller is the node of the client certificate of a call; its errors should be gRPC
	// statuses.
	Caller    func(ctx context.Context) (node string, err error)
	Workloads Workloads
	// Mesh by name; ok is false if there is none, or it has no mTLS.
	Mesh func(name string) (m Mesh, ok bool)
	// Record keeps the record of a certificate before the node gets it; an error keeps
	// the certificate back.
	Record func(ctx context.Context, i Issued) error
	// External serves the method of that name; nil: it is not implemented.
	External func(*identityv1.ExternalRequest, grpc.ServerStreamingServer[identityv1.ExternalResponse]) error
	// Members, as External.
	Members func(*identityv1.MembersRequest, grpc.ServerStreamingServer[identityv1.MembersResponse]) error
	// Redirection, as External.
	Redirection func(context.Context, *identityv1.RedirectionRequest) (*identityv1.RedirectionResponse, error)
	// Board has what is trusted, and takes acknowledgements.
	Board  *Board
	Limits Limits
	// Registerer of metrics; nil: none.
	Registerer prometheus.Registerer
	Logger     *slog.Logger     // nil: silence
	Now        func() time.Time // nil: time.Now
}

// Server implements the Identity service.
type Server struct {
	identityv1.UnimplementedIdentityServer
	config Config
	limits *ratelimit.Limiter
	issued *prometheus.CounterVec
}

// NewServer makes a server.
func NewServer(c Config) *Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &Server{config: c, limits: newLimiter(c.Limits), issued: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "proxima_mesh_certificate_requests_total",
		Help: "Requests of agents for certificates of workloads and nodes, by gRPC code; OK: one was issued.",
	}, []string{"code"})}
	if c.Registerer != nil {
		c.Registerer.MustRegister(s.issued)
	}
	return s
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { identityv1.RegisterIdentityServer(r, s) }

// Issue implements identityv1.IdentityServer.
func (s *Server) Issue(ctx context.Context, r *identityv1.IssueRequest) (*identityv1.IssueResponse, error) {
	out, err := s.issue(ctx, r)
	s.issued.WithLabelValues(status.Code(err).String()).Inc()
	return out, err
}

func (s *Server) issue(ctx context.Context, r *identityv1.IssueRequest) (*identityv1.IssueResponse, error) {
	node, err := s.config.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if !s.limits.Allow(node, s.config.Now()) {
		return nil, status.Errorf(codes.ResourceExhausted,
			"node %s requests too many certificates: at most %g a second", node, float64(s.limits.Rate()))
	}
	csr, err := parseRequest(r.GetRequest())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	record, m, err := s.subject(ctx, node, r)
	if err != nil {
		return nil, err
	}
	if len(csr.URIs) != 1 || csr.URIs[0].String() != record.ID.String() {
		return nil, status.Errorf(codes.InvalidArgument, "the certificate request has not exactly the name %s", record.ID)
	}
	chain, err := m.Signer.Sign(ctx, authority.Request{ID: record.ID, CSR: csr, Life: m.Life})
	if err != nil {
		return nil, s.signFailed(ctx, record, err)
	}
	leaf := chain[0]
	record.Issuer, record.Serial, record.NotBefore, record.NotAfter = m.Issuer, mesh.SerialOf(leaf), leaf.NotBefore, leaf.NotAfter
	// The peer holds the certificate from here on, as far as rotations are concerned.
	s.config.Board.holds(m.Name, node, leaf.NotAfter)
	if err := s.config.Record(ctx, record); err != nil {
		s.config.Logger.Error("a certificate was kept back as it could not be recorded", "id", record.ID, "node", node, "error", err)
		return nil, status.Error(codes.Unavailable, "the certificate could not be recorded: try again")
	}
	out := &identityv1.IssueResponse{Mesh: m.Name, Issuer: m.Issuer}
	for _, c := range chain {
		out.Chain = append(out.Chain, c.Raw)
	}
	return out, nil
}

func (s *Server) signFailed(ctx context.Context, record Issued, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	s.config.Logger.Warn("certificate not issued", "id", record.ID, "node", record.Node, "error", err)
	var denied *authority.DeniedError
	if errors.As(err, &denied) {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}

// parseRequest reads a certificate request and checks its key and signature.
func parseRequest(der []byte) (*x509.CertificateRequest, error) {
	if len(der) == 0 || len(der) > MaxRequest {
		return nil, fmt.Errorf("certificate request of %d bytes: 1 to %d are possible", len(der), MaxRequest)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("damaged certificate request: %w", err)
	}
	return csr, certpem.CheckRequest(csr)
}

// subject decides which identity the caller may have, from the control plane's own
// records.
func (s *Server) subject(ctx context.Context, node string, r *identityv1.IssueRequest) (Issued, Mesh, error) {
	switch subject := r.GetSubject().(type) {
	case *identityv1.IssueRequest_Workload:
		return s.workload(ctx, node, subject.Workload.GetNamespace(), subject.Workload.GetName())
	case *identityv1.IssueRequest_Node:
		return s.node(ctx, node, subject.Node.GetMesh())
	case *identityv1.IssueRequest_Gateway:
		return s.gateway(ctx, node, subject.Gateway)
	}
	return Issued{}, Mesh{}, status.Error(codes.InvalidArgument, "the request names no workload and no node")
}

func (s *Server) workload(ctx context.Context, node, namespace, name string) (Issued, Mesh, error) {
	fail := func(err error) (Issued, Mesh, error) { return Issued{}, Mesh{}, err }
	w, ok, err := s.config.Workloads.Workload(ctx, namespace, name)
	switch {
	case err != nil:
		return fail(s.unavailable("workload "+namespace+"/"+name, err))
	case !ok:
		return fail(status.Errorf(codes.NotFound, "there is no workload %.300q", namespace+"/"+name))
	case w.Node == "" || w.Node != node:
		// Which node it is is none of the caller's business.
		return fail(status.Errorf(codes.PermissionDenied, "workload %s/%s is not one of node %s", namespace, name, node))
	}
	m, ok := s.config.Mesh(w.Mesh)
	if !ok {
		return fail(status.Errorf(codes.NotFound, "mesh %q is not there, or has no mTLS", w.Mesh))
	}
	id, err := mesh.Workload(m.Domain, w.Namespace, w.ServiceAccount)
	if err != nil {
		return fail(status.Error(codes.FailedPrecondition, err.Error()))
	}
	return Issued{Node: node, Namespace: namespace, Workload: name, Mesh: m.Name, ID: id}, m, nil
}

func (s *Server) node(ctx context.Context, node, meshName string) (Issued, Mesh, error) {
	fail := func(err error) (Issued, Mesh, error) { return Issued{}, Mesh{}, err }
	ok, err := s.config.Workloads.NodeInMesh(ctx, node, meshName)
	if err != nil {
		return fail(s.unavailable("node "+node, err))
	}
	m, there := s.config.Mesh(meshName)
	if !ok || !there {
		return fail(status.Errorf(codes.PermissionDenied, "node %s has nothing to do with mesh %.300q", node, meshName))
	}
	id, err := mesh.Node(m.Domain, s.config.Zone, node)
	if err != nil {
		return fail(status.Error(codes.FailedPrecondition, err.Error()))
	}
	return Issued{Node: node, Mesh: m.Name, ID: id}, m, nil
}

// gateway of the zone: it serves all meshes, so it has an identity in each.
func (s *Server) gateway(ctx context.Context, node string, g *identityv1.Gateway) (Issued, Mesh, error) {
	fail := func(err error) (Issued, Mesh, error) { return Issued{}, Mesh{}, err }
	kind, idOf := mesh.IngressID, mesh.Ingress
	switch g.GetRole() {
	case identityv1.Gateway_INGRESS:
	case identityv1.Gateway_EGRESS:
		kind, idOf = mesh.EgressID, mesh.Egress
	default:
		return fail(status.Errorf(codes.InvalidArgument, "gateway role %d is unknown", g.GetRole()))
	}
	ok, err := s.config.Workloads.Gateway(ctx, node, kind)
	if err != nil {
		return fail(s.unavailable("gateway "+node, err))
	}
	m, there := s.config.Mesh(g.GetMesh())
	if !ok || !there {
		return fail(status.Errorf(codes.PermissionDenied, "node %s is no %s of this zone for mesh %.300q",
			node, strings.ToLower(g.GetRole().String()), g.GetMesh()))
	}
	id, err := idOf(m.Domain, s.config.Zone)
	if err != nil {
		return fail(status.Error(codes.FailedPrecondition, err.Error()))
	}
	return Issued{Node: node, Mesh: m.Name, ID: id}, m, nil
}

func (s *Server) unavailable(what string, err error) error {
	s.config.Logger.Error("certificate not issued", "object", what, "error", err)
	return status.Errorf(codes.Unavailable, "%s cannot be read now: try again", what)
}

// External implements identityv1.IdentityServer.
func (s *Server) External(r *identityv1.ExternalRequest, stream grpc.ServerStreamingServer[identityv1.ExternalResponse]) error {
	if s.config.External == nil {
		return s.UnimplementedIdentityServer.External(r, stream)
	}
	return s.config.External(r, stream)
}

// Members implements identityv1.IdentityServer.
func (s *Server) Members(r *identityv1.MembersRequest, stream grpc.ServerStreamingServer[identityv1.MembersResponse]) error {
	if s.config.Members == nil {
		return s.UnimplementedIdentityServer.Members(r, stream)
	}
	return s.config.Members(r, stream)
}

// Redirection implements identityv1.IdentityServer.
func (s *Server) Redirection(ctx context.Context, r *identityv1.RedirectionRequest) (*identityv1.RedirectionResponse, error) {
	if s.config.Redirection == nil {
		return s.UnimplementedIdentityServer.Redirection(ctx, r)
	}
	return s.config.Redirection(ctx, r)
}

// Trust implements identityv1.IdentityServer. The stream ends with its context, or when
// the same node opens a newer one.
func (s *Server) Trust(stream grpc.BidiStreamingServer[identityv1.TrustRequest, identityv1.TrustResponse]) error {
	node, err := s.config.Caller(stream.Context())
	if err != nil {
		return err
	}
	session := s.config.Board.connect(node)
	defer session.close()
	received := make(chan error, 1)
	go func() { received <- s.receive(stream, session) }()
	for {
		bundles, changed := s.config.Board.bundles()
		if err := stream.Send(&identityv1.TrustResponse{Bundles: bundles, Zone: s.config.Zone}); err != nil {
			return err
		}
		select {
		case err := <-received:
			return err
		case <-session.replaced:
			return status.Errorf(codes.Aborted, "node %s has a newer stream", node)
		case <-changed:
		}
	}
}

// receive acknowledgements until the stream ends. It ends with the stream at the latest:
// gRPC ends Recv when the handler has returned.
func (s *Server) receive(stream grpc.BidiStreamingServer[identityv1.TrustRequest, identityv1.TrustResponse], session *session) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, a := range r.GetAcknowledgements() {
			session.acknowledge(a.GetMesh(), a.GetGeneration(), a.GetHoldsUntil())
		}
	}
}
