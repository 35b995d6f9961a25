package proxima_test

import (
	"go/scanner"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// inText is a page of the documentation that a text names: "proxima docs PAGE", or a file of docs, with a section perhaps.
var inText = regexp.MustCompile(`(proxima docs |docs/)((?:tutorials|how-to|concepts|reference|compared)/[\w.-]*\w)(#[\w-]+)?`)

// TestTextsNamePages: each page that an error, a hint or a help text names is in the documentation of the binary. Texts
// name it by the command that shows it, as who reads them may have no copy of the repository.
func TestTextsNamePages(t *testing.T) {
	s, found := embedded(t), 0
	walkFiles(t, func(path string) {
		product := strings.HasPrefix(path, "cmd/") || strings.HasPrefix(path, "internal/") || strings.HasPrefix(path, "api/")
		if !product || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "zz_generated") {
			return
		}
		for _, text := range literals(t, path) {
			for _, m := range inText.FindAllStringSubmatch(text, -1) {
				found++
				page, anchor := m[2], strings.TrimPrefix(m[3], "#")
				switch {
				case strings.HasSuffix(page, ".yaml"):
					if _, err := os.Stat("docs/" + page); err != nil {
						t.Errorf("%s: %q names a file that is not there", path, text)
					}
				case !s.has(page, anchor):
					t.Errorf("%s: %q names %s, which \"proxima docs\" does not have", path, text, m[0])
				case m[1] == "docs/" && !strings.Contains(text, runbooks):
					t.Errorf("%s: %q names a file: write \"proxima docs %s\"", path, text, strings.TrimSuffix(page, ".md"))
				}
			}
		}
	})
	if found < 10 {
		t.Errorf("%d texts name a page: they are not recognised", found)
	}
}

// literals are the texts of a Go file.
func literals(t *testing.T, path string) (out []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile(path, -1, len(data)), data, nil, 0)
	for {
		_, tok, text := s.Scan()
		if tok == token.EOF {
			return out
		}
		if tok == token.STRING {
			if text, err = strconv.Unquote(text); err == nil {
				out = append(out, text)
			}
		}
	}
}
