package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for raw, want := range map[string]target{
		"etcd://h:2379": {endpoints: []string{"http://h:2379"}, prefix: "/proxima/", label: "etcd://h:2379"},
		"etcd://a:1,b:2,[::1]:3/?prefix=mesh": {endpoints: []string{"http://a:1", "http://b:2", "http://[::1]:3"}, prefix: "mesh/",
			label: "etcd://a:1,b:2,[::1]:3?prefix=mesh/"},
		"etcd://127.0.0.1:2379?prefix=/proxima/": {endpoints: []string{"http://127.0.0.1:2379"}, prefix: "/proxima/",
			label: "etcd://127.0.0.1:2379"},
		"etcd://127.0.0.1:2379?prefix=%2Fa%2Fb%2F": {endpoints: []string{"http://127.0.0.1:2379"}, prefix: "/a/b/",
			label: "etcd://127.0.0.1:2379?prefix=/a/b/"},
	} {
		got, err := parse(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(target{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", raw, diff)
		}
	}
	for raw, reason := range map[string]string{
		"http://h:1":                   "must begin with etcd://",
		"etcd://":                      "no HOST:PORT",
		"etcd://h":                     "no HOST:PORT",
		"etcd://h:1,":                  "no HOST:PORT",
		"etcd://h:1/path":              "no HOST:PORT",
		"etcd://u:p@h:1":               "client certificates",
		"etcd://h:1?ca=x":              `unknown parameter "ca"`,
		"etcd://h:1?prefix=":           "not be empty",
		"etcd://h:1?prefix=/":          "must have a name",
		"etcd://h:1?prefix=a&prefix=b": "once",
		"etcd://h:1?cert=/x":           "cert and key",
		"etcd://h:1?prefix=%zz":        "malformed",
	} {
		_, err := parse(raw)
		var bad *URLError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want %q", raw, err, reason)
		}
	}
	if _, err := parse("etcd://h:1?cacert=" + filepath.Join(t.TempDir(), "none.crt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestLocal(t *testing.T) {
	for raw, want := range map[string]bool{
		"etcd://127.0.0.1:1,[::1]:2,localhost:3": true, "etcd://127.0.0.1:1,db:2": false, "etcd://10.0.0.1:1": false,
	} {
		got, err := parse(raw)
		if err != nil || got.local() != want {
			t.Errorf("%s: %v, %v", raw, got.local(), err)
		}
	}
}

// FuzzParse: no panic, and what is accepted has what the client needs.
func FuzzParse(f *testing.F) {
	f.Add("etcd://h:2379,i:1?prefix=/a/")
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := parse(raw)
		if err == nil && (len(got.endpoints) == 0 || !strings.HasSuffix(got.prefix, "/") || strings.Trim(got.prefix, "/") == "") {
			t.Errorf("%q is accepted as %+v", raw, got)
		}
	})
}

func TestSighting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seen.json")
	none, err := readSighting(path)
	if err != nil || none != (sighting{}) {
		t.Fatalf("without a file: %+v, %v", none, err)
	}
	want := sighting{Epoch: "e", Prefix: "/p/", Revision: 100}
	if err := want.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := readSighting(path)
	if err != nil || got != want {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, c := range []struct {
		prefix, epoch string
		revision      int64
		refused       bool
	}{
		{"/p/", "e", 100, false}, {"/p/", "e", 101, false}, {"/p/", "e", 99, true},
		{"/p/", "other", 5, false}, {"/q/", "e", 5, false},
	} {
		err := got.check(c.prefix, c.epoch, c.revision)
		var replaced *ReplacedError
		if errors.As(err, &replaced) != c.refused {
			t.Errorf("%+v: %v", c, err)
		}
		if c.refused && !strings.Contains(err.Error(), "etcdctl put /p/meta/epoch") {
			t.Errorf("the error does not name the fix: %v", err)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readSighting(path); err == nil {
		t.Error("a damaged file is taken for none")
	}
}
