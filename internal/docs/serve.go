package docs

import (
	"bytes"
	"net/http"
	"path"
	"strings"
	"time"
)

// Markdown of the page, as it was written. It must not be changed.
func (p *Page) Markdown() []byte { return p.source }

// policy of content, as of the console: nothing but what this server has.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Handler serves the site.
func (s *Site) Handler() (http.Handler, error) {
	files, err := s.Files()
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/")
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "only GET is answered here", http.StatusMethodNotAllowed)
			return
		}
		if name == "" {
			http.Redirect(w, r, "/"+Home+".html", http.StatusFound)
			return
		}
		data, ok := files[name]
		if !ok {
			if p, there := s.Page(name); there {
				http.Redirect(w, r, "/"+p.Path+".html", http.StatusFound)
				return
			}
			http.Error(w, "there is no page of this name; the first one is /"+Home+".html", http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, path.Base(name), time.Time{}, bytes.NewReader(data))
	}), nil
}
