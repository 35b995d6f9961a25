package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// source is a package's files, with what definitions of metrics refer to.
type source struct {
	name    string
	fset    *token.FileSet
	files   []*ast.File
	parents map[ast.Node]ast.Node
	values  map[string]ast.Expr        // constants and variables of the package
	calls   map[string][]*ast.CallExpr // by the name of the called function
	funcs   map[string]function        // functions, methods and closures, by name
}

type function struct {
	typ  *ast.FuncType
	body *ast.BlockStmt
}

// parse reads the packages below a folder that use prometheus.
func parse(root string) ([]*source, error) {
	folders := map[string]*source{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		folder := filepath.Dir(path)
		s := folders[folder]
		if s == nil {
			name, _ := filepath.Rel(root, folder)
			s = &source{
				name: filepath.ToSlash(name), fset: token.NewFileSet(), parents: map[ast.Node]ast.Node{},
				values: map[string]ast.Expr{}, calls: map[string][]*ast.CallExpr{}, funcs: map[string]function{},
			}
			folders[folder] = s
		}
		f, err := parser.ParseFile(s.fset, path, nil, parser.SkipObjectResolution)
		if err == nil {
			s.files = append(s.files, f)
		}
		return err
	})
	var out []*source
	for _, s := range folders {
		for _, f := range s.files {
			s.index(f)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *source) int { return strings.Compare(a.name, b.name) })
	return out, err
}

func (s *source) index(f *ast.File) {
	var stack []ast.Node
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		if len(stack) > 0 {
			s.parents[n] = stack[len(stack)-1]
		}
		stack = append(stack, n)
		switch n := n.(type) {
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok {
				s.calls[name.Name] = append(s.calls[name.Name], n)
			}
		case *ast.FuncDecl:
			s.funcs[n.Name.Name] = function{n.Type, n.Body}
		case *ast.AssignStmt:
			for i, v := range n.Rhs {
				name, ok := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident)
				if _, isList := v.(*ast.CompositeLit); ok && isList {
					s.values[name.Name] = v
				}
				lit, isFunc := v.(*ast.FuncLit)
				if ok && isFunc {
					s.funcs[name.Name] = function{lit.Type, lit.Body}
				}
			}
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) {
					s.values[name.Name] = n.Values[i]
				}
			}
		}
		return true
	})
}

// scope binds the parameters of a function to the arguments of one call.
type scope struct {
	args   map[string][]ast.Expr
	caller *scope
	site   ast.Node // the definition, or the call that leads to it
}

// prom returns the name of a member of package prometheus; "" for anything else.
func prom(e ast.Expr) string {
	if sel, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "prometheus" {
			return sel.Sel.Name
		}
	}
	return ""
}

// metrics are those that the package defines.
func (s *source) metrics() (out []metric, err error) {
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			var found []metric
			switch n := n.(type) {
			case *ast.CompositeLit:
				if strings.HasSuffix(prom(n.Type), "Opts") {
					found = s.each(n, func(in *scope) (metric, error) { return s.options(n, in) }, &err)
				}
			case *ast.CallExpr:
				if prom(n.Fun) == "NewDesc" {
					found = s.each(n, func(in *scope) (metric, error) { return s.desc(n, in) }, &err)
				}
			}
			out = append(out, found...)
			return err == nil
		})
	}
	return out, err
}

// each evaluates a definition once per call of the functions that it is in.
func (s *source) each(at ast.Node, define func(*scope) (metric, error), failed *error) (out []metric) {
	for _, in := range s.scopes(at) {
		m, err := define(in)
		if err == nil && m.kind == "" {
			err = fmt.Errorf("%s has no type that can be seen", m.name)
		}
		if err != nil {
			if *failed == nil {
				*failed = fmt.Errorf("%s: %w", s.fset.Position(at.Pos()), err)
			}
			return nil
		}
		m.pkg = s.name
		out = append(out, m)
	}
	return out
}

// scopes are the ways in which a node is reached, by calls of helpers in the package.
func (s *source) scopes(at ast.Node) []*scope {
	name, params := s.helper(at)
	if name == "" || len(s.calls[name]) == 0 {
		return []*scope{{site: at}}
	}
	var out []*scope
	for _, call := range s.calls[name] {
		for _, caller := range s.scopes(call) {
			out = append(out, bind(params, call, caller, at))
		}
	}
	return out
}

