package clusterkey_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity/clusterkey"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func newKey() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	return base64.StdEncoding.EncodeToString(key)
}

func keyFile(t testing.TB, lines ...string) *clusterkey.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cluster.key")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := clusterkey.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func newStore(t testing.TB) store.Store {
	t.Helper()
	s := memory.New(memory.Options{})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func items(s string) clusterkey.Items {
	return clusterkey.Items{"ca.key": []byte("authority " + s), "secrets.keys": []byte("ring " + s)}
}

func never() (clusterkey.Items, error) { return nil, errors.New("other keys are made") }

// TestThreeInstances: the first shares its keys, the others take them; one that has lost
// its data directory is one of them again.
func TestThreeInstances(t *testing.T) {
	ctx, s, key := t.Context(), newStore(t), newKey()
	first, err := clusterkey.Join(ctx, s, keyFile(t, key), items("1"), never)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // an empty directory, twice
		shared, err := clusterkey.Join(ctx, s, keyFile(t, key), nil, never)
		if err != nil || !bytes.Equal(shared.Items["ca.key"], []byte("authority 1")) || len(shared.Items) != 2 {
			t.Errorf("%v %v", shared, err)
		}
	}
	if _, err := clusterkey.Join(ctx, s, keyFile(t, key), items("1"), never); err != nil {
		t.Errorf("an instance with the same keys: %v", err)
	}
	if _, err := clusterkey.Join(ctx, s, keyFile(t, key), items("2"), never); !errors.Is(err, clusterkey.ErrDiffers) ||
		!strings.Contains(err.Error(), "[ca.key secrets.keys]") {
		t.Errorf("an instance with other keys: %v", err)
	}
	if _, err := clusterkey.Join(ctx, s, nil, items("1"), never); !errors.Is(err, clusterkey.ErrKeyNeeded) {
		t.Errorf("an instance without the cluster key: %v", err)
	}
	if _, err := clusterkey.Join(ctx, s, keyFile(t, newKey()), nil, never); !errors.Is(err, clusterkey.ErrWrongKey) {
		t.Errorf("an instance with another cluster key: %v", err)
	}
	// After a rotation of the key ring.
	other, err := clusterkey.Load(ctx, s, keyFile(t, key))
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Update(ctx, s, keyFile(t, key), items("3")); err != nil {
		t.Fatal(err)
	}
	if err := other.Update(ctx, s, keyFile(t, key), items("4")); !errors.Is(err, clusterkey.ErrConflict) {
		t.Errorf("an update of what another instance has changed: %v", err)
	}
	shared, err := clusterkey.Load(ctx, s, keyFile(t, key))
	if err != nil || string(shared.Items["ca.key"]) != "authority 3" {
		t.Errorf("%v %v", shared, err)
	}
	rec, _, _, err := s.Get(ctx, clusterkey.Key, 0)
	if err != nil || bytes.Contains(rec.Value, []byte("authority")) ||
		bytes.Contains(rec.Value, []byte(base64.StdEncoding.EncodeToString([]byte("authority 3")))) {
		t.Errorf("the store has the keys in the clear: %v", err)
	}
}

func TestWithoutCluster(t *testing.T) {
	shared, err := clusterkey.Join(t.Context(), newStore(t), nil, items("1"), never)
	if err != nil || shared.Items != nil {
		t.Errorf("%+v %v", shared, err)
	}
}

// TestFirstAtTheSameTime: of instances that start together with nothing, one makes the
// keys that all have.
func TestFirstAtTheSameTime(t *testing.T) {
	s, w := newStore(t), keyFile(t, newKey())
	var group sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		group.Go(func() {
			shared, err := clusterkey.Join(t.Context(), s, w, nil, func() (clusterkey.Items, error) { return items(fmt.Sprint(i)), nil })
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = string(shared.Items["ca.key"])
		})
	}
	group.Wait()
	for _, g := range got {
		if g != got[0] || g == "" {
			t.Errorf("%q", got)
		}
	}
}

// TestChangeOfKey: the new key comes before the old one, the record is written again, and
// the old key goes.
func TestChangeOfKey(t *testing.T) {
	ctx, s, old, next := t.Context(), newStore(t), newKey(), newKey()
	if _, err := clusterkey.Join(ctx, s, keyFile(t, old), items("1"), never); err != nil {
		t.Fatal(err)
	}
	both := keyFile(t, "# new first", next, "", old)
	shared, err := clusterkey.Load(ctx, s, both)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clusterkey.Load(ctx, s, keyFile(t, next)); !errors.Is(err, clusterkey.ErrWrongKey) {
		t.Errorf("before it is written again: %v", err)
	}
	if err := shared.Update(ctx, s, both, shared.Items); err != nil {
		t.Fatal(err)
	}
	if _, err := clusterkey.Load(ctx, s, keyFile(t, next)); err != nil {
		t.Error(err)
	}
	if _, err := clusterkey.Load(ctx, s, keyFile(t, old)); !errors.Is(err, clusterkey.ErrWrongKey) {
		t.Errorf("the old key: %v", err)
	}
}

