package app

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/console"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestConsoleFiles: anybody gets the files of the console, with their headers, and nobody where they are not wanted.
func TestConsoleFiles(t *testing.T) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(client.CloseIdleConnections)
	for _, without := range []bool{false, true} {
		cfg := planeConfig(t, RoleStandalone)
		cfg.NoConsole = without
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan Serving, 1), make(chan error, 1)
		go func() { done <- RunControlPlane(ctx, cfg, func(s Serving) { ready <- s }) }()
		var api string
		select {
		case s := <-ready:
			api = s.API
		case <-time.After(testkit.Timeout):
			t.Fatal("the control plane does not become ready")
		}
		resp, err := client.Get(api + "/console/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case without && resp.StatusCode != http.StatusNotFound:
			t.Errorf("--console=false: %d", resp.StatusCode)
		case !without && (resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "console.js")):
			t.Errorf("without credentials: %d %s", resp.StatusCode, body)
		case !without && (resp.Header.Get("Content-Security-Policy") != console.Policy || resp.Header.Get("Cross-Origin-Opener-Policy") != "same-origin"):
			t.Errorf("headers: %v", resp.Header)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
