package kuma

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

var update = flag.Bool("update", false, "write what comes out into the files of testdata")

// TestGolden translates each file of testdata. What comes out passes the rules of its kind, and
// what does not is named.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parts := map[string]string{}
			for _, f := range archive.Files {
				parts[f.Name] = string(f.Data)
			}
			result, err := Convert([]byte(parts["kuma"]), Options{})
			if err != nil {
				t.Fatal(err)
			}
			for known := range translations() {
				seen[known] = seen[known] || strings.Contains(parts["kuma"], "kind: "+known+"\n") || strings.Contains(parts["kuma"], "type: "+known+"\n")
			}
			validate(t, result)
			var out bytes.Buffer
			if err := result.Print(&out); err != nil {
				t.Fatal(err)
			}
			var problems strings.Builder
			for _, p := range result.Problems {
				problems.WriteString(p.String() + "\n")
			}
			if *update {
				archive.Files = []txtar.File{
					{Name: "kuma", Data: []byte(parts["kuma"])}, {Name: "proxima", Data: out.Bytes()}, {Name: "problems", Data: []byte(problems.String())},
				}
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(parts["proxima"], out.String()); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(parts["problems"], problems.String()); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
	for known := range translations() {
		if !seen[known] {
			t.Errorf("there is no example of %s", known)
		}
	}
}

// validate the objects by the rules of their kinds.
func validate(t *testing.T, result *Result) {
	t.Helper()
	names := map[string]bool{}
	for _, obj := range result.Objects {
		gvk := obj.GetObjectKind().GroupVersionKind()
		at := gvk.Kind + " " + resource.KeyOf(obj).String()
		if names[at] {
			t.Errorf("%s is made twice", at)
		}
		names[at] = true
		for _, d := range kind.All() {
			if d.GVK != gvk {
				continue
			}
			copied := obj.DeepCopyObject().(resource.Object)
			if d.Default != nil {
				d.Default(copied)
			}
			if errs := d.Validate(copied, nil); len(errs) > 0 {
				t.Errorf("%s: %v", at, errs.ToAggregate())
			}
		}
	}
}

// FuzzConvert: whatever comes in, it ends with a result or an error.
func FuzzConvert(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, manifests []byte) {
		result, err := Convert(manifests, Options{})
		if err != nil {
			return
		}
		if err := result.Print(&bytes.Buffer{}); err != nil {
			t.Error(err)
		}
	})
}
