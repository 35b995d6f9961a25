package apiserver

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
)

// TestOpenAPIIsBuiltForItsFirstRequest: a server that nobody asked has no documents, requests
// at the same time share them, and all paths lead to them.
func TestOpenAPIIsBuiltForItsFirstRequest(t *testing.T) {
	c := genericapiserver.NewConfig(serializer.NewCodecFactory(runtime.NewScheme()))
	configureOpenAPI(c, apiopenapi.NewDefinitionNamer(runtime.NewScheme()))
	if !c.SkipOpenAPIInstallation {
		t.Error("upstream builds the documents at the start")
	}
	var installed atomic.Int32
	h := onFirstRequest(func(to *mux.PathRecorderMux) {
		installed.Add(1)
		to.HandleFunc("/openapi/v3", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
		to.HandlePrefix("/openapi/v3/", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	})
	if n := installed.Load(); n != 0 {
		t.Errorf("built %d times without a request", n)
	}
	var requests sync.WaitGroup
	for path, want := range map[string]int{"/openapi/v3": 202, "/openapi/v3/api/v1": 204, "/openapi/v2": 404} {
		for range 4 {
			requests.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
				if w.Code != want {
					t.Errorf("%s: %d, want %d", path, w.Code, want)
				}
			})
		}
	}
	requests.Wait()
	if n := installed.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
}
