package app

import (
	"net/http"
	"strings"

	"github.com/proxima-mesh/proxima/internal/console"
)

// serveConsole adds the files of the web console, unless they are not wanted.
func (cfg *ControlPlaneConfig) serveConsole(handle func(path string, h http.Handler)) {
	if cfg.NoConsole {
		return
	}
	pages, err := console.New()
	if err != nil { // files that are part of the program
		orDiscard(cfg.Logger).Error("the console is not served", "error", err)
		return
	}
	handle(strings.TrimSuffix(console.Path, "/"), pages)
	handle(console.Path, pages)
}
