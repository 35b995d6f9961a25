package apiserver

import (
	"net/http"
	"strings"
)

// Handle serves a path that is not of the Kubernetes API, behind authentication and
// authorization; a path that ends in "/" stands for all below it. To be called before
// Run. A path that is served already is a programming error, and panics.
func (s *Server) Handle(path string, handler http.Handler) {
	if strings.HasSuffix(path, "/") {
		s.generic.Handler.NonGoRestfulMux.HandlePrefix(path, handler)
		return
	}
	s.generic.Handler.NonGoRestfulMux.Handle(path, handler)
}
