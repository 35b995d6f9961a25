package problem_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"testing"

	"github.com/proxima-mesh/proxima/internal/problem"
)

type coded struct{ hint string }

func (coded) Error() string      { return "taken" }
func (coded) Code() problem.Code { return problem.PortInUse }
func (c coded) Hint() string     { return c.hint }

func TestText(t *testing.T) {
	cause := errors.New("refused")
	for _, tc := range []struct {
		err  problem.Error
		want string
	}{
		{problem.Error{Err: cause}, "refused"},
		{problem.Error{Op: "open", Err: cause}, "open: refused"},
		{problem.Error{Object: "store", Err: cause}, "store: refused"},
		{problem.Error{Code: problem.Usage, Op: "open", Object: "store", Err: cause, Hint: "wait"}, "open store: refused"},
	} {
		if got := tc.err.Error(); got != tc.want || !errors.Is(&tc.err, cause) {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestOf(t *testing.T) {
	plain := errors.New("odd")
	inner := &problem.Error{Code: problem.StoreInUse, Err: plain, Hint: "inner"}
	for name, tc := range map[string]struct {
		err  error
		code problem.Code
		hint string
		ok   bool
	}{
		"nil":                       {nil, "", "", false},
		"plain":                     {plain, "", "", false},
		"wrapped":                   {fmt.Errorf("a: %w", inner), problem.StoreInUse, "inner", true},
		"outermost counts":          {&problem.Error{Code: problem.Usage, Err: inner, Hint: "outer"}, problem.Usage, "outer", true},
		"the hint of the inner one": {&problem.Error{Code: problem.Usage, Err: inner}, problem.Usage, "inner", true},
		"the code of the inner one": {&problem.Error{Err: fmt.Errorf("b: %w", coded{}), Hint: "outer"}, problem.PortInUse, "outer", true},
		"a type of its own":         {fmt.Errorf("a: %w", coded{"move"}), problem.PortInUse, "move", true},
		"joined":                    {errors.Join(plain, inner), problem.StoreInUse, "inner", true},
		"a frame without either":    {&problem.Error{Op: "x", Err: coded{"move"}}, problem.PortInUse, "move", true},
	} {
		t.Run(name, func(t *testing.T) {
			p, ok := problem.Of(tc.err)
			if p.Code != tc.code || p.Hint != tc.hint || ok != tc.ok || !errors.Is(p.Err, tc.err) {
				t.Errorf("got %+v, %t", p, ok)
			}
			if got := problem.HintOf(tc.err, "none"); got != tc.hint && (tc.hint != "" || got != "none") {
				t.Errorf("hint %q", got)
			}
		})
	}
}

// declared are the constants of codes.go, by name.
func declared(t *testing.T) map[string]problem.Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]problem.Code{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			out[spec.Names[0].Name] = problem.Code(text)
		}
		return true
	})
	return out
}

// TestDefinitions: each code is documented once, and its form is that of a code.
func TestDefinitions(t *testing.T) {
	defined := map[problem.Code]bool{}
	for _, d := range problem.Definitions() {
		if defined[d.Code] {
			t.Errorf("%s is defined twice", d.Code)
		}
		defined[d.Code] = true
		if !regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`).MatchString(string(d.Code)) {
			t.Errorf("%q is no code", d.Code)
		}
		if d.Meaning == "" || d.Remedy == "" {
			t.Errorf("%s has no meaning or no remedy", d.Code)
		}
	}
	codes := declared(t)
	if len(codes) == 0 || len(codes) != len(defined) {
		t.Errorf("%d constants, %d definitions", len(codes), len(defined))
	}
	for name, code := range codes {
		if !defined[code] {
			t.Errorf("%s (%s) has no definition", name, code)
		}
	}
}