// TestTampered: no change of a byte of the record goes unnoticed.
func TestTampered(t *testing.T) {
	ctx, s, w := t.Context(), newStore(t), keyFile(t, newKey())
	if _, err := clusterkey.Join(ctx, s, w, items("1"), never); err != nil {
		t.Fatal(err)
	}
	rec, _, _, err := s.Get(ctx, clusterkey.Key, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rec.Value {
		changed := bytes.Clone(rec.Value)
		changed[i] ^= 1
		if _, err := s.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: clusterkey.Key, Value: changed}}}); err != nil {
			t.Fatal(err)
		}
		// Unused bits at the end of base64 change nothing.
		if shared, err := clusterkey.Load(ctx, s, w); err == nil && string(shared.Items["secrets.keys"]) != "ring 1" {
			t.Fatalf("byte %d changed: %q became %q, and %d other items are loaded", i, rec.Value[i], changed[i], len(shared.Items))
		}
	}
}

func TestOpenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.key")
	if _, err := clusterkey.OpenFile(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("a key file is made")
	}
	for what, data := range map[string]string{
		"nothing":       "",
		"comments":      "# x\n",
		"no base64":     "secret secret\n",
		"too short":     base64.StdEncoding.EncodeToString(make([]byte, 16)),
		"zero":          base64.StdEncoding.EncodeToString(make([]byte, 32)),
		"a second line": newKey() + "\nx\n",
		"too long":      strings.Repeat("# comment\n", 10000) + newKey(),
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := clusterkey.OpenFile(path); err == nil {
			t.Errorf("%s: opened", what)
		} else if strings.Contains(err.Error(), "secret secret") {
			t.Errorf("%s: the error quotes the file: %v", what, err)
		}
	}
	key := newKey()
	if err := os.WriteFile(path, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := clusterkey.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v %#v", f, f, f); strings.Contains(text, "keys:") {
		t.Errorf("it prints %s", text)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := clusterkey.OpenFile(path); err == nil {
		t.Error("a key that everyone can read")
	}
}

// helperCommand makes this program the command of a key management service.
const helperCommand = "PROXIMA_TEST_CLUSTER_KEY"

func TestMain(m *testing.M) {
	if mode := os.Getenv(helperCommand); mode != "" {
		kms(mode, os.Args[len(os.Args)-1])
	}
	os.Exit(m.Run())
}

// kms reverses bytes, or misbehaves.
func kms(mode, operation string) {
	switch mode {
	case "fail":
		fmt.Fprintln(os.Stderr, "access denied by policy")
		os.Exit(3)
	case "hang":
		time.Sleep(time.Hour) // it is killed before
	case "silent":
		os.Exit(0)
	case "endless":
		for range 500 {
			fmt.Println(strings.Repeat("A", 1000))
		}
		os.Exit(0)
	}
	var line string
	if _, err := fmt.Scanln(&line); err != nil {
		os.Exit(4)
	}
	data, err := base64.StdEncoding.DecodeString(line)
	if err != nil || operation != "wrap" && operation != "unwrap" {
		os.Exit(5)
	}
	for i := range data {
		data[i] ^= 0x55
	}
	fmt.Println(base64.StdEncoding.EncodeToString(data))
	os.Exit(0)
}

func TestCommand(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, s, w := t.Context(), newStore(t), &clusterkey.Command{Argv: []string{self}}
	t.Setenv(helperCommand, "good")
	if _, err := clusterkey.Join(ctx, s, w, items("1"), never); err != nil {
		t.Fatal(err)
	}
	shared, err := clusterkey.Join(ctx, s, w, nil, never)
	if err != nil || string(shared.Items["secrets.keys"]) != "ring 1" {
		t.Errorf("%v %v", shared, err)
	}
	w.Timeout = 5 * time.Second
	for mode, want := range map[string]string{"fail": "access denied by policy", "silent": "base64", "endless": "up to 65536 bytes"} {
		t.Setenv(helperCommand, mode)
		if _, err := clusterkey.Load(ctx, s, w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", mode, err)
		}
	}
	t.Setenv(helperCommand, "hang")
	w.Timeout = 100 * time.Millisecond
	if _, err := clusterkey.Load(ctx, s, w); err == nil || !strings.Contains(err.Error(), "no answer within") {
		t.Errorf("hang: %v", err)
	}
	for _, argv := range [][]string{nil, {"/nonexistent/kms"}} {
		if _, err := clusterkey.Load(ctx, s, &clusterkey.Command{Argv: argv}); err == nil {
			t.Errorf("%q", argv)
		}
	}
}

// FuzzLoad: nothing in the store makes an instance crash, or take keys that were not
// shared.
func FuzzLoad(f *testing.F) {
	s, w := newStore(f), keyFile(f, newKey())
	if _, err := clusterkey.Join(context.Background(), s, w, items("1"), never); err != nil {
		f.Fatal(err)
	}
	rec, _, _, _ := s.Get(context.Background(), clusterkey.Key, 0)
	f.Add(bytes.Clone(rec.Value))
	f.Add([]byte(`{"version":1,"wrapped":"AAAA","items":"AAAA"}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		if _, err := s.Commit(t.Context(), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: clusterkey.Key, Value: value}}}); err != nil {
			t.Fatal(err)
		}
		if shared, err := clusterkey.Load(t.Context(), s, w); err == nil && string(shared.Items["ca.key"]) != "authority 1" {
			t.Fatalf("%q", shared.Items)
		}
	})
}
