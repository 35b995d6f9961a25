package workload

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// Member is a workload that runs on the node.
type Member struct {
	// Namespace and Name of the Dataplane.
	Namespace, Name string
	// Mesh that it is in.
	Mesh string
	// ServiceAccount in its namespace; empty: the default one.
	ServiceAccount string
}

func (m Member) subject() Subject { return Subject{Namespace: m.Namespace, Name: m.Name} }

// SetMembers replaces the workloads of the node: all that there are. From then on the
// Manager has certificates for them, and for the node in each of their meshes, and for no
// other subject. Until the first call it goes on with those whose certificates are on
// disk. It does not block.
func (m *Manager) SetMembers(members []Member) {
	m.mu.Lock()
	m.members = make(map[Subject]Member, len(members))
	for _, one := range members {
		m.members[one.subject()] = one
	}
	m.tellMembersLocked()
	m.mu.Unlock()
}

// tellMembersLocked tells who waits for a member, or for its mesh.
func (m *Manager) tellMembersLocked() {
	close(m.membersChanged)
	m.membersChanged = make(chan struct{})
}

// HasMember reports whether a workload is one of the node's, and whether its mesh issues
// certificates. changed is closed when either may be different, or when Current knows the
// workload.
func (m *Manager) HasMember(namespace, name string) (member, issuing bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one, member := m.members[Subject{Namespace: namespace, Name: name}]
	b := m.bundles[one.Mesh]
	return member, b != nil && b.Issuer != "", m.membersChanged
}

// followMembers keeps the subjects those of the members until ctx ends.
func (m *Manager) followMembers(ctx context.Context) {
	for {
		m.mu.Lock()
		trust, members := m.changed, m.membersChanged
		m.mu.Unlock()
		m.syncSubjects()
		select {
		case <-ctx.Done():
			return
		case <-trust:
			// Who waits for a workload's mesh is told.
			m.mu.Lock()
			m.tellMembersLocked()
			m.mu.Unlock()
		case <-members:
		}
	}
}

// syncSubjects adds what the members need, and removes what none of them does.
func (m *Manager) syncSubjects() {
	m.mu.Lock()
	if m.members == nil {
		m.mu.Unlock()
		return
	}
	want, keep := m.wantedLocked()
	added := false
	for s := range want {
		added = added || m.entries[s] == nil
	}
	var gone []Subject
	for s := range m.entries {
		if _, ok := want[s]; !ok && !keep[s] {
			gone = append(gone, s)
		}
	}
	m.mu.Unlock()
	for _, s := range gone {
		m.Remove(s)
	}
	for s, id := range want {
		m.Add(s, id)
	}
	if added {
		// Who saw the member before its subject was there waits for that.
		m.mu.Lock()
		m.tellMembersLocked()
		m.mu.Unlock()
	}
	if err := m.Prune(); err != nil {
		m.config.Logger.Error("certificates that are not needed any more stay on disk", "error", err)
	}
}

// wantedLocked are the subjects of the members with their IDs. keep are those whose mesh
// is not known here yet: what is on disk of them stays.
func (m *Manager) wantedLocked() (want map[Subject]mesh.ID, keep map[Subject]bool) {
	want, keep = map[Subject]mesh.ID{}, map[Subject]bool{}
	for s, one := range m.members {
		node := Subject{Mesh: one.Mesh}
		b, ok := m.trust.Bundle(one.Mesh)
		if !ok {
			keep[s], keep[node] = true, true
			continue
		}
		id, err := mesh.Workload(b.Domain, one.Namespace, one.ServiceAccount)
		if err != nil {
			m.config.Logger.Error("a workload has no identity", "workload", s.String(), "error", err)
			continue
		}
		want[s] = id
		if m.config.Node == "" || m.zone == "" {
			keep[node] = true
			continue
		}
		if id, err = mesh.Node(b.Domain, m.zone, m.config.Node); err != nil {
			m.config.Logger.Error("this node has no identity", "mesh", one.Mesh, "error", err)
			continue
		}
		want[node] = id
	}
	m.wantGatewayLocked(want, keep)
	return want, keep
}

// wantGatewayLocked adds the certificates of a gateway: in each mesh, as it serves all.
func (m *Manager) wantGatewayLocked(want map[Subject]mesh.ID, keep map[Subject]bool) {
	idOf := mesh.Ingress
	switch m.config.Gateway {
	case mesh.IngressID:
	case mesh.EgressID:
		idOf = mesh.Egress
	default:
		return
	}
	for name := range m.bundles {
		s := Subject{Mesh: name, Gateway: m.config.Gateway}
		b, ok := m.trust.Bundle(name)
		if !ok || m.zone == "" {
			keep[s] = true
			continue
		}
		id, err := idOf(b.Domain, m.zone)
		if err != nil {
			m.config.Logger.Error("this gateway has no identity", "mesh", name, "error", err)
			continue
		}
		want[s] = id
	}
}

// restore adds the subjects whose certificates are on disk: their traffic goes on before
// a control plane has answered.
func (m *Manager) restore() {
	files, err := os.ReadDir(filepath.Join(m.config.Dir, certificatesDir))
	if err != nil {
		m.config.Logger.Error("stored certificates cannot be listed", "error", err)
		return
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), suffix) {
			continue
		}
		s, id, err := storedSubject(filepath.Join(m.config.Dir, certificatesDir, f.Name()))
		if err != nil {
			m.config.Logger.Error("a stored certificate cannot be used", "file", f.Name(), "error", err)
			continue
		}
		m.Add(s, id)
	}
}

// storedSubject reads whose certificate a file has.
func storedSubject(path string) (Subject, mesh.ID, error) {
	data, err := readSecret(path)
	if err != nil {
		return Subject{}, mesh.ID{}, err
	}
	var stored storedCertificate
	if err := json.Unmarshal(data, &stored); err != nil {
		return Subject{}, mesh.ID{}, errors.New("damaged")
	}
	s := stored.subject()
	if stored.Version != diskVersion || stored.ID.IsZero() || fileOf(s) != filepath.Base(path) {
		return Subject{}, mesh.ID{}, errors.New("not a certificate of this version")
	}
	return s, stored.ID, nil
}
