package keyring

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/storage/value"
)

var keyTime = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func keyFile(t *testing.T) string { return filepath.Join(t.TempDir(), "pki", FileName) }

func openRing(t *testing.T, path string) *Ring {
	t.Helper()
	r, err := Open(path, false)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sealIn(t *testing.T, r *Ring, name, plain string) []byte {
	t.Helper()
	sealed, err := r.Seal([]byte(name), []byte(plain))
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func TestSeal(t *testing.T) {
	r := openRing(t, keyFile(t))
	for _, plain := range []string{"", "x", strings.Repeat("secret ", 10_000)} {
		sealed := sealIn(t, r, "/secrets/a", plain)
		if again := sealIn(t, r, "/secrets/a", plain); bytes.Equal(sealed, again) {
			t.Error("the same result twice")
		}
		if plain != "" && bytes.Contains(sealed[headSize:], []byte("secret")) {
			t.Error("the plain text shows")
		}
		got, stale, err := r.Unseal([]byte("/secrets/a"), sealed)
		if string(got) != plain || stale || err != nil {
			t.Errorf("unsealed %d bytes, stale %v, %v", len(got), stale, err)
		}
		if id, err := KeyID(sealed); id != r.Keys()[0].ID || err != nil {
			t.Errorf("key id %q, %v", id, err)
		}
	}
}

// TestTampering flips every bit, cuts at every length, and swaps names.
func TestTampering(t *testing.T) {
	r := openRing(t, keyFile(t))
	name := []byte("/secrets/a")
	sealed := sealIn(t, r, string(name), "plain")
	check := func(what string, name, sealed []byte) {
		t.Helper()
		if got, _, err := r.Unseal(name, sealed); err == nil {
			t.Fatalf("%s: %q is taken", what, got)
		}
	}
	for i := range sealed {
		for bit := range 8 {
			flipped := bytes.Clone(sealed)
			flipped[i] ^= 1 << bit
			check(fmt.Sprintf("bit %d of byte %d", bit, i), name, flipped)
		}
		check(fmt.Sprintf("%d bytes", i), name, sealed[:i])
	}
	check("a byte more", name, append(bytes.Clone(sealed), 0))
	if _, _, err := r.Unseal([]byte("/secrets/b"), sealed); !errors.Is(err, ErrTampered) {
		t.Errorf("under another name: %v", err)
	}
	// The border between head and name cannot be moved.
	if _, _, err := r.Unseal(append(sealed[headSize-1:headSize:headSize], name...), sealed); !errors.Is(err, ErrTampered) {
		t.Errorf("with a longer name: %v", err)
	}
}

func TestWrongKey(t *testing.T) {
	ours, theirs := openRing(t, keyFile(t)), openRing(t, keyFile(t))
	sealed := sealIn(t, theirs, "/secrets/a", "plain")
	_, _, err := ours.Unseal([]byte("/secrets/a"), sealed)
	var missing *MissingKeyError
	if !errors.As(err, &missing) || missing.ID != theirs.Keys()[0].ID || !strings.Contains(err.Error(), ours.Path()) {
		t.Errorf("an unknown key: %v", err)
	}
	// An attacker replaces the key ID with ours.
	forged := bytes.Replace(sealed, []byte(theirs.Keys()[0].ID), []byte(ours.Keys()[0].ID), 1)
	if _, _, err := ours.Unseal([]byte("/secrets/a"), forged); !errors.Is(err, ErrTampered) {
		t.Errorf("with another id: %v", err)
	}
	if _, _, err := ours.Unseal(nil, []byte("k8s\x00plain")); !errors.Is(err, ErrPlain) {
		t.Errorf("a plain value: %v", err)
	}
	var format *FormatError
	if _, _, err := ours.Unseal(nil, []byte("proxima:sealed:2:x")); !errors.As(err, &format) ||
		!strings.Contains(err.Error(), "newer version") {
		t.Errorf("another version: %v", err)
	}
}

func TestTransformer(t *testing.T) {
	r := openRing(t, keyFile(t))
	tr := r.Transformer()
	name := value.DefaultContext("/registry/secrets/a/b")
	sealed, err := tr.TransformToStorage(t.Context(), []byte("plain"), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{false, true} {
		plain, stale, err := tr.TransformFromStorage(t.Context(), sealed, name)
		if string(plain) != "plain" || stale != want || err != nil {
			t.Errorf("%q, stale %v, %v; want stale %v", plain, stale, err, want)
		}
		if _, err := r.add(keyTime); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFile(t *testing.T) {
	path := keyFile(t)
	r := openRing(t, path)
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v", info.Mode(), err)
	}
	if _, err := r.add(keyTime); err != nil {
		t.Fatal(err)
	}
	again := openRing(t, path)
	ids := func(r *Ring) (ids []string) {
		for _, k := range r.Keys() {
			ids = append(ids, k.ID+k.Created.String())
		}
		return ids
	}
	if diff := cmp.Diff(ids(r), ids(again)); diff != "" || len(r.Keys()) != 2 {
		t.Errorf("read again: %s", diff)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("the folder has %v", left)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		secret := r.Keys()[0].secret
		if shown := fmt.Sprintf(verb, r.Keys()); strings.Contains(shown, fmt.Sprint(secret[0], " ", secret[1])) ||
			strings.Contains(shown, "secret") {
			t.Errorf("%s shows the secret: %s", verb, shown)
		}
	}
}

func TestFileRefused(t *testing.T) {
	good := string(encode([]Key{randomKey(keyTime)}))
	line := strings.Split(strings.TrimSpace(good), "\n")
	key := line[len(line)-1]
	for name, tt := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
	}{
		"readable by the group": {good, 0o640, "chmod 600"},
		"readable by all":       {good, 0o604, "chmod 600"},
		"empty":                 {"", 0o600, "no key"},
		"a word is missing":     {strings.Join(strings.Fields(key)[:2], " "), 0o600, "line 1"},
		"no time":               {strings.Replace(key, "2026", "x", 1), 0o600, "no time"},
		"short key":             {key[:len(key)-4], 0o600, "no key"},
		"twice":                 {good + key, 0o600, "twice"},
		"another id":            {strings.Repeat("0", idSize) + key[idSize:], 0o600, "was changed"},
		"large":                 {strings.Repeat("#\n", 1<<20), 0o600, "no key file"},
		"long line":             {strings.Repeat("x", 1<<18), 0o600, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			if runtime.GOOS == "windows" && tt.mode != 0o600 {
				t.Skip("modes are not kept on windows")
			}
			path := filepath.Join(t.TempDir(), FileName)
			if err := os.WriteFile(path, []byte(tt.content), tt.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.mode); err != nil {
				t.Fatal(err)
			}
			_, err := Open(path, false)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if secret := strings.Fields(key)[2]; err != nil && strings.Contains(err.Error(), secret[:12]) {
				t.Error("the error shows the key")
			}
			if kept, _ := os.ReadFile(path); string(kept) != tt.content {
				t.Error("the file was changed")
			}
		})
	}
}

// TestLostFile: where something is encrypted no new key is made, and everything
// works again once the file is back.
func TestLostFile(t *testing.T) {
	path := keyFile(t)
	r := openRing(t, path)
	sealed := sealIn(t, r, "a", "plain")
	copied := path + ".copy"
	if err := os.Rename(path, copied); err != nil {
		t.Fatal(err)
	}
	lost, err := Open(path, true)
	if err != nil {
		t.Fatal(err)
	}
	var missing *MissingKeyError
	if _, err := lost.Seal([]byte("b"), nil); !errors.As(err, &missing) {
		t.Errorf("seal: %v", err)
	}
	if _, _, err := lost.Unseal([]byte("a"), sealed); !errors.As(err, &missing) {
		t.Errorf("unseal: %v", err)
	}
	if _, err := lost.add(keyTime); !errors.As(err, &missing) {
		t.Errorf("add: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
	if err := os.Rename(copied, path); err != nil {
		t.Fatal(err)
	}
	if got, _, err := lost.Unseal([]byte("a"), sealed); string(got) != "plain" || err != nil {
		t.Errorf("with the file back: %q, %v", got, err)
	}
	sealIn(t, lost, "b", "")
}

// TestKeyPutBack: a key that an operator puts into the file is found, and a
// rotation keeps it.
func TestKeyPutBack(t *testing.T) {
	r, other := openRing(t, keyFile(t)), openRing(t, keyFile(t))
	sealed := sealIn(t, other, "a", "plain")
	both := append(r.Keys(), other.Keys()...)
	if err := os.WriteFile(r.Path(), encode(both), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.add(keyTime); err != nil || len(r.Keys()) != 3 {
		t.Fatalf("keys %v, %v", r.Keys(), err)
	}
	if got, stale, err := r.Unseal([]byte("a"), sealed); string(got) != "plain" || !stale || err != nil {
		t.Errorf("%q, stale %v, %v", got, stale, err)
	}
}

// TestCrashWhileSaving: leftovers of an interrupted write are ignored.
func TestCrashWhileSaving(t *testing.T) {
	r := openRing(t, keyFile(t))
	sealed := sealIn(t, r, "a", "plain")
	if err := os.WriteFile(filepath.Join(filepath.Dir(r.Path()), "."+FileName+"-123"), []byte("half a li"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := openRing(t, r.Path()).Unseal([]byte("a"), sealed); string(got) != "plain" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// A key that could not be written encrypts nothing.
	if os.Geteuid() == 0 {
		t.Log("not tried as root: a folder that cannot be written")
	}
	before := r.Keys()[0].ID
	if os.Geteuid() != 0 && runtime.GOOS != "windows" {
		if err := os.Chmod(filepath.Dir(r.Path()), 0o500); err != nil {
			t.Fatal(err)
		}
		if _, err := r.add(keyTime); err == nil {
			t.Error("a key was added to a folder that cannot be written")
		}
	}
	if got := r.Keys()[0].ID; got != before {
		t.Errorf("it encrypts with %s, want %s", got, before)
	}
}

func FuzzUnseal(f *testing.F) {
	r, err := Open(filepath.Join(f.TempDir(), FileName), false)
	if err != nil {
		f.Fatal(err)
	}
	valid, err := r.Seal([]byte("name"), []byte("plain"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("name"), valid)
	f.Add([]byte("other"), valid)
	f.Add([]byte("name"), valid[:headSize])
	f.Add([]byte(""), []byte(prefix))
	f.Fuzz(func(t *testing.T, name, sealed []byte) {
		plain, stale, err := r.Unseal(name, sealed)
		if err == nil && (string(name) != "name" || !bytes.Equal(sealed, valid)) {
			t.Errorf("forged: %q", plain)
		}
		if err != nil && (plain != nil || stale) {
			t.Errorf("%q, stale %v, with error %v", plain, stale, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(encode([]Key{randomKey(keyTime), randomKey(keyTime)}))
	f.Add([]byte("x y z\n#"))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := decode(data)
		if err != nil {
			return
		}
		again, err := decode(encode(keys))
		if err != nil || len(again) != len(keys) {
			t.Fatalf("%d keys, then %d, %v", len(keys), len(again), err)
		}
		for i := range keys {
			if keys[i].secret != again[i].secret || !keys[i].Created.Equal(again[i].Created) {
				t.Errorf("key %d changed", i)
			}
		}
	})
}
