package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// Subject of a certificate: a Dataplane by namespace and name, or, where both are empty,
// the node itself in a mesh. Comparable.
type Subject struct {
	Namespace, Name string
	// Mesh of a node's own certificate; empty for a Dataplane.
	Mesh string
	// Gateway that the node is, for the certificate of that role in a mesh:
	// mesh.IngressID or mesh.EgressID; 0: none.
	Gateway mesh.Kind
}

func (s Subject) String() string {
	switch s.Gateway {
	case mesh.IngressID:
		return "ingress in mesh " + s.Mesh
	case mesh.EgressID:
		return "egress in mesh " + s.Mesh
	}
	if s.Name == "" {
		return "node in mesh " + s.Mesh
	}
	return s.Namespace + "/" + s.Name
}

// Errors of Current.
var (
	// ErrNone: there is no certificate yet, or the mesh has no mTLS.
	ErrNone = errors.New("no certificate was issued yet")
	// ErrExpired: the certificate has run out, and could not be renewed.
	ErrExpired = errors.New("the certificate has run out")
)

// Config configures a Manager. Dir and Client are required.
type Config struct {
	// Dir keeps certificates, keys and roots. It is made if it is not there; no other
	// process may use it.
	Dir string
	// Client reaches the control plane.
	Client identityv1.IdentityClient
	// Node that this is, for its own certificate in each mesh of its members; empty: it
	// has none.
	Node string
	// Gateway of the zone that the node is: it has a certificate of that role in every mesh
	// that issues. 0: it is none.
	Gateway mesh.Kind
	// Registerer of metrics; nil: none.
	Registerer prometheus.Registerer
	// Spread is the time over which certificates are replaced when another authority
	// issues; 0: 30 s. Negative: at once.
	Spread time.Duration
	Logger *slog.Logger     // nil: silence
	Now    func() time.Time // the machine's clock; nil: time.Now
}

const (
	defaultSpread = 30 * time.Second
	// issuing bounds the requests that one agent has open.
	issuing = 4
	// issueTimeout is more than an external signer may take.
	issueTimeout = 75 * time.Second
)

// Manager holds the certificates of a node. Safe for concurrent use.
type Manager struct {
	config Config
	slots  chan struct{} // of requests in flight

	// applying serialises changes of trust with their writes to disk.
	applying sync.Mutex

	mu      sync.Mutex
	entries map[Subject]*entry
	trust   *mesh.Trust
	bundles map[string]*bundle // by mesh
	// zone of the control plane; empty: it is not known yet.
	zone string
	// members as they were set; nil: they were not.
	members        map[Subject]Member
	membersChanged chan struct{} // closed by their next change
	failures       uint64        // of requests
	// changed is closed by the next change of trust.
	changed chan struct{}
	// ack is signalled when there may be something to acknowledge.
	ack chan struct{}
	// start runs the loop of an entry; nil: Run is not running.
	start func(*entry)
}

// entry is one certificate.
type entry struct {
	subject Subject
	id      mesh.ID
	wake    chan struct{}
	// life ends with Remove; done is closed when the entry's loop ended.
	life    context.Context
	end     context.CancelFunc
	done    chan struct{}
	running bool

	// Below: guarded by Manager.mu.
	svid    *mesh.SVID
	issuer  string // that signed svid
	problem error
	// changed is closed by the next change of svid.
	changed chan struct{}
}

// New loads what an earlier Manager stored in the directory, and adds the subjects of the
// certificates that it finds. Damaged files are logged and replaced later. Without a
// directory to write to it starts, too: certificates are then requested until they can be
// stored. SetMembers, or Add, and Run come next.
func New(c Config) *Manager {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Spread == 0 {
		c.Spread = defaultSpread
	}
	if err := makeDirs(c.Dir); err != nil {
		c.Logger.Error("the directory of certificates cannot be made; none is used before that", "error", err)
	}
	m := &Manager{
		config: c, slots: make(chan struct{}, issuing), entries: map[Subject]*entry{}, bundles: map[string]*bundle{},
		changed: make(chan struct{}), membersChanged: make(chan struct{}), ack: make(chan struct{}, 1),
	}
	bundles, zone, err := loadTrust(c.Dir)
	if err == nil {
		m.trust, err = trustOf(bundles)
	}
	if err != nil {
		c.Logger.Error("the stored roots cannot be used; they are requested", "error", err)
	}
	if m.trust == nil {
		bundles = map[string]*bundle{}
		m.trust, _ = mesh.NewTrust() // of nothing: no error is possible
	}
	m.bundles, m.zone = bundles, zone
	m.restore()
	if c.Registerer != nil {
		c.Registerer.MustRegister(m)
	}
	return m
}

