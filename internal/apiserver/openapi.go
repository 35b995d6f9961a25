package apiserver

import (
	"net/http"
	"strings"
	"sync"

	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/proxima-mesh/proxima/internal/apiserver/openapi"
)

// configureOpenAPI sets what the documents of /openapi are built of. Upstream would build them
// at the start, and keep almost half of an idle server's heap for them.
func configureOpenAPI(c *genericapiserver.Config, namer *apiopenapi.DefinitionNamer) {
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	c.OpenAPIConfig.Info.Title = "Proxima"
	name := definitionName(namer)
	none := func(common.ReferenceCallback) map[string]common.OpenAPIDefinition { return nil }
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(none, namer)
	c.OpenAPIV3Config.GetDefinitions = openapi.GetOpenAPIDefinitions
	c.OpenAPIV3Config.Definitions = openapi.GetOpenAPIDefinitions(func(path string) spec.Ref {
		model, _ := name(path)
		return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(model))
	})
	c.OpenAPIV3Config.Info.Title = "Proxima"
	c.OpenAPIConfig.GetDefinitionName, c.OpenAPIV3Config.GetDefinitionName = name, name
	c.SkipOpenAPIInstallation = true
}

// definitionName finds the types of the Gateway API, too: they have no model names of their own, so
// that their definitions are under their Go packages, and a scheme knows them by another form of that.
func definitionName(namer *apiopenapi.DefinitionNamer) func(string) (string, spec.Extensions) {
	return func(name string) (string, spec.Extensions) {
		if strings.Contains(name, "/") {
			name = util.ToRESTFriendlyName(name)
		}
		return namer.GetDefinitionName(name)
	}
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
