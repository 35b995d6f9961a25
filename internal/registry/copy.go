package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// KeyMirroredFrom in the metadata of an instance says that it is a copy: its client registered it in another
// registry, which the value names. A copy is never copied again, and gives way to the instance itself. The key
// is a name of XML, as clients of Eureka write metadata as elements.
const KeyMirroredFrom = "proxima.mirrored-from"

// MirroredFrom is the registry that an instance is a copy from; empty: it is none.
func (in *Instance) MirroredFrom() string { return in.Metadata[KeyMirroredFrom] }

// ErrOriginal: the instance itself is registered, so a copy of it is not written. It is written in its place
// when the instance goes, if the session that offered the copy is still there.
var ErrOriginal = errors.New("the instance itself is registered here")

// isCopy reports whether a Dataplane is a copy.
func isCopy(d *meshv1alpha1.Dataplane) bool {
	if !strings.Contains(d.Annotations[AnnotationInstance], KeyMirroredFrom) {
		return false // without a look at the record: it is asked with every write
	}
	r, err := parseRecord(d)
	return err == nil && r.Metadata[KeyMirroredFrom] != ""
}

// offer of a copy, by a session that has registered it. The last one that is made counts.
type offer struct {
	session *Session
	want    *meshv1alpha1.Dataplane
}

// noteOffer of a session, under the lock of its key. One that comes too late is none.
func (s *Session) noteOffer(key resource.Key, want *meshv1alpha1.Dataplane) error {
	r := s.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return ErrEnded
	}
	r.offers[key] = append(slices.DeleteFunc(r.offers[key], func(o offer) bool { return o.session == s }), offer{session: s, want: want})
	if s.offered == nil {
		s.offered = map[resource.Key]struct{}{}
	}
	s.offered[key] = struct{}{}
	return nil
}

// dropOffer of a session; false: it has none.
func (s *Session) dropOffer(key resource.Key) bool {
	r := s.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	s.mu.Lock()
	_, ok := s.offered[key]
	delete(s.offered, key)
	s.mu.Unlock()
	r.dropOfferLocked(key, s)
	return ok
}

func (r *Registrar) dropOfferLocked(key resource.Key, s *Session) {
	if left := slices.DeleteFunc(r.offers[key], func(o offer) bool { return o.session == s }); len(left) > 0 {
		r.offers[key] = left
	} else {
		delete(r.offers, key)
	}
}

// Withdraw a copy that the session has registered, whether it is written or kept back; had is false if it is none. The instance
// itself stays, as does the copy while another session offers it.
func (s *Session) Withdraw(ctx context.Context, key resource.Key) (had bool, err error) {
	if !s.dropOffer(key) {
		return false, nil
	}
	s.drop(key)
	r := s.registrar
	defer r.lock(key)()
	have, err := r.get(ctx, key) // the tables may still show the copy where the instance itself is now
	if err != nil {
		return true, fmt.Errorf("remove instance %s: %w", key, err)
	}
	if have == nil || !isCopy(have) {
		return true, nil
	}
	return true, r.replaceOrRemove(ctx, have)
}

// replaceOrRemove deletes an instance, under the lock of its key, unless a session offers a copy: that takes its place
// in one write, so that no client sees the service without it.
func (r *Registrar) replaceOrRemove(ctx context.Context, d *meshv1alpha1.Dataplane) error {
	key := resource.KeyOf(d)
	for {
		r.mu.Lock()
		list := r.offers[key]
		r.mu.Unlock()
		if len(list) == 0 {
			return r.remove(ctx, d)
		}
		next := list[len(list)-1]
		if err := r.store(ctx, key, next.want, User{Admin: true}, true); err != nil {
			return fmt.Errorf("put a copy in place of instance %s: %w", key, err)
		}
		if err := next.session.claim(key); !errors.Is(err, ErrEnded) {
			return err
		}
		// That session ended meanwhile, and takes its offer away.
		next.session.dropOffer(key)
	}
}
