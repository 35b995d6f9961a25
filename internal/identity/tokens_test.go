package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func TestTokenText(t *testing.T) {
	token := newToken(Pin{1, 2, 3})
	text := token.Reveal()
	got, err := ParseToken("  " + text + "\n")
	if err != nil || got != token {
		t.Fatalf("%v %v", got, err)
	}
	if shown := fmt.Sprintf("%v %+v %#v %s", token, token, token, token); strings.Contains(shown, strings.Split(text, "_")[3]) {
		t.Errorf("the secret is printed: %s", shown)
	}
	if strings.ToLower(text) != text || strings.ContainsAny(text, "-+/= .") {
		t.Errorf("%q is not one word", text)
	}
	parts := strings.Split(text, "_")
	for name, bad := range map[string]string{
		"empty":      "",
		"other":      "eyJhbGciOi.J9.x",
		"version":    "proxima_2_" + parts[2],
		"cut":        text[:len(text)-1],
		"cut more":   text[:40],
		"more":       text + "a",
		"upper case": strings.ToUpper(parts[3]),
		"upper id":   strings.Replace(text, parts[2], strings.ToUpper(parts[2]), 1),
		"line end":   text[:60] + "\n" + text[60:],
		"part more":  text + "_x",
	} {
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), parts[3]) {
			t.Errorf("%s: the error shows the secret", name)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(newToken(Pin{}).Reveal())
	f.Add("proxima_1_a_b_c")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if err == nil && token.Reveal() != strings.TrimSpace(text) {
			t.Errorf("%q is taken for %q", text, token.Reveal())
		}
	})
}

func TestCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		defer st.Close()
		ts := NewTokens(st, Pin{7})
		ctx := t.Context()
		create := func(kind Kind, ttl time.Duration) (string, TokenInfo) {
			token, info, err := ts.Create(ctx, kind, "x1", ttl, "ada")
			if err != nil {
				t.Fatal(err)
			}
			return token.Reveal(), info
		}
		forever, _ := create(Admin, 0)
		hour, hourInfo := create(Node, time.Hour)
		revoked, revokedInfo := create(Zone, time.Hour)
		for range 2 { // revoking is idempotent
			if _, err := ts.Revoke(ctx, revokedInfo.ID); err != nil {
				t.Fatal(err)
			}
		}
		wrong := newToken(Pin{7})
		wrong.ID = hourInfo.ID

		expect := func(text string, user string, reason Reason) {
			t.Helper()
			s, err := ts.Check(ctx, text)
			var refused *TokenError
			switch {
			case reason == "":
				if err != nil || s.User != user {
					t.Errorf("%v %v, want %s", s, err, user)
				}
			case !errors.As(err, &refused) || refused.Reason != reason:
				t.Errorf("error %v (%+v), want %s", err, refused, reason)
			case !errors.Is(err, ErrToken) || err.Error() != ErrToken.Error():
				t.Errorf("the public error %q reveals more than %q", err, ErrToken)
			}
		}
		expect(forever, "proxima:admin:x1", "")
		expect(hour, "system:node:x1", "")
		expect(revoked, "", Revoked)
		expect(wrong.Reveal(), "", Wrong)
		expect(newToken(Pin{7}).Reveal(), "", Unknown)
		expect("hello", "", Malformed)

		time.Sleep(time.Hour - time.Nanosecond)
		expect(hour, "system:node:x1", "")
		time.Sleep(time.Nanosecond)
		expect(hour, "", Expired)
		expect(wrong.Reveal(), "", Wrong) // the state is shown to the owner only
		if list, err := ts.List(ctx); err != nil || len(list) != 3 {
			t.Errorf("%v %v", list, err)
		}
		time.Sleep(keepDead + time.Minute)
		synctest.Wait()
		if list, err := ts.List(ctx); err != nil || len(list) != 1 || list[0].Kind != Admin {
			t.Errorf("a month later: %v %v", list, err)
		}
		expect(hour, "", Unknown)
		expect(forever, "proxima:admin:x1", "")
	})
}

func TestCreateRefuses(t *testing.T) {
	st := memory.New(memory.Options{})
	defer st.Close()
	ts := NewTokens(st, Pin{})
	for _, tc := range []struct {
		kind Kind
		name string
		ttl  time.Duration
	}{{"root", "x", 0}, {Node, "", 0}, {Node, "A", 0}, {Node, "a:b", 0}, {Zone, "a.b", 0}, {Admin, "a", -1},
		{Admin, "a", 20 * authorityLife}} {
		if _, _, err := ts.Create(t.Context(), tc.kind, tc.name, tc.ttl, ""); err == nil {
			t.Errorf("%+v was accepted", tc)
		}
	}
	if _, err := ts.Revoke(t.Context(), "nope"); !errors.Is(err, ErrNoToken) {
		t.Errorf("revoke: %v", err)
	}
	if _, err := ParseKind("root"); err == nil {
		t.Error("kind root was accepted")
	}
}

func TestStoreHoldsNoSecret(t *testing.T) {
	st := memory.New(memory.Options{})
	defer st.Close()
	ts := NewTokens(st, Pin{})
	token, _, err := ts.Create(t.Context(), Node, "n1", 0, "")
	if err != nil {
		t.Fatal(err)
	}
	page, err := st.List(t.Context(), store.ListOptions{Prefix: TokenPrefix})
	if err != nil || len(page.Records) != 1 {
		t.Fatalf("%v %v", page, err)
	}
	var fields map[string]any
	if err := json.Unmarshal(page.Records[0].Value, &fields); err != nil {
		t.Fatal(err)
	}
	if secret := strings.Split(token.Reveal(), "_")[3]; strings.Contains(string(page.Records[0].Value), secret) {
		t.Error("the secret is stored")
	}
}

// Under the race detector: checks, a revocation and a second one at once.
func TestTokensAtOnce(t *testing.T) {
	st := memory.New(memory.Options{})
	defer st.Close()
	ts := NewTokens(st, Pin{})
	token, info, err := ts.Create(t.Context(), Node, "n1", 0, "")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := ts.Revoke(t.Context(), info.ID); err != nil {
				t.Error(err)
			}
			if _, err := ts.Check(t.Context(), token.Reveal()); !errors.Is(err, ErrToken) {
				t.Errorf("after revocation: %v", err)
			}
		})
		wg.Go(func() {
			if _, err := ts.Check(t.Context(), token.Reveal()); err != nil && !errors.Is(err, ErrToken) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
