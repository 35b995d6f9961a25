package registry

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Session is a client's promise to say that it lives. What it registers as ephemeral ends with
// it. Safe for concurrent use.
type Session struct {
	registrar *Registrar
	protocol  Protocol
	ttl       time.Duration

	mu    sync.Mutex
	timer *time.Timer // nil: it lives until Close
	over  bool
	done  chan struct{}
	keys  map[resource.Key]struct{}
	// offered are the copies that it has registered, whether they are written or not.
	offered map[resource.Key]struct{}
}

// Open begins a session. It ends ttl after its last renewal; 0: with Close alone.
func (r *Registrar) Open(protocol Protocol, ttl time.Duration) *Session {
	s := &Session{registrar: r, protocol: protocol, ttl: ttl, done: make(chan struct{}), keys: map[resource.Key]struct{}{}}
	if ttl > 0 {
		s.timer = time.AfterFunc(ttl, s.end)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[protocol]++
	return s
}

// Sessions is the number of those that are open.
func (r *Registrar) Sessions(protocol Protocol) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[protocol]
}

// Renew says that the client lives. It returns ErrEnded if it is too late.
func (s *Session) Renew() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return ErrEnded
	}
	if s.timer != nil {
		s.timer.Reset(s.ttl)
	}
	return nil
}

func (s *Session) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Close ends the session after a grace, in which another session of the client may register its
// instances again, so that they stay; 0: at once. It does not block. Closing again is no error.
func (s *Session) Close(grace time.Duration) {
	if grace <= 0 {
		s.end()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(grace, s.end)
		return
	}
	s.ttl = grace
	s.timer.Reset(grace)
}

// end of the session: its instances are deleted, but for those that another one has taken over.
func (s *Session) end() {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	s.over = true
	if s.timer != nil {
		s.timer.Stop()
	}
	keys, offered := s.keys, s.offered
	s.keys, s.offered = nil, nil
	close(s.done)
	s.mu.Unlock()

	r := s.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[s.protocol]--
	for key := range offered {
		r.dropOfferLocked(key, s)
	}
	for key := range keys {
		if r.claims[key] == s {
			delete(r.claims, key)
			r.endLocked(key)
		}
	}
}

// Register writes an instance as a user, or changes what it was registered as. An ephemeral one lives as
// long as the session, and is taken over from another session. It returns when it is durable;
// what is registered already is not written again.
//
// A copy (KeyMirroredFrom) gives way to the instance itself: where that is registered, nothing is written, and the error is
// ErrOriginal. The copy takes the place of the instance when that goes before the session does.
//
// Errors: ErrEnded, ErrOriginal, *ForbiddenError, those of resource.Client, and what the instance lacks.
func (s *Session) Register(ctx context.Context, in *Instance, user User) error {
	if in.Ephemeral {
		return s.registrar.put(ctx, in, user, s)
	}
	return s.registrar.put(ctx, in, user, nil)
}

// Deregister deletes an instance as a user, whose session it need not be. That it is not there is
// ErrNotFound. Where the session has registered a copy, that alone is deleted, and not the instance itself.
func (s *Session) Deregister(ctx context.Context, key resource.Key, user User) error {
	if had, err := s.Withdraw(ctx, key); had {
		return err
	}
	s.drop(key)
	return s.registrar.Remove(ctx, key, user)
}

// Keys of the ephemeral instances that live by the session.
func (s *Session) Keys() []resource.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]resource.Key, 0, len(s.keys))
	for key := range s.keys {
		out = append(out, key)
	}
	return out
}

// Adopt an ephemeral instance whose client is this session's, though another instance of the control
// plane, or an earlier run of this one, has registered it. What is registered stays as it is. One that
// is not there, or lives without a session, is ErrNotFound.
func (s *Session) Adopt(ctx context.Context, key resource.Key) error {
	r := s.registrar
	defer r.lock(key)()
	have := r.lookup(key)
	for range attempts {
		if have == nil {
			var err error
			if have, err = r.get(ctx, key); err != nil {
				return fmt.Errorf("adopt instance %s: %w", key, err)
			}
		}
		switch {
		case ownerOf(have) == "":
			return ErrNotFound
		case ownerOf(have) == r.config.Owner:
			return s.claim(key)
		}
		next := have.DeepCopy()
		next.Annotations[AnnotationOwner] = r.config.Owner
		_, err := r.config.Client.Update(ctx, kind.Dataplane, next)
		if err == nil {
			return s.claim(key)
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("adopt instance %s: %w", key, err)
		}
		have = nil
	}
	return fmt.Errorf("adopt instance %s: others changed it %d times meanwhile", key, attempts)
}

// claim an instance that is written, under the lock of its key. One that comes too late is removed.
func (s *Session) claim(key resource.Key) error {
	r := s.registrar
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.claims[key] == nil {
			r.endLocked(key)
		}
		return ErrEnded
	}
	s.keys[key] = struct{}{}
	s.mu.Unlock()

	r.mu.Lock()
	before := r.claims[key]
	r.claims[key] = s
	delete(r.ended, key)
	r.mu.Unlock()
	if before != nil && before != s {
		before.forget(key)
	}
	return nil
}

// drop gives up a claim, without a deletion.
func (s *Session) drop(key resource.Key) {
	s.forget(key)
	r := s.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claims[key] == s {
		delete(r.claims, key)
	}
}

func (s *Session) forget(key resource.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, key)
}
