package release_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/release"
)

// pair is a private key and its public one, as files have them.
type pair struct{ private, public []byte }

func newPair(t testing.TB, key crypto.Signer) pair {
	t.Helper()
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pair{
		private: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		public:  pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
	}
}

func newEd25519(t testing.TB) pair {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return newPair(t, key)
}

func newECDSA(t testing.TB, curve elliptic.Curve) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return newPair(t, key)
}

func (p pair) verifier(t testing.TB) crypto.PublicKey {
	t.Helper()
	key, err := release.ParsePublicKey(p.public)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

var build = release.BuildDefinition{
	BuildType:            release.BuildType,
	ExternalParameters:   release.ExternalParameters{Version: "v1.2.3", Target: "release"},
	ResolvedDependencies: []release.Resource{{URI: "git+https://example.test/x", Digest: map[string]string{"gitCommit": "c0ffee"}}},
}

// writeRelease of two files, signed if key is not nil.
func writeRelease(t testing.TB, key []byte) string {
	t.Helper()
	dir := t.TempDir()
	var sums []release.Sum
	for _, name := range []string{"a.tar.gz", "b.zip"} {
		write(t, dir, name, "content of "+name)
		d, err := release.DigestFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		sum := release.Sum{Name: name, Digest: d}
		sums = append(sums, sum)
		writeStatement(t, dir, name, release.NewStatement(sum, build, "https://example.test/builder"), key)
	}
	write(t, dir, release.SumsName, string(release.FormatSums(sums)))
	return dir
}

func writeStatement(t testing.TB, dir, name string, s release.Statement, key []byte) {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if key == nil {
		write(t, dir, name+release.UnsignedSuffix, string(data))
		return
	}
	k, err := release.ParseKey(key)
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := k.Sign(data)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, name+release.SignedSuffix, string(envelope))
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestVerify(t *testing.T) {
	ours := newEd25519(t)
	for name, key := range map[string]*pair{"unsigned": nil, "Ed25519": &ours} {
		t.Run(name, func(t *testing.T) {
			var private []byte
			var public crypto.PublicKey
			if key != nil {
				private, public = key.private, key.verifier(t)
			}
			r, err := release.Verify(writeRelease(t, private), public)
			if err != nil || r.Err() != nil {
				t.Fatal(err, r)
			}
			want := &release.Report{
				Version: "v1.2.3", Commit: "c0ffee", Builder: "https://example.test/builder", Signed: key != nil,
				Files: []release.File{{Name: "a.tar.gz", Bytes: 19}, {Name: "b.zip", Bytes: 16}},
			}
			if diff := cmp.Diff(want, r); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSignatures: each kind of key that is offered signs what only it verifies, twice the same.
func TestSignatures(t *testing.T) {
	pairs := map[string]pair{"Ed25519": newEd25519(t), "P-256": newECDSA(t, elliptic.P256()), "P-384": newECDSA(t, elliptic.P384())}
	for name, signs := range pairs {
		dir := writeRelease(t, signs.private)
		if again := writeRelease(t, signs.private); read(t, dir, "a.tar.gz.intoto.jsonl") != read(t, again, "a.tar.gz.intoto.jsonl") {
			t.Errorf("%s: two signatures of a statement differ", name)
		}
		for other, verifies := range pairs {
			r, err := release.Verify(dir, verifies.verifier(t))
			if err != nil {
				t.Fatal(err)
			}
			if passed := r.Err() == nil; passed != (name == other) || r.Signed != passed {
				t.Errorf("signed by %s, verified by %s: %v", name, other, r.Err())
			}
		}
	}
}

// TestVerifyFinds: each way in which a release can be wrong is found, with the file and
// what to do.
func TestVerifyFinds(t *testing.T) {
	ours, theirs := newECDSA(t, elliptic.P256()), newECDSA(t, elliptic.P256())
	otherBuild := build
	otherBuild.ExternalParameters.Version = "v1.2.4"
	const a = "a.tar.gz"
	for name, c := range map[string]struct {
		unsigned bool // the release
		noKey    bool
		spoil    func(t *testing.T, dir string)
		want     string
	}{
		"a changed byte":         {spoil: func(t *testing.T, dir string) { write(t, dir, a, "content of a.tar.gz!") }, want: "in SHA256SUMS it is "},
		"a missing file":         {spoil: remove(a), want: "a.tar.gz: it is listed in SHA256SUMS and not there"},
		"a link":                 {spoil: link(a, "b.zip"), want: "a.tar.gz: it is not a regular file"},
		"another file":           {spoil: func(t *testing.T, dir string) { write(t, dir, "extra", "") }, want: "extra: it is not listed in SHA256SUMS"},
		"no statement":           {spoil: remove(a + release.SignedSuffix), want: "a.tar.gz: its statement, a.tar.gz.intoto.jsonl or a.tar.gz.intoto.json, is not there"},
		"no envelope":            {spoil: func(t *testing.T, dir string) { write(t, dir, a+release.SignedSuffix, "{") }, want: "a.tar.gz.intoto.jsonl: not an envelope"},
		"no signature":           {spoil: replaceIn(a+release.SignedSuffix, `"signatures":[{`, `"signatures":[],"x":[{`), want: "it has no signature"},
		"another type":           {spoil: replaceIn(a+release.SignedSuffix, "vnd.in-toto", "vnd.in-toot"), want: "payloadType "},
		"an unsigned statement":  {unsigned: true, spoil: func(*testing.T, string) {}, want: "a.tar.gz: its statement a.tar.gz.intoto.json is not signed"},
		"another key":            {spoil: sign(a, build, theirs), want: "a.tar.gz.intoto.jsonl: no signature of it is of this key"},
		"a statement of another": {spoil: rename("b.zip.intoto.jsonl", a+release.SignedSuffix), want: "a.tar.gz: its statement is not about it (it is about b.zip)"},
		"another build":          {spoil: sign("b.zip", otherBuild, ours), want: "b.zip: it is of version v1.2.4, commit c0ffee"},
		"a statement of another kind": {unsigned: true, noKey: true, spoil: replaceIn(a+release.UnsignedSuffix, "slsa.dev/provenance/v1", "slsa.dev/provenance/v0.2"),
			want: "a.tar.gz.intoto.json: predicateType"},
		"another digest in the statement": {unsigned: true, noKey: true, spoil: replaceIn(a+release.UnsignedSuffix, `"sha256":"`, `"sha256":"`+strings.Repeat("0", 64)+`","was":"`),
			want: "in its statement it is 000000"},
	} {
		t.Run(name, func(t *testing.T) {
			key := ours.private
			if c.unsigned {
				key = nil
			}
			dir := writeRelease(t, key)
			c.spoil(t, dir)
			var public crypto.PublicKey
			if !c.noKey {
				public = ours.verifier(t)
			}
			r, err := release.Verify(dir, public)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
			if r.Signed {
				t.Error("it says that everything is signed")
			}
		})
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func rename(from, to string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { write(t, dir, to, read(t, dir, from)) }
}

func link(name, to string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		remove(name)(t, dir)
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func replaceIn(name, from, to string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		have := read(t, dir, name)
		if !strings.Contains(have, from) {
			t.Fatalf("%s has no %s", name, from)
		}
		write(t, dir, name, strings.Replace(have, from, to, 1))
	}
}

func sign(name string, b release.BuildDefinition, key pair) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		d, err := release.DigestFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		writeStatement(t, dir, name, release.NewStatement(release.Sum{Name: name, Digest: d}, b, "https://example.test/builder"), key.private)
	}
}

// TestVerifyOneFile: of a release that was not downloaded as a whole.
func TestVerifyOneFile(t *testing.T) {
	dir := writeRelease(t, nil)
	remove("a.tar.gz")(t, dir)
	r, err := release.Verify(filepath.Join(dir, "b.zip"), nil)
	if err != nil || r.Err() != nil || len(r.Files) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = release.Verify(filepath.Join(dir, "b.zip.intoto.json"), nil)
	if err != nil || r.Err() == nil || !strings.Contains(r.Err().Error(), "SHA256SUMS beside it does not list it") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestVerifyNothing(t *testing.T) {
	empty := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(empty, "absent"): "no such file",
		empty:                          "SHA256SUMS: there is no such file",
	} {
		if _, err := release.Verify(path, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	write(t, empty, release.SumsName, "nonsense\n")
	if _, err := release.Verify(empty, nil); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Error(err)
	}
}

func TestParseSums(t *testing.T) {
	digest := strings.Repeat("0a", 32)
	for text, want := range map[string]string{
		digest + "  a\n" + digest + " *b\n":  "",
		"":                                   "no checksum",
		digest + "  ../a\n":                  "plain name",
		digest + "  a/b\n":                   "plain name",
		digest + "  a\\b\n":                  "plain name",
		digest + "  a\x1b[1m\n":              "other characters",
		digest + "  a\n" + digest + "  a\n":  "line 2: a is listed twice",
		digest[2:] + "  a\n":                 "is no SHA-256",
		strings.ToUpper(digest) + "  a\n":    "is no SHA-256",
		digest + " a\n":                      "no checksum and a file",
		digest + "\n":                        "no checksum and a file",
		strings.Repeat("x", 1<<20) + "  a\n": "too many",
	} {
		_, err := release.ParseSums([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.80q: want %q, got %v", text, want, err)
		}
	}
}

func TestKeys(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]pair{"RSA": newPair(t, weak), "P-521": newECDSA(t, elliptic.P521())} {
		if _, err := release.ParseKey(p.private); err == nil {
			t.Errorf("%s signs", name)
		}
		if _, err := release.ParsePublicKey(p.public); err == nil {
			t.Errorf("%s verifies", name)
		}
	}
	p := newEd25519(t)
	if _, err := release.ParsePublicKey(p.private); err == nil || !strings.Contains(err.Error(), "-pubout") {
		t.Errorf("a private key in place of the public one: %v", err)
	}
	if _, err := release.ParsePublicKey(append(p.public, p.public...)); err == nil {
		t.Error("two keys are one")
	}
}

// FuzzSums: what is accepted is written as it was read, but for the order.
func FuzzSums(f *testing.F) {
	f.Add([]byte(strings.Repeat("0a", 32) + "  a\n"))
	f.Add([]byte(strings.Repeat("0a", 32) + " *b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		sums, err := release.ParseSums(data)
		if err != nil {
			return
		}
		again, err := release.ParseSums(release.FormatSums(sums))
		if err != nil || len(again) != len(sums) {
			t.Errorf("%v, %v", again, err)
		}
	})
}

// FuzzStatement: no file beside a release makes Verify panic, or pass.
func FuzzStatement(f *testing.F) {
	dir := writeRelease(f, newEd25519(f).private)
	f.Add([]byte(read(f, dir, "a.tar.gz.intoto.jsonl")))
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{"sig":"AA=="}]}`))
	key := newECDSA(f, elliptic.P256()).verifier(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		write(t, dir, "a.tar.gz.intoto.jsonl", string(data))
		r, err := release.Verify(filepath.Join(dir, "a.tar.gz"), key)
		if err != nil || r.Err() == nil {
			t.Errorf("it passes: %+v, %v", r, err)
		}
		_, _ = release.ParseStatement(data)
	})
}
