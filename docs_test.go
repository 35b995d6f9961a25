package proxima_test

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fence    = regexp.MustCompile("(?ms)^```.*?^```")
	mdLink   = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]+)\)`)
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	// goName is an identifier, or several with dots: Mode, choose.Choose, Queue.Run.
	goName = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)
)

// TestDocLinks: every relative link of a page leads to a file, and a link such as
// [`choose.Choose`](internal/proxy/choose/choose.go) to a declaration in it.
func TestDocLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, link := range mdLink.FindAllStringSubmatch(prose(t, page), -1) {
			text, target := link[1], link[2]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			if path == "" {
				path = page
			} else {
				path = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", page, target)
				continue
			}
			if anchor != "" && strings.HasSuffix(path, ".md") && !slices.Contains(anchors(t, path), anchor) {
				t.Errorf("%s: %s has no heading #%s", page, path, anchor)
			}
			name := strings.Trim(text, "`")
			if strings.HasSuffix(path, ".go") && name != text && goName.MatchString(name) && !declares(t, path, name) {
				t.Errorf("%s: %s does not declare %s", page, path, name)
			}
		}
	}
}

// TestAnswersAreInArchitecture: a reader who begins with docs/ARCHITECTURE.md finds
// the answers of CONTRIBUTING.md there: the first link of each.
func TestAnswersAreInArchitecture(t *testing.T) {
	linked := map[string]bool{}
	for _, link := range mdLink.FindAllStringSubmatch(prose(t, "docs/ARCHITECTURE.md"), -1) {
		linked[linkTarget("docs/ARCHITECTURE.md", link[2])] = true
	}
	_, section, found := strings.Cut(prose(t, "CONTRIBUTING.md"), "\n## Where is …?\n")
	if !found {
		t.Fatal("CONTRIBUTING.md has no section \"Where is …?\"")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	answers := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasSuffix(strings.TrimSpace(cells[1]), "?") {
			continue
		}
		answers++
		question := strings.TrimSpace(cells[1])
		link := mdLink.FindStringSubmatch(strings.Join(cells[2:], "|"))
		if link == nil {
			t.Errorf("%q has no link", question)
			continue
		}
		if target := linkTarget("CONTRIBUTING.md", link[2]); !linked[target] {
			t.Errorf("%q: docs/ARCHITECTURE.md has no link to %s", question, target)
		}
	}
	if answers < 12 {
		t.Errorf("%d questions, want twelve", answers)
	}
}

// linkTarget of a link in a page, from the root: PATH or PATH#ANCHOR.
func linkTarget(page, link string) string {
	path, anchor, found := strings.Cut(link, "#")
	if path == "" {
		path = page
	} else {
		path = filepath.ToSlash(filepath.Join(filepath.Dir(page), path))
	}
	if !found {
		return path
	}
	return path + "#" + anchor
}

// TestDesignNames: what the pages for contributors set as code and looks like a Go
// file, or like a Go name with a capital, is in the source. Names without a capital
// may be another system's: kernel parameters, domains, programs.
func TestDesignNames(t *testing.T) {
	words := sourceWords(t)
	for _, page := range pages(t) {
		if filepath.Base(page) != "DESIGN.md" && page != "docs/ARCHITECTURE.md" && page != "CONTRIBUTING.md" {
			continue
		}
		for _, span := range codeSpan.FindAllStringSubmatch(prose(t, page), -1) {
			name := span[1]
			switch {
			case strings.HasSuffix(name, ".go"):
				if !sourceFile(page, name) {
					t.Errorf("%s: there is no file %s", page, name)
				}
			case goName.MatchString(name) && strings.ToLower(name) != name:
				for part := range strings.SplitSeq(name, ".") {
					if !words[part] {
						t.Errorf("%s: `%s`: %s is nowhere in the source", page, name, part)
					}
				}
			}
		}
	}
}

// pages of documentation in the repository.
func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	walkFiles(t, func(path string) {
		if strings.HasSuffix(path, ".md") {
			out = append(out, path)
		}
	})
	return out
}

func walkFiles(t *testing.T, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || path == "bin" || path == "dist"):
			return filepath.SkipDir
		case !d.IsDir():
			visit(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// prose is a page without its blocks of code.
func prose(t *testing.T, page string) string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return fence.ReplaceAllString(string(data), "")
}

// anchors of a page's headings, as GitHub makes them.
func anchors(t *testing.T, page string) []string {
	t.Helper()
	var out []string
	for line := range strings.SplitSeq(prose(t, page), "\n") {
		heading := strings.TrimLeft(line, "#")
		if heading == line || !strings.HasPrefix(heading, " ") {
			continue
		}
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(strings.TrimSpace(heading)))
		out = append(out, slug)
	}
	return out
}

// declares tells whether a Go file declares a name: the last part of it on the
// top level, or as a method or field of the part before.
func declares(t *testing.T, path, name string) bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := name[strings.LastIndex(name, ".")+1:]
	found := false
	ast.Inspect(file, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			found = found || d.Name.Name == want
			return false
		case *ast.TypeSpec:
			found = found || d.Name.Name == want
		case *ast.ValueSpec:
			found = found || slices.ContainsFunc(d.Names, func(i *ast.Ident) bool { return i.Name == want })
		case *ast.Field:
			found = found || slices.ContainsFunc(d.Names, func(i *ast.Ident) bool { return i.Name == want })
		}
		return !found
	})
	return found
}

// sourceFile: a page may name a file from its own folder, from the root, from
// internal/, or by the end of its path below its folder (pages at the root and in
// docs/: below internal/).
func sourceFile(page, name string) bool {
	dir := filepath.Dir(page)
	for _, path := range []string{filepath.Join(dir, name), name, filepath.Join("internal", name)} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	found := false
	if dir == "docs" || dir == "." {
		dir = "internal"
	}
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error {
		found = found || strings.HasSuffix(path, "/"+name)
		return nil
	})
	return found
}

// sourceWords are the identifiers and package names of the Go source, and the
// words of its string literals (commands, options, kernel names).
func sourceWords(t *testing.T) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	word := regexp.MustCompile(`\w+`)
	walkFiles(t, func(path string) {
		if filepath.Base(path) == "Makefile" || strings.HasSuffix(path, ".proto") {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range word.FindAllString(string(data), -1) {
				words[w] = true
			}
		}
		if !strings.HasSuffix(path, ".go") {
			return
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		words[filepath.Base(filepath.Dir(path))] = true
		var s scanner.Scanner
		s.Init(token.NewFileSet().AddFile(path, -1, len(data)), data, nil, 0)
		for {
			_, tok, text := s.Scan()
			switch tok {
			case token.EOF:
				return
			case token.IDENT:
				words[text] = true
			case token.STRING:
				for _, w := range word.FindAllString(text, -1) {
					words[w] = true
				}
			default:
				if tok.IsKeyword() {
					words[tok.String()] = true
				}
			}
		}
	})
	return words
}
