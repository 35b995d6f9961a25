package access

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// errRanOut ends what was begun with a credential that has run out.
var errRanOut = errors.New("the certificate or token has run out")

// Sessions are the requests and connections that are open, each with the
// credential that it was begun with. One ends when its credential is withdrawn or
// runs out. Safe for concurrent use.
type Sessions struct {
	revocations *identity.Revocations
	log         *slog.Logger

	mu   sync.Mutex
	open map[*session]struct{}

	// nameless are the connections (*sessionConn) whose clients gave no certificate, by their address.
	nameless sync.Map
}

type session struct {
	subject identity.Subject
	end     func(reason error)
	timer   *time.Timer
	once    sync.Once
}

// NewSessions ends what revocations withdraw, while Run runs.
func NewSessions(revocations *identity.Revocations, log *slog.Logger) *Sessions {
	return &Sessions{revocations: revocations, log: log, open: map[*session]struct{}{}}
}

// Open registers a session. end is called at most once, from another goroutine,
// when the credential is withdrawn or at notAfter (zero: it does not expire); it
// must not block. The caller calls closed when the session is over. An error means
// that the credential is already withdrawn; then nothing is registered.
func (s *Sessions) Open(
	ctx context.Context,
	subject identity.Subject,
	notAfter time.Time,
	end func(reason error),
) (closed func(), err error) {
	one := &session{subject: subject, end: end}
	s.mu.Lock()
	s.open[one] = struct{}{}
	if !notAfter.IsZero() {
		one.timer = time.AfterFunc(time.Until(notAfter), func() { s.finish(one, errRanOut) })
	}
	s.mu.Unlock()
	closed = func() { s.remove(one) }
	// After it is registered: a revocation in between is either seen here or ends it.
	if err := s.revocations.Check(ctx, subject); err != nil {
		closed()
		return nil, err
	}
	return closed, nil
}

func (s *Sessions) remove(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, one)
	if one.timer != nil {
		one.timer.Stop()
	}
}

func (s *Sessions) finish(one *session, reason error) {
	one.once.Do(func() {
		s.log.Info("ended, as its credential does not hold any more", "user", one.subject.User, "token", one.subject.TokenID, "reason", reason)
		one.end(reason)
	})
}

// Run ends sessions whose credential is withdrawn, until ctx ends; then it
// returns nil.
func (s *Sessions) Run(ctx context.Context) error {
	for {
		changed := s.revocations.Changed()
		s.mu.Lock()
		open := make([]*session, 0, len(s.open))
		for one := range s.open {
			open = append(open, one)
		}
		s.mu.Unlock()
		for _, one := range open {
			err := s.revocations.Check(ctx, one.subject)
			if errors.Is(err, identity.ErrRevoked) || errors.Is(err, identity.ErrNodeDeleted) {
				s.finish(one, err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// holderKey is where the context of a request has its holder.
type holderKey struct{}

// holder ties a request to the credential that the Authenticator finds in it. A server
// may answer for a handler that takes too long (http.TimeoutHandler, and the API
// server's), so the Authenticator may still run then.
type holder struct {
	sessions *Sessions
	cancel   context.CancelCauseFunc

	mu sync.Mutex
	// closed is nil until the request was recognised.
	closed func()
	// answered: the handler that Guard goes around has returned.
	answered bool
}

// release what bind opened, and let it open nothing more.
func (h *holder) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered = true
	if h.closed != nil {
		h.closed()
	}
}

// Guard ends requests whose credential is withdrawn or runs out while they are
// served. It goes around the whole handler of a server whose Authenticator
// recognises the requests.
func (s *Sessions) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancelCause(r.Context())
		h := &holder{sessions: s, cancel: cancel}
		defer h.release()
		defer cancel(nil) // first: it ends a check that release would wait for
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, holderKey{}, h)))
	})
}

// bind ties the request of ctx, if it is guarded, to its credential. What is
// authenticated later in the same request (a token to be reviewed) changes nothing.
func bind(ctx context.Context, subject identity.Subject, notAfter time.Time) error {
	h, _ := ctx.Value(holderKey{}).(*holder)
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed != nil || h.answered { // once it is answered, ctx has ended
		return nil
	}
	closed, err := h.sessions.Open(ctx, subject, notAfter, h.cancel)
	h.closed = closed
	return err
}
