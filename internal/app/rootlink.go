package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
)

// rootLink is how a zone follows the authorities of meshes at global, and gets intermediates
// below them. Each instance has its own, as all of them sign; the leader acknowledges.
type rootLink struct {
	zone atomic.Pointer[zoneLink]
	log  *slog.Logger
	// changed is called when the states of global are other ones.
	changed func()

	mu   sync.Mutex
	conn *grpc.ClientConn
	// states of global by mesh; nil: it has not sent any.
	states map[string]rotation.State
	// following: the states are those of now.
	following bool
	// old: global has a version that has no states to follow.
	old bool
	// due are acknowledgements to send, done those that the global has that sends the states.
	due, done map[string]acknowledgement
	// dueChanged has a value when there may be something to acknowledge.
	dueChanged chan struct{}
}

// acknowledgement of a mesh.
type acknowledgement struct {
	generation uint64
	problem    string
}

func newRootLink(log *slog.Logger) *rootLink {
	return &rootLink{log: log, due: map[string]acknowledgement{}, done: map[string]acknowledgement{}, dueChanged: make(chan struct{}, 1)}
}

// rootTimeout bounds one call.
const rootTimeout = 5 * time.Second

// followAgain spaces attempts to follow global.
var followAgain = backoff.Policy{First: 200 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.5}

// errNotJoined: the control plane is starting.
var errNotJoined = errors.New("this zone is not connected to global yet")

func (l *rootLink) client() (federationv1.MeshAuthoritiesClient, error) {
	zone := l.zone.Load()
	if zone == nil {
		return nil, errNotJoined
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		conn, err := zone.plane().connect()
		if err != nil {
			return nil, err
		}
		l.conn = conn
	}
	return federationv1.NewMeshAuthoritiesClient(l.conn), nil
}

// run follows global until ctx ends.
func (l *rootLink) run(ctx context.Context) error {
	var acknowledging sync.WaitGroup
	defer acknowledging.Wait()
	acknowledging.Go(func() { l.sendAcknowledgements(ctx) })
	pause := backoff.Backoff{Policy: followAgain}
	for ctx.Err() == nil {
		began, err := l.follow(ctx)
		if began {
			pause.Reset()
		}
		if ctx.Err() == nil {
			l.log.Debug("authorities of global are not followed; it is tried again", "error", err)
		}
		backoff.Sleep(ctx, pause.Next())
	}
	return nil
}

// follow global until the stream ends; began: it had one.
func (l *rootLink) follow(ctx context.Context) (began bool, err error) {
	client, err := l.client()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Follow(ctx, &federationv1.FollowRequest{})
	if err != nil {
		return false, err
	}
	for {
		all, err := stream.Recv()
		if err != nil {
			l.mu.Lock()
			l.old, l.following = status.Code(err) == codes.Unimplemented, false
			l.mu.Unlock()
			return began, err
		}
		states := map[string]rotation.State{}
		for _, m := range all.GetMeshes() {
			s, err := stateOf(m)
			if err != nil {
				l.log.Warn("global sends authorities that this version cannot use", "mesh", m.GetMesh(), "error", err)
				continue
			}
			states[s.Mesh] = s
		}
		l.mu.Lock()
		if l.states, l.old, l.following = states, false, true; !began {
			clear(l.done) // it may be another global than before, or one that was set back
		}
		l.mu.Unlock()
		began = true
		l.changed()
	}
}

// stateOf reads what global sent, and checks it. What only the leader of global needs is
// not in it.
func stateOf(m *federationv1.MeshState) (rotation.State, error) {
	s := rotation.New(m.GetMesh(), rotation.Authority{}, time.Time{})
	s.Generation, s.Phase, s.Issuer, s.Trusted = m.GetGeneration(), rotation.Phase(m.GetPhase()), m.GetIssuer(), nil
	for _, a := range m.GetTrusted() {
		t := rotation.Authority{ID: a.GetId(), Backend: a.GetBackend(), Type: a.GetType(), Roots: a.GetRoots()}
		if t.Type == meshv1alpha1.BackendBuiltin && t.ID != rotation.None {
			if err := checkRoot(s.Mesh, t); err != nil {
				return rotation.State{}, err
			}
		}
		s.Trusted = append(s.Trusted, t)
	}
	return s, s.Check()
}

// checkRoot refuses a built-in authority whose root is that of another.
func checkRoot(mesh string, t rotation.Authority) error {
	certs, err := certpem.ParseCertificates(t.Roots)
	switch {
	case err != nil:
		return fmt.Errorf("root of mesh %s: %w", mesh, err)
	case len(certs) != 1 || authority.ID(certs[0]) != t.ID:
		return fmt.Errorf("root of mesh %s: it is not the one of authority %s", mesh, t.ID)
	}
	return nil
}

