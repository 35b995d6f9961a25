package listener

import (
	"net/http"
	"time"
)

// HTTPServer is a server for small questions, such as health and metrics, that
// ends connections which are slow or idle. Over loopback it answers those alone that name this
// machine (421 otherwise), so that pages of a browser cannot read it. The caller serves and closes it.
func HTTPServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           ownHost(handler),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      time.Minute,
		// Longer than the usual interval between two scrapes or probes is of no use.
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
}
