package authorities

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
)

// secrets are the GlobalSecrets of a control plane. Safe for concurrent use.
type secrets struct {
	mu      sync.Mutex
	byName  map[string]*v1alpha1.GlobalSecret
	changed chan struct{} // closed by the next change
}

func newSecrets() *secrets {
	return &secrets{byName: map[string]*v1alpha1.GlobalSecret{}, changed: make(chan struct{})}
}

func (s *secrets) set(all ...*v1alpha1.GlobalSecret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range all {
		s.byName[one.Name] = one
	}
	s.notifyLocked()
}

func (s *secrets) replace(all []*v1alpha1.GlobalSecret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.byName)
	for _, one := range all {
		s.byName[one.Name] = one
	}
	s.notifyLocked()
}

func (s *secrets) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, name)
	s.notifyLocked()
}

func (s *secrets) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// value of a DataSource; nil: the source is empty.
func (s *secrets) value(what string, d v1alpha1.DataSource) ([]byte, error) {
	if d.SecretRef == nil {
		return d.Inline, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	secret := s.byName[d.SecretRef.Name]
	if secret == nil {
		return nil, fmt.Errorf("%s: there is no GlobalSecret %s", what, d.SecretRef.Name)
	}
	key := cmp.Or(d.SecretRef.Key, v1alpha1.DefaultSecretKey)
	data, ok := secret.Data[key]
	if !ok {
		return nil, fmt.Errorf("%s: GlobalSecret %s has no key %s", what, d.SecretRef.Name, key)
	}
	return data, nil
}

// secretSource is the material of a provided authority from data sources.
type secretSource struct {
	secrets  *secrets
	provided v1alpha1.MeshProvidedAuthority
}

// Load implements authority.Source.
func (s secretSource) Load(context.Context) (m authority.Material, err error) {
	if m.Certificate, err = s.secrets.value("certificate", s.provided.Certificate); err != nil {
		return authority.Material{}, err
	}
	if m.Key, err = s.secrets.value("key", s.provided.Key); err != nil {
		return authority.Material{}, err
	}
	if r := s.provided.Roots; r != nil {
		if m.Roots, err = s.secrets.value("roots", *r); err != nil {
			return authority.Material{}, err
		}
	}
	return m, nil
}

// Changed implements authority.Source.
func (s secretSource) Changed() <-chan struct{} {
	s.secrets.mu.Lock()
	defer s.secrets.mu.Unlock()
	return s.secrets.changed
}
