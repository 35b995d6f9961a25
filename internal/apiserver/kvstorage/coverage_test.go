package kvstorage_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const suite = "k8s.io/apiserver/pkg/storage/testing"

// TestConformanceIsComplete compares the functions of upstream's suite with those
// that this package calls, and prints what is left out, with reasons.
func TestConformanceIsComplete(t *testing.T) {
	offered := offeredChecks(t)
	called := calledChecks(t, "conformance_test.go")
	if diff := cmp.Diff(offered, called); diff != "" {
		t.Errorf("upstream's suite (-) and the functions called here (+) differ: write a check, or remove it:\n%s", diff)
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%d functions of the suite, %d checks; not run:\n", len(offered), len(checks))
	for _, c := range checks {
		if c.notBare != "" && c.notCached != "" {
			t.Errorf("%s runs nowhere", c.name)
		}
		for _, cached := range []bool{false, true} {
			if reason := c.skipped(cached); reason != "" {
				fmt.Fprintf(&table, "  %-50s cached=%-5v %s\n", c.name, cached, reason)
			}
		}
	}
	t.Log(table.String())
}

// offeredChecks are the exported functions of the suite that take a *testing.T or
// testing.TB; benchmarks take a *testing.B.
func offeredChecks(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}\n{{join .GoFiles \"\\n\"}}", suite).Output()
	if err != nil {
		t.Fatalf("find %s: %v", suite, err)
	}
	dir, files, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	found := map[string]bool{}
	for _, name := range strings.Fields(files) {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Run") && takesTest(f) {
				found[f.Name.Name] = true
			}
		}
	}
	if len(found) < 54 { // as many RunTest* as the release had that this was written for
		t.Fatalf("only %d functions found in %s: has the suite moved?", len(found), dir)
	}
	return found
}

func takesTest(f *ast.FuncDecl) bool {
	for _, p := range f.Type.Params.List {
		typ := p.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if sel, ok := typ.(*ast.SelectorExpr); ok && (sel.Sel.Name == "T" || sel.Sel.Name == "TB") {
			return true
		}
	}
	return false
}

// calledChecks are the functions of the suite that a file calls.
func calledChecks(t *testing.T, name string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "storagetesting" && strings.HasPrefix(sel.Sel.Name, "Run") {
					called[sel.Sel.Name] = true
				}
			}
		}
		return true
	})
	return called
}