// state implements authorities.Config.Global. What global said last is used while there is
// no connection.
func (l *rootLink) state(ctx context.Context, mesh, backend string) (rotation.State, bool, error) {
	l.mu.Lock()
	s, ok := l.states[mesh]
	known, old := l.states != nil, l.old
	l.mu.Unlock()
	switch {
	case known:
		return s, ok, nil
	case !old:
		return rotation.State{}, false, errNotJoined
	case backend == "":
		return rotation.State{}, false, nil
	}
	t, err := l.root(ctx, mesh, backend)
	if err != nil {
		return rotation.State{}, false, err
	}
	return rotation.New(mesh, t, time.Time{}), true, nil
}

// acknowledge implements authorities.LeaderConfig.Acknowledge.
func (l *rootLink) acknowledge(mesh string, generation uint64, problem string) {
	next := acknowledgement{generation, problem}
	l.mu.Lock()
	defer l.mu.Unlock()
	if waiting, ok := l.due[mesh]; ok && waiting == next || !ok && l.done[mesh] == next {
		return
	}
	l.due[mesh] = next
	select {
	case l.dueChanged <- struct{}{}:
	default:
	}
}

// sendAcknowledgements until ctx ends. One that fails is given up: the leader comes again
// with it.
func (l *rootLink) sendAcknowledgements(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.dueChanged:
		}
		l.mu.Lock()
		due := l.due
		l.due = map[string]acknowledgement{}
		l.mu.Unlock()
		for mesh, one := range due {
			err := l.sendAcknowledgement(ctx, mesh, one)
			if err != nil {
				l.log.Debug("a change of authorities was not acknowledged to global; it is tried again", "mesh", mesh, "error", err)
				time.AfterFunc(followAgain.Last, l.changed)
				continue
			}
			l.mu.Lock()
			l.done[mesh] = one
			l.mu.Unlock()
		}
	}
}

func (l *rootLink) sendAcknowledgement(ctx context.Context, mesh string, one acknowledgement) error {
	client, err := l.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rootTimeout)
	defer cancel()
	_, err = client.Acknowledge(ctx, &federationv1.AcknowledgeRequest{
		Mesh: mesh, Generation: one.generation, Problem: one.problem,
	})
	return err
}

// root is the authority by which a global of an older version issues.
func (l *rootLink) root(ctx context.Context, mesh, backend string) (rotation.Authority, error) {
	client, err := l.client()
	if err != nil {
		return rotation.Authority{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, rootTimeout)
	defer cancel()
	answer, err := client.Root(ctx, &federationv1.RootRequest{Mesh: mesh, Backend: backend})
	if err != nil {
		return rotation.Authority{}, errors.New(status.Convert(err).Message())
	}
	t := rotation.Authority{ID: answer.GetAuthority(), Backend: backend, Type: meshv1alpha1.BackendBuiltin, Roots: answer.GetRoot()}
	return t, checkRoot(mesh, t)
}

// intermediates implements authorities.Config.Intermediates.
func (l *rootLink) intermediates(_ string, a rotation.Authority) authority.IntermediateIssuer {
	return remoteRoot{l, a.ID}
}

// remoteRoot is a root that global has.
type remoteRoot struct {
	link      *rootLink
	authority string
}

// IssueIntermediate implements authority.IntermediateIssuer.
func (r remoteRoot) IssueIntermediate(ctx context.Context, mesh string, csr []byte) (*authority.Intermediate, error) {
	// After a cut the states of global come first: what others trust may be another by now.
	r.link.mu.Lock()
	current := r.link.following || r.link.old
	r.link.mu.Unlock()
	if !current {
		return nil, errNotJoined
	}
	client, err := r.link.client()
	if err != nil {
		return nil, err
	}
	answer, err := client.Intermediate(ctx, &federationv1.IntermediateRequest{Mesh: mesh, Authority: r.authority, Request: csr})
	if err != nil {
		return nil, errors.New(status.Convert(err).Message())
	}
	var i authority.Intermediate
	if i.Chain, err = certpem.ParseCertificates(answer.GetChain()); err == nil {
		i.Roots, err = certpem.ParseCertificates(answer.GetRoots())
	}
	if err != nil {
		return nil, fmt.Errorf("intermediate of mesh %s: %w", mesh, err)
	}
	return &i, nil
}

func (l *rootLink) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}