// bind gives the arguments of a call the names of the parameters.
func bind(params *ast.FieldList, call *ast.CallExpr, caller *scope, site ast.Node) *scope {
	in := &scope{args: map[string][]ast.Expr{}, caller: caller, site: site}
	i := 0
	for _, field := range params.List {
		for _, p := range field.Names {
			if _, rest := field.Type.(*ast.Ellipsis); rest {
				in.args[p.Name] = call.Args[min(i, len(call.Args)):]
			} else if i < len(call.Args) {
				in.args[p.Name] = call.Args[i : i+1]
			}
			i++
		}
	}
	return in
}

// helper is the innermost function around a node that has a string parameter, and
// so may be given a name.
func (s *source) helper(at ast.Node) (string, *ast.FieldList) {
	for n := s.parents[at]; n != nil; n = s.parents[n] {
		var name string
		var typ *ast.FuncType
		switch f := n.(type) {
		case *ast.FuncDecl:
			name, typ = f.Name.Name, f.Type
		case *ast.FuncLit:
			if assign, ok := s.parents[n].(*ast.AssignStmt); ok {
				if id, ok := assign.Lhs[0].(*ast.Ident); ok {
					name, typ = id.Name, f.Type
				}
			}
		}
		if typ == nil {
			continue
		}
		for _, field := range typ.Params.List {
			if t, ok := field.Type.(*ast.Ident); ok && t.Name == "string" {
				return name, typ.Params
			}
		}
	}
	return "", nil
}

func (s *source) options(lit *ast.CompositeLit, in *scope) (m metric, err error) {
	fields := map[string]string{}
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, ok := kv.Key.(*ast.Ident)
		if !ok || !slices.Contains([]string{"Namespace", "Subsystem", "Name", "Help"}, key.Name) {
			continue
		}
		if fields[key.Name], err = s.text(kv.Value, in); err != nil {
			return m, err
		}
	}
	m.name, m.help = join(fields["Namespace"], fields["Subsystem"], fields["Name"]), fields["Help"]
	m.kind = kindOf(prom(lit.Type))
	for at := in; at != nil; at = at.caller {
		for n := s.parents[at.site]; n != nil; n = s.parents[n] {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				break
			}
			name := prom(call.Fun)
			if m.kind == "" {
				m.kind = kindOf(name)
			}
			if strings.HasSuffix(name, "Vec") && len(call.Args) == 2 {
				if m.labels, err = s.list(call.Args[1], at); err != nil {
					return m, err
				}
			}
		}
	}
	return m, nil
}

func (s *source) desc(call *ast.CallExpr, in *scope) (m metric, err error) {
	if m.name, err = s.text(call.Args[0], in); err != nil {
		return m, err
	}
	if m.help, err = s.text(call.Args[1], in); err != nil {
		return m, err
	}
	if m.labels, err = s.list(call.Args[2], in); err != nil {
		return m, err
	}
	m.kind = s.kindOfDesc(s.variable(in))
	return m, nil
}

// variable is the name that a description is kept under.
func (s *source) variable(in *scope) string {
	for in.caller != nil {
		in = in.caller
	}
	for child, n := in.site, s.parents[in.site]; n != nil; child, n = n, s.parents[n] {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok {
				return id.Name
			}
		case *ast.ValueSpec:
			for i, v := range n.Values {
				if v == child {
					return n.Names[i].Name
				}
			}
		case *ast.FuncDecl, *ast.FuncLit:
			return ""
		}
	}
	return ""
}

// kindOfDesc is found where the description is used: by a value type next to it, or
// in the function that it is handed to. A description without a name of its own has
// the type that all of the package have.
func (s *source) kindOfDesc(variable string) string {
	kinds := map[string]bool{}
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || variable != "" && !slices.ContainsFunc(call.Args, func(e ast.Expr) bool { return isIdent(e, variable) }) {
				return true
			}
			kind := ""
			for _, e := range append(slices.Clone(call.Args), call.Fun) {
				if k := kindOf(prom(e)); k != "" && (strings.HasSuffix(prom(e), "Value") || e == call.Fun) {
					kind = k
				}
			}
			switch fun := call.Fun.(type) {
			case *ast.Ident:
				kind = cmp.Or(kind, s.kindWithin(fun.Name))
			case *ast.SelectorExpr:
				kind = cmp.Or(kind, s.kindWithin(fun.Sel.Name))
			}
			if kind != "" && (variable != "" || strings.HasPrefix(prom(call.Fun), "MustNewConst")) {
				kinds[kind] = true
			}
			return true
		})
	}
	if len(kinds) != 1 {
		return ""
	}
	for kind := range kinds {
		return kind
	}
	return ""
}

