package issue

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
)

// Published is what agents are to trust for a mesh.
type Published struct {
	State  rotation.State
	Domain mesh.Domain
	// Life of the longest certificate that is issued; 0: authority.LeafLife.
	Life time.Duration
}

// Board holds what agents are to trust, and which of them have acknowledged what. One
// instance of a control plane has one. Safe for concurrent use; no method blocks.
type Board struct {
	// onAck is called after each acknowledgement and disconnect, without locks.
	onAck func()

	mu      sync.Mutex
	meshes  map[string]*identityv1.Bundle
	exports map[string][]string // by mesh: which have clients of its servers
	lives   map[string]time.Duration
	changed chan struct{} // closed by the next change of meshes
	nodes   map[string]*node
}

// node is what is recorded of an agent.
type node struct {
	session *session // nil: it has no stream here
	meshes  map[string]*held
}

// held is the state of an agent in a mesh.
type held struct {
	acked uint64
	until time.Time
}

// NewBoard makes a board. onAck (nil: nothing) is called when a step of a rotation may
// be due, and must not block.
func NewBoard(onAck func()) *Board {
	if onAck == nil {
		onAck = func() {}
	}
	return &Board{onAck: onAck, meshes: map[string]*identityv1.Bundle{}, lives: map[string]time.Duration{}, changed: make(chan struct{}), nodes: map[string]*node{}}
}

// Restore takes the holders of certificates from the records of an earlier run: an agent
// that is away now is waited for until its certificates run out. To be called before
// agents connect.
func (b *Board) Restore(issued []Issued) {
	for _, i := range issued {
		b.holds(i.Mesh, i.Node, i.NotAfter)
	}
}

// Publish replaces what is trusted for a mesh. The roots in the state have to be PEM
// certificates.
func (b *Board) Publish(p Published) error {
	bundle := &identityv1.Bundle{
		Mesh: p.State.Mesh, TrustDomain: p.Domain.Name(),
		Generation: p.State.Generation, Issuer: p.State.Issuer, AcceptsPlain: p.State.AcceptsPlain(),
	}
	if roots := p.State.Roots(); len(roots) > 0 {
		if _, err := certpem.ParseCertificates(roots); err != nil {
			return err
		}
		for block, rest := pem.Decode(roots); block != nil; block, rest = pem.Decode(rest) {
			bundle.Roots = append(bundle.Roots, block.Bytes)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	bundle.ExportedTo = b.exports[p.State.Mesh]
	b.lives[p.State.Mesh] = max(p.Life, b.lives[p.State.Mesh], authority.LeafLife)
	b.meshes[p.State.Mesh] = bundle
	b.notifyLocked()
	return nil
}

// Export replaces, for all meshes, which others have Services of theirs exported to them. The names
// have to be sorted, and belong to the board afterwards.
func (b *Board) Export(exports map[string][]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.exports = exports
	changed := false
	for name, old := range b.meshes {
		if slices.Equal(old.ExportedTo, exports[name]) {
			continue
		}
		bundle := proto.CloneOf(old) // messages that were sent do not change
		bundle.ExportedTo = exports[name]
		b.meshes[name], changed = bundle, true
	}
	if changed {
		b.notifyLocked()
	}
}

// Remove a mesh that was deleted. That there is none is no error.
func (b *Board) Remove(meshName string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.meshes[meshName]; !ok {
		return
	}
	delete(b.meshes, meshName)
	b.notifyLocked()
}

func (b *Board) notifyLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// bundles that are published, by mesh, and a channel that the next change closes. The
// messages are shared: they are never changed.
func (b *Board) bundles() ([]*identityv1.Bundle, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]*identityv1.Bundle, 0, len(b.meshes))
	for _, m := range b.meshes {
		out = append(out, m)
	}
	slices.SortFunc(out, func(x, y *identityv1.Bundle) int { return strings.Compare(x.Mesh, y.Mesh) })
	return out, b.changed
}

