package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
)

//go:embed dist
var dist embed.FS

const (
	// Path below which the pages are served.
	Path = "/console/"
	// Policy is the Content-Security-Policy of each answer: files of the same origin alone, no inline script or style, and no text
	// that becomes markup.
	Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
		"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)

// SetHeaders that each answer has which a browser may show, of pages and of data.
func SetHeaders(h http.Header) {
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// types of files by the ends of their names. A file of another type is not served.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

type file struct {
	contentType, tag string
	plain, zipped    []byte
}

// Handler serves the pages. Make it with New.
type Handler struct{ files map[string]file }

// New compresses the files once.
func New() (*Handler, error) {
	h := &Handler{files: map[string]file{}}
	err := fs.WalkDir(dist, "dist", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, "dist/")
		contentType := types[name[max(0, strings.LastIndexByte(name, '.')):]]
		if contentType == "" {
			return nil
		}
		data, err := dist.ReadFile(path)
		if err != nil {
			return err
		}
		var zipped bytes.Buffer
		w, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
		if err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		h.files[name] = file{contentType, `"` + hex.EncodeToString(sum[:12]) + `"`, data, zipped.Bytes()}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("files of the console: %w", err)
	}
	return h, nil
}

// ServeHTTP implements http.Handler, for Path and what is below it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	SetHeaders(w.Header())
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the files of the console are read only", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path+"/" == Path {
		w.Header().Set("Location", Path)
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, Path)
	if name == "" {
		name = "index.html"
	}
	if name == "session" {
		// The loopback listener of "proxima console" has sessions. Here the API itself asks for credentials.
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = io.WriteString(w, `{"direct": true}`+"\n") // the client may be gone
		return
	}
	f, ok := h.files[name]
	if !ok || !strings.HasPrefix(r.URL.Path, Path) {
		http.Error(w, "the console has no such file", http.StatusNotFound)
		return
	}
	head := w.Header()
	head.Set("Content-Type", f.contentType)
	// A new version of the program has new files under the same names.
	head.Set("Cache-Control", "no-cache")
	head.Set("Vary", "Accept-Encoding")
	head.Set("ETag", f.tag)
	data := f.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		head.Set("Content-Encoding", "gzip")
		data = f.zipped
	}
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	head.Set("Content-Length", fmt.Sprint(len(data)))
	if r.Method == http.MethodHead {
		return
	}
	_, _ = w.Write(data) // the client may be gone
}
