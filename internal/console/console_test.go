package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func serve(t *testing.T, method, path string, header ...string) *http.Response {
	t.Helper()
	h, err := New()
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestHandler(t *testing.T) {
	for _, c := range []struct {
		method, path string
		code         int
		contentType  string
	}{
		{"GET", "/console/", 200, "text/html; charset=utf-8"},
		{"GET", "/console", 308, ""},
		{"HEAD", "/console/console.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/console/console.css", 200, "text/css; charset=utf-8"},
		{"GET", "/console/LICENSES.txt", 200, "text/plain; charset=utf-8"},
		{"GET", "/console/../console.go", 404, "text/plain; charset=utf-8"},
		{"GET", "/console/session", 200, "application/json"},
		{"GET", "/console/none.js", 404, "text/plain; charset=utf-8"},
		{"POST", "/console/", 405, "text/plain; charset=utf-8"},
	} {
		resp := serve(t, c.method, c.path)
		if resp.StatusCode != c.code || resp.Header.Get("Content-Type") != c.contentType {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, resp.StatusCode, resp.Header.Get("Content-Type"), c.code, c.contentType)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": Policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s %s: %s: %q, want %q", c.method, c.path, name, got, want)
			}
		}
	}
}

func TestCompressed(t *testing.T) {
	resp := serve(t, "GET", "/console/console.js", "Accept-Encoding", "gzip, br")
	r, err := gzip.NewReader(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := io.ReadAll(serve(t, "GET", "/console/console.js").Body)
	if !bytes.Equal(got, want) {
		t.Error("compressed and plain bytes differ")
	}
	again := serve(t, "GET", "/console/console.js", "If-None-Match", resp.Header.Get("ETag"))
	if again.StatusCode != http.StatusNotModified {
		t.Errorf("known file: %d", again.StatusCode)
	}
}

// TestBudget: a page that is first opened over a slow link is there at once.
func TestBudget(t *testing.T) {
	h, err := New()
	if err != nil {
		t.Fatal(err)
	}
	raw, zipped := 0, 0
	for name, f := range h.files {
		if strings.HasSuffix(name, ".js") || strings.HasSuffix(name, ".css") {
			raw, zipped = raw+len(f.plain), zipped+len(f.zipped)
		}
	}
	t.Logf("JS and CSS: %d bytes, %d compressed", raw, zipped)
	if raw == 0 || raw > 200_000 || zipped > 70_000 {
		t.Errorf("JS and CSS: %d bytes, %d compressed; limits 200,000 and 70,000", raw, zipped)
	}
}

// TestCurrent: the files are bundled from the sources as they are. What exactly is bundled is compared in tools/console.
func TestCurrent(t *testing.T) {
	sum, dir := sha256.New(), filepath.Join("..", "..", "web")
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", filepath.ToSlash(name), len(data))
		sum.Write(data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	committed, err := dist.ReadFile("dist/sources.sha256")
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != strings.TrimSpace(string(committed)) {
		t.Error("web was changed since its files were bundled: make gen, or go run . in tools/console")
	}
}

// TestPages: the policy lets nothing run that is not a file of its own.
func TestPages(t *testing.T) {
	body, err := io.ReadAll(serve(t, "GET", "/console/").Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"style=", "<style", "onload", "onclick", "http:", "https:", "data:"} {
		if bytes.Contains(bytes.ToLower(body), []byte(word)) {
			t.Errorf("index.html has %q", word)
		}
	}
}