// kindWithin is the type of the samples that a function of the package makes.
func (s *source) kindWithin(function string) (kind string) {
	f, ok := s.funcs[function]
	if !ok || f.body == nil {
		return ""
	}
	ast.Inspect(f.body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !strings.HasPrefix(prom(call.Fun), "MustNewConst") {
			return true
		}
		kind = kindOf(prom(call.Fun))
		if len(call.Args) > 1 {
			kind = cmp.Or(kind, kindOf(prom(call.Args[1])))
		}
		return true
	})
	return kind
}

// isIdent reports whether an expression is a name, or a field or method of that name.
func isIdent(e ast.Expr, name string) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == name
	case *ast.SelectorExpr:
		return e.Sel.Name == name
	}
	return false
}

// kindOf reads the type of a metric from a name such as NewCounterVec.
func kindOf(name string) string {
	for _, kind := range []string{"Counter", "Gauge", "Histogram", "Summary"} {
		if strings.Contains(name, kind) {
			return strings.ToLower(kind)
		}
	}
	return ""
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "_")
}

// text evaluates a string.
func (s *source) text(e ast.Expr, in *scope) (string, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(e.Value)
	case *ast.ParenExpr:
		return s.text(e.X, in)
	case *ast.BinaryExpr:
		a, err := s.text(e.X, in)
		if err != nil {
			return "", err
		}
		b, err := s.text(e.Y, in)
		return a + b, err
	case *ast.Ident:
		if args := in.args[e.Name]; len(args) == 1 {
			return s.text(args[0], in.caller)
		}
		if v := s.values[e.Name]; v != nil {
			return s.text(v, &scope{})
		}
	case *ast.CallExpr:
		if prom(e.Fun) == "BuildFQName" {
			parts := make([]string, len(e.Args))
			for i, a := range e.Args {
				var err error
				if parts[i], err = s.text(a, in); err != nil {
					return "", err
				}
			}
			return join(parts...), nil
		}
	}
	return "", fmt.Errorf("%s: not a string that can be read from the source", s.fset.Position(e.Pos()))
}

// list evaluates labels.
func (s *source) list(e ast.Expr, in *scope) ([]string, error) {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return s.texts(e.Elts, in)
	case *ast.Ident:
		args, bound := in.args[e.Name]
		switch {
		case e.Name == "nil":
			return nil, nil
		case bound && len(args) == 1 && !isText(args[0]):
			return s.list(args[0], in.caller)
		case bound:
			return s.texts(args, in.caller)
		case s.values[e.Name] != nil:
			return s.list(s.values[e.Name], &scope{})
		}
	case *ast.CallExpr:
		name, _ := e.Fun.(*ast.Ident)
		if name != nil && name.Name == "append" && len(e.Args) == 2 {
			first, err := s.list(e.Args[0], in)
			if err != nil {
				return nil, err
			}
			rest := func() ([]string, error) { return s.texts(e.Args[1:], in) }
			if e.Ellipsis.IsValid() {
				rest = func() ([]string, error) { return s.list(e.Args[1], in) }
			}
			second, err := rest()
			return append(first, second...), err
		}
		if name == nil || s.funcs[name.Name].body == nil || len(s.funcs[name.Name].body.List) != 1 {
			break
		}
		f := s.funcs[name.Name]
		if ret, ok := f.body.List[0].(*ast.ReturnStmt); ok && len(ret.Results) == 1 {
			return s.list(ret.Results[0], bind(f.typ.Params, e, in, e))
		}
	}
	return nil, fmt.Errorf("%s: not a list of labels that can be read from the source", s.fset.Position(e.Pos()))
}

func (s *source) texts(all []ast.Expr, in *scope) (out []string, err error) {
	for _, e := range all {
		text, err := s.text(e, in)
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

func isText(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING
}
