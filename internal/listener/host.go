package listener

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// ownHost passes requests over loopback on if their Host is an address or a name of this
// machine. Pages of a browser on this machine can reach loopback under a name of their own that
// resolves to it (DNS rebinding), and would read what is there.
func ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if at != nil && isLoopback(at) && !isOwn(r.Host) {
			http.Error(w, "the Host header names another machine: use the address, or localhost", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLoopback(at net.Addr) bool {
	tcp, ok := at.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// isOwn reports whether a Host header, with a port or without, is an address or a name of this
// machine. HTTP/1.0 has none.
func isOwn(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	own, err := os.Hostname()
	return err == nil && strings.EqualFold(own, host)
}
