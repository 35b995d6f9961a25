package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/wallclock"
)

const (
	// retryFirst and retryMax bound the pause after a renewal that failed. There
	// are 8 hours for it, and the server may have many nodes to answer.
	retryFirst = 10 * time.Second
	retryMax   = 5 * time.Minute
	// retryExpired bounds it once the certificate ran out and the server did not
	// answer: until the renewal the machine is cut off.
	retryExpired = 20 * time.Second
	// tokenCheck is how often a new token is checked for in such a pause.
	tokenCheck = 5 * time.Second
	// clockCheck bounds how long a renewal can be late because the machine slept:
	// timers stand still meanwhile.
	clockCheck = time.Minute
)

// RenewerConfig is what a Renewer works with. Dir, Server and Log are required.
type RenewerConfig struct {
	// Dir keeps the credentials.
	Dir string
	// Server (HOST:PORT) that issues certificates.
	Server string
	// Others are further addresses of the same control plane, which are tried in turn while
	// Server does not answer. Nil: there are none. It must not block.
	Others func() []string
	// Accept checks the subject of the credentials; its error ends the attempt for
	// good. Nil: all are accepted.
	Accept func(Subject) error
	// Token reads the configured token; "": there is none. It is called before every
	// attempt, so that a new one is found. Nil: none is configured.
	Token func() (string, error)
	// Authorities reads the certificates of the authorities whose servers may have a token of
	// another issuer, which names none: that of a ServiceAccount. Nil: such a token is refused.
	Authorities func() (*x509.CertPool, error)
	// Exchange sends a request for a certificate (PEM) by another way than to Server, with
	// credentials of its own: the aggregated API of a cluster. It blocks until the answer, whose gRPC
	// address may lack a host, which is Server's then; ErrRefused tells that the certificate is denied.
	// All certificates come that way then, renewals too, and no token is used. Nil: there is none.
	Exchange func(ctx context.Context, request []byte) (CertificateAnswer, error)
	// NewToken makes a token when nothing else helps. Nil: nothing can.
	NewToken func(context.Context) (string, error)
	Logger   *slog.Logger
	// Now is the machine's clock. Nil: time.Now.
	Now func() time.Time
	// Dial connects to the server. Nil: the usual way.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Renewer keeps a machine's certificate fresh: a new key and certificate at two
// thirds of the life of the last, on disk before it is used. A certificate that
// has run out it renews by the token that is configured, else by proof of the
// certificate's key. TLS configurations made by it always use the newest.
type Renewer struct {
	cfg     RenewerConfig
	joiner  *joiner
	current atomic.Pointer[Credentials]
	suspect chan struct{}

	mu sync.Mutex
	// missing is why there are no credentials; nil: there are.
	missing error
	// failure of the last attempt, and since when attempts fail.
	failure error
	failing time.Time
	// refused is the ID of a token that the server does not take.
	refused string

	// exchange is the request to the server; tests replace it.
	exchange func(ctx context.Context, request []byte) (CertificateAnswer, error)
}

// NewRenewer starts from what an earlier Renewer left in the directory, whatever
// its state. It does no I/O but reading that file. Join comes next, then Run.
func NewRenewer(cfg RenewerConfig) *Renewer {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	r := &Renewer{cfg: cfg, suspect: make(chan struct{}, 1)}
	r.joiner = &joiner{server: cfg.Server, dir: cfg.Dir, others: cfg.Others, accept: cfg.Accept, now: cfg.Now, dial: cfg.Dial}
	r.exchange = func(ctx context.Context, request []byte) (CertificateAnswer, error) {
		return r.joiner.anywhere(ctx, "", request, r.TLSConfig)
	}
	c, err := LoadCredentials(cfg.Dir)
	if err == nil {
		err = r.usable(c)
	}
	if err == nil {
		r.current.Store(c)
	}
	if cfg.Exchange != nil && errors.Is(err, ErrNotJoined) {
		err = ErrNotJoined // a token is not what it needs
	}
	r.missing = err
	return r
}

// usable returns an error unless credentials are for this machine and server.
func (r *Renewer) usable(c *Credentials) error {
	var err error
	if r.cfg.Accept != nil {
		err = r.cfg.Accept(c.Subject)
	}
	if address, _, bad := serverAddress(r.cfg.Server); err == nil && bad == nil && c.Server != address && !r.isOtherAddress(c.Server) {
		err = fmt.Errorf("they were issued by %s, not by %s", c.Server, address)
	}
	if err != nil {
		return &OtherCredentialsError{Dir: r.cfg.Dir, Err: err}
	}
	return nil
}

// isOtherAddress reports whether an address is one of RenewerConfig.Others.
func (r *Renewer) isOtherAddress(server string) bool {
	return r.cfg.Others != nil && slices.ContainsFunc(r.cfg.Others(), func(other string) bool {
		address, _, err := serverAddress(other)
		return err == nil && address == server
	})
}

// OtherCredentialsError: the directory holds credentials of another machine or for
// another server.
type OtherCredentialsError struct {
	Dir string
	Err error
}

func (e *OtherCredentialsError) Error() string {
	return fmt.Sprintf("%s holds other credentials: %v", e.Dir, e.Err)
}
func (e *OtherCredentialsError) Unwrap() error { return e.Err }

// Credentials in use now; nil: there are none.
func (r *Renewer) Credentials() *Credentials { return r.current.Load() }

// errNoCredentials ends handshakes of a machine that has none.
var errNoCredentials = errors.New("this machine has no credentials")

// TLSConfig for connections to a host (name or IP address) of the control plane:
// it shows the newest certificate and trusts the newest authorities at every
// handshake. The caller owns it, and must not use it for another host: the
// certificate is checked against this one.
func (r *Renewer) TLSConfig(host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Time: r.cfg.Now,
		ServerName: host,
		// VerifyConnection does the same check, against a pool that changes.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			c := r.Credentials()
			if c == nil {
				return errNoCredentials
			}
			return verifyChain(cs, c.trusted, host, r.cfg.Now())
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c := r.Credentials()
			if c == nil {
				return nil, errNoCredentials
			}
			return &c.certs, nil // also after its end: the server judges it by its own clock
		},
	}
}

