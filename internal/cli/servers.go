package cli

import (
	"net"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// addServerFlag adds --server, which takes several addresses.
func addServerFlag(f *pflag.FlagSet, servers *[]string, also string) {
	f.StringSliceVar(servers, "server", nil, "control plane's API, HOST:PORT; several, separated by commas or repeated, for several instances"+also)
}

// parseServers checks the addresses of --server, and drops what is there twice.
func parseServers(texts []string) ([]string, error) {
	var out []string
	for _, text := range texts {
		server := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(text), "https://"), "/")
		if host, port, err := net.SplitHostPort(server); err != nil || host == "" || port == "" {
			return nil, usagef("--server %q: want HOST:PORT of the control plane's API", text)
		}
		if !slices.Contains(out, server) {
			out = append(out, server)
		}
	}
	return out, nil
}
