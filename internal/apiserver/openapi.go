package apiserver

import (
	"net/http"
	"sync"

	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"

	"github.com/proxima-mesh/proxima/internal/apiserver/openapi"
)

// configureOpenAPI sets what the documents of /openapi are built of. Upstream would build them
// at the start, and keep almost half of an idle server's heap for them.
func configureOpenAPI(c *genericapiserver.Config, namer *apiopenapi.DefinitionNamer) {
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	c.OpenAPIConfig.Info.Title = "Proxima"
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	c.OpenAPIV3Config.Info.Title = "Proxima"
	c.SkipOpenAPIInstallation = true
}

// installOpenAPI serves the documents of c at /openapi/v2 and /openapi/v3. It comes after
// the kinds: each version is built of their routes for its first request.
func (s *Server) installOpenAPI(c *genericapiserver.Config) {
	// Field management was made of the definitions already; without them they are made again.
	c.OpenAPIV3Config.Definitions = nil
	container, handlers := s.generic.Handler.GoRestfulContainer, s.generic.Handler.NonGoRestfulMux
	handlers.Handle("/openapi/v2", onFirstRequest(func(to *mux.PathRecorderMux) {
		routes.OpenAPI{Config: c.OpenAPIConfig}.InstallV2(container, to)
	}))
	v3 := onFirstRequest(func(to *mux.PathRecorderMux) {
		routes.OpenAPI{V3Config: c.OpenAPIV3Config}.InstallV3(container, to)
	})
	handlers.Handle("/openapi/v3", v3)
	handlers.HandlePrefix("/openapi/v3/", v3)
}

// onFirstRequest is a handler that is installed once there is a request for it. Requests of
// that time wait.
func onFirstRequest(install func(*mux.PathRecorderMux)) http.Handler {
	made := sync.OnceValue(func() http.Handler {
		to := mux.NewPathRecorderMux("openapi")
		install(to)
		return to
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { made().ServeHTTP(w, r) })
}