// Joined is what Join did.
type Joined struct {
	// ByToken: a token was spent.
	ByToken bool
	// Elsewhere: the credentials before were not of this authority, or there were
	// none. What else is kept of a control plane is out of date.
	Elsewhere bool
}

// Join provides credentials before the machine starts to serve: stored ones are used,
// expired or not, unless the configured token is another than the one they descend
// from. It blocks for one request at most. An error means that there are no
// credentials yet; Run keeps trying. *SubjectError and *OtherCredentialsError need an
// administrator.
func (r *Renewer) Join(ctx context.Context) (Joined, error) {
	before := r.Credentials()
	if r.cfg.Exchange != nil {
		return r.joinByExchange(ctx, before)
	}
	token, given, err := r.token()
	if err != nil && before == nil {
		return Joined{}, err
	}
	if err != nil {
		r.cfg.Logger.Warn("the token is not used; the stored credentials hold", "error", err)
	}
	switch {
	case given && r.isOther(before, token):
		err = r.byToken(ctx, token)
	case before == nil && r.cfg.NewToken != nil:
		err = r.byNewToken(ctx)
	case before == nil:
		return Joined{}, r.Problem()
	default:
		r.warnOfAge(before)
		return Joined{}, nil
	}
	var wrong *SubjectError
	if err != nil && (before == nil || errors.As(err, &wrong)) {
		return Joined{}, err
	}
	if err != nil {
		r.cfg.Logger.Warn("the token was not taken; the stored credentials hold", "token", token.ID, "error", err)
		r.warnOfAge(before)
		return Joined{}, nil
	}
	return Joined{ByToken: true, Elsewhere: before == nil || !before.trustsAny(r.Credentials())}, nil
}

// joinByExchange is Join where certificates come by RenewerConfig.Exchange.
func (r *Renewer) joinByExchange(ctx context.Context, before *Credentials) (Joined, error) {
	if before != nil {
		r.warnOfAge(before)
		return Joined{}, nil
	}
	if err := r.byExchange(ctx); err != nil {
		return Joined{}, err
	}
	return Joined{Elsewhere: true}, nil
}

func (c *Credentials) trustsAny(other *Credentials) bool {
	for _, pin := range other.pins {
		if c.Trusts(pin) {
			return true
		}
	}
	return false
}

// Problem is why there are no credentials; nil: there are.
func (r *Renewer) Problem() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.missing
}

func (r *Renewer) warnOfAge(c *Credentials) {
	switch now := r.cfg.Now(); {
	case now.After(c.NotAfter):
		r.cfg.Logger.Warn("the certificate has run out; it is renewed as soon as the control plane answers", "user", c.Subject.User,
			"since", c.NotAfter)
	case now.Before(c.NotBefore):
		r.cfg.Logger.Warn("this machine's clock is behind: the certificate begins later", "user", c.Subject.User, "clock", now,
			"validFrom", c.NotBefore)
	}
}

