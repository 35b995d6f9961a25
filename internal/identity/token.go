package identity

import (
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
)

// Token as the user holds it: proxima_1_ID_SECRET_PIN, in lower-case letters and
// digits, so that a double click selects it and secret scanners can match it.
type Token struct {
	// ID is no secret; it names the token in lists and logs.
	ID string
	// Pin of the authority whose server takes the token.
	Pin    Pin
	secret [secretSize]byte
	// account is a token of another issuer; see accountToken. It has no Pin.
	account *account
}

const (
	tokenPrefix  = "proxima"
	tokenVersion = "1"
	idSize       = 10
	secretSize   = 32
)

var tokenEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func newToken(pin Pin) Token {
	var id [idSize]byte
	t := Token{Pin: pin}
	rand.Read(id[:]) // never fails: crypto/rand ends the program first
	rand.Read(t.secret[:])
	t.ID = tokenEncoding.EncodeToString(id[:])
	return t
}

// Reveal returns the token with its secret, for showing it once to its owner.
func (t Token) Reveal() string {
	if t.account != nil {
		return t.account.text
	}
	return strings.Join([]string{tokenPrefix, tokenVersion, t.ID,
		tokenEncoding.EncodeToString(t.secret[:]), tokenEncoding.EncodeToString(t.Pin[:])}, "_")
}

// String leaves the secret out, so that a token can be logged by accident.
func (t Token) String() string { return "token " + t.ID }

// GoString is String: %#v must not print the secret either.
func (t Token) GoString() string { return t.String() }

// ParseToken reads a token that a user typed or pasted. Surrounding white space
// is dropped. The errors name what is wrong, never the secret.
func ParseToken(text string) (Token, error) {
	parts := strings.Split(strings.TrimSpace(text), "_")
	if len(parts) < 2 || parts[0] != tokenPrefix {
		return Token{}, errors.New(`not a Proxima token: one starts with "proxima_"`)
	}
	if parts[1] != tokenVersion {
		return Token{}, fmt.Errorf("a token of version %.8q is not understood; upgrade this program", parts[1])
	}
	if len(parts) != 5 {
		return Token{}, fmt.Errorf("the token has %d parts instead of 5; it may have been cut when copying", len(parts))
	}
	t := Token{ID: parts[2]}
	var id [idSize]byte
	for _, p := range []struct {
		name string
		text string
		into []byte
	}{{"id", parts[2], id[:]}, {"secret", parts[3], t.secret[:]}, {"pin", parts[4], t.Pin[:]}} {
		raw, err := tokenEncoding.DecodeString(p.text)
		// The second condition refuses spare bits and line ends: one spelling only.
		if err != nil || len(raw) != len(p.into) || tokenEncoding.EncodeToString(raw) != p.text {
			return Token{}, fmt.Errorf("the token's %s is damaged; it may have been cut when copying", p.name)
		}
		copy(p.into, raw)
	}
	return t, nil
}
