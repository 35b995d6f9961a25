package admin

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// FuzzExplain: no question makes the server fail.
func FuzzExplain(f *testing.F) {
	handlers := Handlers(plannedWorld(f))
	paths := []string{ExplainServicePath, SimulatePath}
	for _, seed := range []string{
		"namespace=shop&name=web", "namespace=shop&name=web&zone=a", "namespace=shop&name=web&node=node-b", "namespace=shop&name=headless",
		"name=../x&zone=%00", "failZone=a&failZone=b", "endpoints=shop/web:a:%2B3", "demand=shop/web:a:x2.5", "demand=shop/web:a:xNaN",
		"endpoints=shop/web:a:%2B999999999999", "top=-1", "top=3&price=EUR:0.01:0.09", "bytes=shop/web:1e300", "shiftZone=a&shiftNode=node-b",
	} {
		f.Add(uint8(0), seed)
		f.Add(uint8(1), seed)
	}
	f.Fuzz(func(t *testing.T, which uint8, query string) {
		path := paths[int(which)%len(paths)]
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.URL = &url.URL{Path: path, RawQuery: query}
		handlers[path].ServeHTTP(w, r)
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%s?%s: %d %s", path, query, w.Code, w.Body)
		}
	})
}