// token reads the configured token. given is false if there is none.
func (r *Renewer) token() (t Token, given bool, err error) {
	if r.cfg.Token == nil || r.cfg.Exchange != nil {
		return Token{}, false, nil
	}
	text, err := r.cfg.Token()
	if err != nil || text == "" {
		return Token{}, false, err
	}
	if text = strings.TrimSpace(text); isAccountToken(text) {
		t, err = r.accountToken(text)
	} else {
		t, err = ParseToken(text)
	}
	if err != nil {
		return Token{}, false, err
	}
	return t, true, nil
}

func (r *Renewer) accountToken(text string) (Token, error) {
	if r.cfg.Authorities == nil {
		return Token{}, errors.New("the token is one of a ServiceAccount, which does not tell who may have it: " +
			"give the certificate of the control plane's authority with --server-ca-file")
	}
	authorities, err := r.cfg.Authorities()
	if err != nil {
		return Token{}, err
	}
	return accountToken(text, authorities), nil
}

// isOther reports whether the credentials do not descend from a token, and the token
// was not refused before. A ServiceAccount's token is renewed all the time, and stands for
// the same node.
func (r *Renewer) isOther(c *Credentials, t Token) bool {
	if t.account != nil {
		return c == nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return t.ID != r.refused && (c == nil || t.ID != c.Subject.TokenID || !c.Trusts(t.Pin))
}

// Suspect reports that the server no longer accepts the certificate. Run then renews
// it at once, unless it has just tried. It does not block.
func (r *Renewer) Suspect() {
	select {
	case r.suspect <- struct{}{}:
	default:
	}
}

// Run renews until ctx ends, then returns nil. A renewal that fails is logged and
// retried; Run never gives up, since the server may come back. It returns an error
// only if the subject of the configured token is not accepted.
func (r *Renewer) Run(ctx context.Context) error {
	// Up to a fifth less, so that nodes do not come back all at once.
	retry := backoff.Backoff{Policy: backoff.Policy{First: retryFirst, Last: retryMax, Jitter: 0.2}}
	at := r.renewAt()
	for {
		if !r.waitUntil(ctx, at) {
			return nil
		}
		err := r.renew(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var wrong *SubjectError
		if errors.As(err, &wrong) {
			return err
		}
		r.note(err)
		if err == nil {
			retry.Reset()
			at = r.renewAt()
			// An authority that is about to expire issues certificates that are nearly
			// expired, and with a clock that is ahead all of them appear so.
			if soonest := r.cfg.Now().Add(retryMax); at.Before(soonest) {
				at = soonest
			}
			r.rest(ctx, retryFirst)
			continue
		}
		pause := retry.Next()
		if !errors.Is(err, ErrRefused) && r.cfg.Now().After(r.end()) {
			pause = min(pause, backoff.Policy{First: retryExpired, Last: retryExpired, Jitter: 0.2}.After(1))
		}
		r.cfg.Logger.Warn("certificate was not renewed; will try again", "error", err, "retryIn", pause, "runsOut", r.end())
		r.rest(ctx, pause)
		at = r.cfg.Now()
	}
}

// rest lets a pause go by, or ends it when a new token is found. What is suspected
// meanwhile is about the certificate that was just tried.
func (r *Renewer) rest(ctx context.Context, pause time.Duration) {
	ticker := time.NewTicker(tokenCheck)
	defer ticker.Stop()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	first, _, _ := r.token()
	for waiting := true; waiting; {
		select {
		case <-ticker.C:
			t, given, err := r.token()
			waiting = err != nil || !given || t.ID == first.ID
		case <-timer.C:
			waiting = false
		case <-ctx.Done():
			return
		}
	}
	select {
	case <-r.suspect:
	default:
	}
}

// note keeps what Status shows.
func (r *Renewer) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && r.failure == nil {
		r.failing = r.cfg.Now()
	}
	r.failure = err
}

// end of the certificate; zero: there is none.
func (r *Renewer) end() time.Time {
	if c := r.Credentials(); c != nil {
		return c.NotAfter
	}
	return time.Time{}
}

// renewAt is two thirds into the certificate's life, and now if there is none or a
// token waits that it does not descend from.
func (r *Renewer) renewAt() time.Time {
	c := r.Credentials()
	if c == nil {
		return r.cfg.Now()
	}
	if t, given, err := r.token(); err == nil && given && r.isOther(c, t) {
		return r.cfg.Now()
	}
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// renew gets a new certificate by what there is, in this order: a token that is new
// or, for a certificate that has run out, the one that is configured; the
// certificate; the configured token; a token made for this.
func (r *Renewer) renew(ctx context.Context) error {
	if r.cfg.Exchange != nil {
		return r.byExchange(ctx)
	}
	c := r.Credentials()
	token, given, tokenErr := r.token()
	given = given && !r.wasRefused(token)
	var failures []error
	if tokenErr != nil {
		failures = append(failures, tokenErr)
	}
	try := func(attempt func() error) (done bool, err error) {
		if err = attempt(); err == nil {
			return true, nil
		}
		failures = append(failures, err)
		var wrong *SubjectError
		return ctx.Err() != nil || errors.As(err, &wrong), err
	}
	if given && (r.isOther(c, token) || r.cfg.Now().After(c.NotAfter)) {
		given = false // it is tried once
		if done, err := try(func() error { return r.byToken(ctx, token) }); done {
			return err
		}
	}
	if c != nil {
		done, err := try(func() error { return r.byCertificate(ctx, c) })
		if done {
			return err
		}
		// Without an answer, a token is of no use either; unless the authority of the server is
		// another one now, and the token comes with it.
		if !errors.Is(err, ErrRefused) && (!given || token.account == nil) {
			return errors.Join(failures...)
		}
	}
	if given {
		if done, err := try(func() error { return r.byToken(ctx, token) }); done {
			return err
		}
	}
	if r.cfg.NewToken != nil {
		if done, err := try(func() error { return r.byNewToken(ctx) }); done {
			return err
		}
	}
	if len(failures) == 0 {
		failures = append(failures, r.Problem())
	}
	return errors.Join(failures...)
}

func (r *Renewer) wasRefused(t Token) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused == t.ID
}

func (r *Renewer) byCertificate(ctx context.Context, old *Credentials) error {
	key, request, err := newRequest()
	if err != nil {
		return fmt.Errorf("renew certificate of %s: make a key: %w", old.Subject.User, err)
	}
	answer, err := r.exchange(ctx, request)
	if err != nil {
		return fmt.Errorf("renew certificate of %s: %w", old.Subject.User, err)
	}
	c, err := answered(old.Server, r.cfg.Dir, key, answer, r.cfg.Accept)
	if err != nil {
		return fmt.Errorf("renew certificate of %s: %w", old.Subject.User, err)
	}
	r.use(c)
	r.cfg.Logger.Info("certificate renewed", "user", c.Subject.User, "runsOut", c.NotAfter)
	return nil
}

// byExchange gets a certificate by RenewerConfig.Exchange.
func (r *Renewer) byExchange(ctx context.Context) error {
	const what = "get a certificate by the API server of the cluster"
	address, host, err := serverAddress(r.cfg.Server)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	key, request, err := newRequest()
	if err != nil {
		return fmt.Errorf("%s: make a key: %w", what, err)
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	answer, err := r.cfg.Exchange(ctx, request)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	answer.GRPCAddress = atHost(answer.GRPCAddress, host)
	c, err := answered(address, r.cfg.Dir, key, answer, r.cfg.Accept)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.use(c)
	r.cfg.Logger.Info("certificate issued by the API server of the cluster", "user", c.Subject.User, "runsOut", c.NotAfter)
	return nil
}

func (r *Renewer) byToken(ctx context.Context, t Token) error {
	c, err := r.joiner.join(ctx, t)
	if err != nil {
		if errors.Is(err, ErrRefused) && t.account == nil {
			r.mu.Lock()
			r.refused = t.ID
			r.mu.Unlock()
		}
		return fmt.Errorf("by token %s: %w", t.ID, err)
	}
	r.use(c)
	r.cfg.Logger.Info("joined by a token", "user", c.Subject.User, "token", t.ID, "runsOut", c.NotAfter)
	return nil
}

func (r *Renewer) byNewToken(ctx context.Context) error {
	text, err := r.cfg.NewToken(ctx)
	if err != nil {
		return err
	}
	t, err := ParseToken(text)
	if err != nil {
		return err
	}
	return r.byToken(ctx, t)
}

func (r *Renewer) use(c *Credentials) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = nil
	r.current.Store(c)
}

// waitUntil waits by the wall clock, or until the certificate is suspect; false:
// ctx ended first.
func (r *Renewer) waitUntil(ctx context.Context, at time.Time) bool {
	return wallclock.Wait(ctx, at, clockCheck, r.cfg.Now, r.suspect) != wallclock.Ended
}