// Add begins to keep the certificate of a subject, with what is on disk for it. The ID
// is what the agent has worked out for it; the control plane decides. Adding a subject
// again does nothing, unless its ID is another: then the old certificate is dropped.
func (m *Manager) Add(s Subject, id mesh.ID) {
	m.mu.Lock()
	old := m.entries[s]
	if old != nil && old.id == id {
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	if old != nil {
		m.Remove(s)
	}
	e := &entry{subject: s, id: id, wake: make(chan struct{}, 1), done: make(chan struct{}), changed: make(chan struct{})}
	e.life, e.end = context.WithCancel(context.Background())
	svid, issuer, err := m.loadCertificate(s, id)
	if err != nil {
		m.config.Logger.Error("the stored certificate cannot be used; another one is requested", "subject", s.String(), "error", err)
	}
	e.svid, e.issuer = svid, issuer
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.entries[s]; taken {
		return // added by another call meanwhile
	}
	m.entries[s] = e
	if m.start != nil {
		m.start(e)
	}
}

// Remove drops the certificate of a subject, its file included. That there is none is no
// error. It waits for a request in flight to be cancelled.
func (m *Manager) Remove(s Subject) {
	m.mu.Lock()
	e := m.entries[s]
	delete(m.entries, s)
	if e == nil {
		m.mu.Unlock()
		return
	}
	e.end()
	e.set(nil, "")
	running := e.running
	m.mu.Unlock()
	if running {
		<-e.done
	}
	if err := removeCertificate(m.config.Dir, s); err != nil {
		m.config.Logger.Error("a certificate that is not needed any more stays on disk", "subject", s.String(), "error", err)
	}
	m.wantAck()
}

// Prune removes files of subjects that are not there, as those of workloads that went
// while the agent was away. To be called once all subjects are added.
func (m *Manager) Prune() error {
	m.mu.Lock()
	keep := map[string]bool{}
	for s := range m.entries {
		keep[fileOf(s)] = true
	}
	m.mu.Unlock()
	return prune(m.config.Dir, keep)
}

// Current is the certificate of a subject, and a channel that is closed when there is
// another one, or none. Connections and sessions of the old one are to be dropped then.
// Errors: ErrNone, ErrExpired; the channel is good with both.
func (m *Manager) Current(s Subject) (*mesh.SVID, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[s]
	switch {
	case e == nil:
		return nil, nil, fmt.Errorf("certificate of %s: %w", s, ErrNone)
	case e.svid == nil:
		return nil, e.changed, fmt.Errorf("certificate of %s: %w%s", s, ErrNone, because(e.problem))
	case !m.config.Now().Before(e.svid.NotAfter()):
		return nil, e.changed, fmt.Errorf("certificate of %s: %w%s", s, ErrExpired, because(e.problem))
	}
	return e.svid, e.changed, nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// Trust is what is trusted, and a channel that is closed when that changes. Before the
// first answer of a control plane it is empty, and trusts nothing.
func (m *Manager) Trust() (*mesh.Trust, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.trust, m.changed
}

// Zone is the site of the control plane, as it is in the identities of nodes and gateways;
// empty: it is not known yet.
func (m *Manager) Zone() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.zone
}

// Holds reports whether a certificate is the current one of any subject.
func (m *Manager) Holds(identity, serial string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if e.svid != nil && e.id.String() == identity && e.svid.Serial() == serial {
			return true
		}
	}
	return false
}

// AcceptsPlain reports whether servers of a mesh accept plain text; false for an
// unknown mesh.
func (m *Manager) AcceptsPlain(meshName string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.bundles[meshName]
	return b != nil && b.AcceptsPlain
}

// Run keeps everything fresh until ctx ends, and returns nil then. It may run once.
func (m *Manager) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	m.mu.Lock()
	m.start = func(e *entry) {
		e.running = true
		loops.Go(func() {
			defer close(e.done)
			m.keep(ctx, e)
		})
	}
	for _, e := range m.entries {
		m.start(e)
	}
	m.mu.Unlock()
	loops.Go(func() { m.followMembers(ctx) })
	m.follow(ctx)
	m.mu.Lock()
	m.start = nil
	m.mu.Unlock()
	loops.Wait()
	return nil
}

// set another certificate; Manager.mu is held.
func (e *entry) set(svid *mesh.SVID, issuer string) {
	e.svid, e.issuer = svid, issuer
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *entry) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (m *Manager) wantAck() {
	select {
	case m.ack <- struct{}{}:
	default:
	}
}
