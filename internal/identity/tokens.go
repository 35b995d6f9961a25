package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// TokenPrefix is where the store keeps token records.
const TokenPrefix = "/proxima/tokens/"

// keepDead is how long a token stays in the list after neither it nor a
// certificate that descends from it is of use.
const keepDead = 30 * 24 * time.Hour

// ErrToken is the only error that is shown to the bearer of a token that is refused.
var ErrToken = errors.New("invalid bearer token")

// Reason why a token is not taken, for logs and metrics only.
type Reason string

// The reasons.
const (
	Malformed Reason = "malformed"
	Unknown   Reason = "unknown"
	Wrong     Reason = "wrong secret"
	Expired   Reason = "expired"
	Revoked   Reason = "revoked"
)

// TokenError is the reason behind an ErrToken. Its text is ErrToken's: the reason
// must be read explicitly, for logs.
type TokenError struct {
	ID     string // empty if the token is malformed
	Reason Reason
}

func (e *TokenError) Error() string { return ErrToken.Error() }

// Is makes it an ErrToken.
func (e *TokenError) Is(target error) bool { return target == ErrToken }

// TokenInfo is what is known of a token: all but its secret.
type TokenInfo struct {
	ID      string    `json:"id"`
	Kind    Kind      `json:"kind"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// CreatedBy is the user who made it.
	CreatedBy string `json:"createdBy,omitempty"`
	// Expires: zero for never.
	Expires time.Time `json:"expires,omitzero"`
	// Revoked: zero if it was not.
	Revoked time.Time `json:"revoked,omitzero"`
	// CertificateNotAfter is the end of the newest certificate that descends from
	// the token, and RenewableUntil the last moment at which it can be renewed. Zero:
	// there is none.
	CertificateNotAfter time.Time `json:"certificateNotAfter,omitzero"`
	RenewableUntil      time.Time `json:"renewableUntil,omitzero"`
	// Bounds of what a node or a workload registers with it.
	Bounds
}

// Subject that the token stands for.
func (t TokenInfo) Subject() (Subject, error) {
	s, err := SubjectFor(t.Kind, t.Name)
	s.TokenID, s.Bounds = t.ID, t.Bounds
	return s, err
}

type tokenRecord struct {
	TokenInfo
	// SecretSHA256: secrets are 256 random bits, so a plain hash is enough.
	SecretSHA256 []byte `json:"secretSHA256"`
}

// Tokens makes and checks tokens. All methods read the store, hold nothing in
// memory, and are safe for concurrent use by several processes.
type Tokens struct {
	store store.Store
	pin   Pin
}

// NewTokens uses a store that the caller opens and closes. pin goes into
// every new token.
func NewTokens(s store.Store, pin Pin) *Tokens { return &Tokens{store: s, pin: pin} }

// Create makes a token and keeps its hash. ttl 0: it never expires. The token is
// returned this once.
func (ts *Tokens) Create(ctx context.Context, kind Kind, name string, ttl time.Duration, by string) (Token, TokenInfo, error) {
	return ts.CreateBounded(ctx, kind, name, Bounds{}, ttl, by)
}

// CreateBounded is Create with bounds, which CheckBounds must find good.
func (ts *Tokens) CreateBounded(
	ctx context.Context,
	kind Kind,
	name string,
	bounds Bounds,
	ttl time.Duration,
	by string,
) (Token, TokenInfo, error) {
	if _, err := SubjectFor(kind, name); err != nil {
		return Token{}, TokenInfo{}, fmt.Errorf("create token: %w", err)
	}
	if err := CheckBounds(kind, bounds); err != nil {
		return Token{}, TokenInfo{}, fmt.Errorf("create token: %w", err)
	}
	if ttl < 0 || ttl > MaxTokenLife {
		return Token{}, TokenInfo{}, fmt.Errorf("create token: time to live %s is not between 0 (for ever) and %s", ttl, MaxTokenLife)
	}
	token := newToken(ts.pin)
	sum := sha256.Sum256(token.secret[:])
	r := tokenRecord{
		TokenInfo:    TokenInfo{ID: token.ID, Kind: kind, Name: name, Created: time.Now().UTC(), CreatedBy: by, Bounds: bounds},
		SecretSHA256: sum[:],
	}
	if ttl > 0 {
		r.Expires = r.Created.Add(ttl)
	}
	if err := ts.put(ctx, r, 0, r.keepFor(r.Created)); err != nil {
		return Token{}, TokenInfo{}, fmt.Errorf("create token: %w", err)
	}
	return token, r.TokenInfo, nil
}

// Check returns the subject of a token. Errors: *TokenError (which is ErrToken) if the
// token is refused, others if the store is unavailable.
func (ts *Tokens) Check(ctx context.Context, text string) (Subject, error) {
	info, err := ts.Lookup(ctx, text)
	if err != nil {
		return Subject{}, err
	}
	return info.Subject()
}

// Lookup is Check for those who need the token's record.
func (ts *Tokens) Lookup(ctx context.Context, text string) (TokenInfo, error) {
	token, err := ParseToken(text)
	if err != nil {
		return TokenInfo{}, &TokenError{Reason: Malformed}
	}
	r, _, ok, err := ts.get(ctx, token.ID)
	if err != nil {
		return TokenInfo{}, fmt.Errorf("check token %s: %w", token.ID, err)
	}
	if !ok {
		return TokenInfo{}, &TokenError{ID: token.ID, Reason: Unknown}
	}
	sum := sha256.Sum256(token.secret[:])
	// Without the secret, a client must not find out the token's state.
	if subtle.ConstantTimeCompare(sum[:], r.SecretSHA256) != 1 {
		return TokenInfo{}, &TokenError{ID: token.ID, Reason: Wrong}
	}
	if !r.Revoked.IsZero() {
		return TokenInfo{}, &TokenError{ID: token.ID, Reason: Revoked}
	}
	if !r.Expires.IsZero() && !time.Now().Before(r.Expires) {
		return TokenInfo{}, &TokenError{ID: token.ID, Reason: Expired}
	}
	return r.TokenInfo, nil
}

// ErrNoToken: there is no token of that id.
var ErrNoToken = errors.New("no such token")

// Revoke makes a token useless at once. Idempotent. Errors: ErrNoToken.
func (ts *Tokens) Revoke(ctx context.Context, id string) (TokenInfo, error) {
	for {
		r, modified, ok, err := ts.get(ctx, id)
		if err == nil && !ok {
			err = ErrNoToken
		}
		if err != nil {
			return TokenInfo{}, fmt.Errorf("revoke token %s: %w", id, err)
		}
		if !r.Revoked.IsZero() {
			return r.TokenInfo, nil
		}
		r.Revoked = time.Now().UTC()
		err = ts.put(ctx, r, modified, r.keepFor(r.Revoked))
		var conflict *store.ConflictError
		if errors.As(err, &conflict) {
			continue // it was revoked elsewhere, or has just expired
		}
		if err != nil {
			return TokenInfo{}, fmt.Errorf("revoke token %s: %w", id, err)
		}
		return r.TokenInfo, nil
	}
}

// List returns all tokens, oldest first, also those that were of use less than 30
// days ago: themselves, or by a certificate.
func (ts *Tokens) List(ctx context.Context) ([]TokenInfo, error) {
	page, err := ts.store.List(ctx, store.ListOptions{Prefix: TokenPrefix})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	out := make([]TokenInfo, 0, len(page.Records))
	for _, rec := range page.Records {
		var r tokenRecord
		if err := json.Unmarshal(rec.Value, &r); err != nil {
			return nil, fmt.Errorf("list tokens: key %s: %w", rec.Key, err)
		}
		out = append(out, r.TokenInfo)
	}
	slices.SortStableFunc(out, func(a, b TokenInfo) int { return a.Created.Compare(b.Created) })
	return out, nil
}

func (ts *Tokens) get(ctx context.Context, id string) (r tokenRecord, modified store.Revision, ok bool, err error) {
	rec, ok, _, err := ts.store.Get(ctx, TokenPrefix+id, 0)
	if err != nil || !ok {
		return tokenRecord{}, 0, false, err
	}
	if err := json.Unmarshal(rec.Value, &r); err != nil {
		return tokenRecord{}, 0, false, fmt.Errorf("key %s: %w", rec.Key, err)
	}
	return r, rec.Modified, true, nil
}

func (ts *Tokens) put(ctx context.Context, r tokenRecord, modified store.Revision, keep time.Duration) error {
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	key := TokenPrefix + r.ID
	_, err = ts.store.Commit(ctx, store.Txn{
		Conditions: []store.Condition{{Key: key, Modified: modified}},
		Ops:        []store.Op{{Kind: store.Put, Key: key, Value: value, TTL: keep}},
	})
	return err
}