// Changed returns a channel that is closed when something else is published.
func (b *Board) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// Trust is what this control plane itself trusts: what it has published.
func (b *Board) Trust() (*mesh.Trust, error) {
	published, _ := b.bundles()
	bundles := make([]mesh.Bundle, 0, len(published))
	for _, p := range published {
		domain, err := mesh.ParseDomain(p.TrustDomain)
		if err != nil {
			return nil, err
		}
		bundle := mesh.Bundle{Mesh: p.Mesh, Domain: domain, ExportedTo: p.ExportedTo}
		for _, der := range p.Roots {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				return nil, err
			}
			bundle.Roots = append(bundle.Roots, c)
		}
		bundles = append(bundles, bundle)
	}
	return mesh.NewTrust(bundles...)
}

// Peers of a rotation: the agents of a mesh, as this instance sees them. An agent that
// is connected to another instance has to be taken from that one's.
func (b *Board) Peers(meshName string) []rotation.Peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]rotation.Peer, 0, len(b.nodes))
	for name, n := range b.nodes {
		// Every agent trusts every mesh, whether it has certificates of it or not.
		p := rotation.Peer{Name: "node/" + name, Connected: n.session != nil}
		if h := n.meshes[meshName]; h != nil {
			p.Acked, p.HoldsUntil = h.acked, h.until
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(x, y rotation.Peer) int { return strings.Compare(x.Name, y.Name) })
	return out
}

// holds notes a certificate. What is noted is never shortened: a record may be late.
func (b *Board) holds(meshName, nodeName string, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.nodeLocked(nodeName).in(meshName)
	if until.After(h.until) {
		h.until = until
	}
}

func (b *Board) nodeLocked(name string) *node {
	n := b.nodes[name]
	if n == nil {
		n = &node{meshes: map[string]*held{}}
		b.nodes[name] = n
	}
	return n
}

func (n *node) in(meshName string) *held {
	h := n.meshes[meshName]
	if h == nil {
		h = &held{}
		n.meshes[meshName] = h
	}
	return h
}

// Forget a node that was deleted. Its certificates may be valid still, so this is for
// nodes whose traffic does not count any more.
func (b *Board) Forget(nodeName string) {
	b.mu.Lock()
	if n := b.nodes[nodeName]; n != nil && n.session != nil {
		close(n.session.replaced)
	}
	delete(b.nodes, nodeName)
	b.mu.Unlock()
	b.onAck()
}

// session is the stream of an agent.
type session struct {
	board    *Board
	node     string
	replaced chan struct{} // closed when the stream has to end
}

// connect begins a session. It ends an older one of the same node.
func (b *Board) connect(nodeName string) *session {
	s := &session{board: b, node: nodeName, replaced: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.nodeLocked(nodeName)
	if n.session != nil {
		close(n.session.replaced)
	}
	n.session = s
	return s
}

// acknowledge a generation. It counts only if it is one that was published: an agent
// that was of another control plane has higher numbers.
func (s *session) acknowledge(meshName string, generation uint64, holdsUntil int64) {
	b := s.board
	b.mu.Lock()
	n, m := b.nodes[s.node], b.meshes[meshName]
	if n == nil || n.session != s || m == nil || generation > m.Generation {
		b.mu.Unlock()
		return
	}
	h := n.in(meshName)
	h.acked = generation
	// No certificate holds longer than one that is issued now: an agent cannot keep a
	// rotation from its end for good.
	until := time.Unix(min(holdsUntil, time.Now().Add(b.lives[meshName]).Unix()), 0)
	if holdsUntil > 0 && until.After(h.until) {
		h.until = until
	}
	b.mu.Unlock()
	b.onAck()
}

func (s *session) close() {
	b := s.board
	b.mu.Lock()
	if n := b.nodes[s.node]; n != nil && n.session == s {
		n.session = nil
	}
	b.mu.Unlock()
	b.onAck()
}
