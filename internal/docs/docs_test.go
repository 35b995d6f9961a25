package docs

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	proxima "github.com/proxima-mesh/proxima"
)

func site(t *testing.T) *Site {
	t.Helper()
	s, err := New(proxima.Documentation, "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSite: each page has a title and a summary, is in the menu of the others, and its links and those to places in pages lead somewhere.
func TestSite(t *testing.T) {
	s := site(t)
	files, err := s.Files()
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]map[string]bool{}
	id := regexp.MustCompile(` id="([^"]*)"`)
	for name, data := range files {
		if strings.HasSuffix(name, ".html") {
			anchors[name] = map[string]bool{}
			for _, m := range id.FindAllStringSubmatch(string(data), -1) {
				anchors[name][m[1]] = true
			}
		}
	}
	link := regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	for _, p := range s.Pages {
		if p.Title == "" || p.Summary == "" {
			t.Errorf("%s: title %q, summary %q", p.Path, p.Title, p.Summary)
		}
		name := p.Path + ".html"
		if bytes.Contains(files[name], []byte("not run:")) {
			t.Errorf("%s: shows what is for tests alone", name)
		}
		for _, m := range link.FindAllStringSubmatch(string(files[name]), -1) {
			target := strings.ReplaceAll(m[1], "&amp;", "&")
			if strings.Contains(target, ":") {
				continue
			}
			to, anchor, _ := strings.Cut(target, "#")
			if to = filepath.Join(filepath.Dir(name), to); target[0] == '#' {
				to = name
			}
			if _, ok := files[to]; !ok {
				t.Errorf("%s: the link %s leads nowhere", name, target)
			} else if anchor != "" && !anchors[to][anchor] {
				t.Errorf("%s: %s has no place #%s", name, to, anchor)
			}
		}
	}
	if n := len(files["index.json"]); n > 300_000 {
		t.Errorf("the index of the search has %d bytes, of 300,000", n)
	}
	again, err := site(t).Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		if !bytes.Equal(data, again[name]) {
			t.Errorf("%s is another one the second time", name)
		}
	}
}

// TestSearch: questions in the words of users find their page among the first three.
func TestSearch(t *testing.T) {
	s := site(t)
	data, err := os.ReadFile(filepath.Join("testdata", "questions.txt")) // which test/console asks in a browser
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		question, want, _ := strings.Cut(strings.TrimSpace(line), "\t")
		var got []string
		for _, f := range s.Search(question, 3) {
			got = append(got, f.Path)
		}
		if !strings.Contains(" "+strings.Join(got, " ")+" ", " "+want+" ") {
			t.Errorf("%q finds %v, not %s", question, got, want)
		}
	}
	if got := s.Search("zzzz qqqq", 3); len(got) != 0 {
		t.Errorf("words of no page find %v", got)
	}
}

// TestHostilePage: what a page says is text, never markup of its own.
func TestHostilePage(t *testing.T) {
	s, err := New(fstest.MapFS{"README.md": {Data: []byte("# A <b>title</b> & `x<y`\n\n<script>alert(1)</script>\n\n[l](javascript:alert(1)) <img src=x onerror=y>\n\n## One\n\n## One\n")}}, "v1")
	if err != nil {
		t.Fatal(err)
	}
	data, err := s.HTML(s.Pages[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, never := range []string{"<script>alert", "javascript:alert", "onerror=y>", "<b>title"} {
		if bytes.Contains(data, []byte(never)) {
			t.Errorf("the page has %s:\n%s", never, data)
		}
	}
	for _, want := range []string{`id="one"`, `id="one-1"`} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if _, err := New(fstest.MapFS{"README.md": {Data: []byte("no title\n")}}, "v1"); err == nil {
		t.Error("a page without a title is taken")
	}
}

// TestServe: pages, and names that are nearly theirs; nothing else.
func TestServe(t *testing.T) {
	h, err := site(t).Handler()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/": http.StatusFound, "/index.html": 200, "/how-to/backup.html": 200, "/how-to/backup": http.StatusFound, "/backup": http.StatusFound, "/docs.css": 200,
		"/index.json": 200, "/../go.mod": 404, "/no-such-page": 404, "/concepts/img/": 404,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://x"+path, nil))
		if w.Code != want || w.Header().Get("Content-Security-Policy") == "" {
			t.Errorf("%s answers %d, want %d", path, w.Code, want)
		}
	}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/index.html", nil)); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST answers %d", w.Code)
	}
}

// TestExport: the site is below a folder of its version, and may be written again.
func TestExport(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		to, err := site(t).Export(dir)
		if err != nil || to != filepath.Join(dir, "v1.2.3") {
			t.Fatalf("%s, %v", to, err)
		}
	}
	var index struct{ Pages [][4]string }
	data, err := os.ReadFile(filepath.Join(dir, "v1.2.3", "index.json"))
	if err != nil || json.Unmarshal(data, &index) != nil {
		t.Fatal(err)
	}
	for _, p := range index.Pages {
		if _, err := fs.Stat(os.DirFS(dir), "v1.2.3/"+p[0]+".html"); err != nil {
			t.Error(err)
		}
	}
}
