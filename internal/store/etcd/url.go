package etcd

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// defaultPrefix of the keys of a state.
const defaultPrefix = "/proxima/"

// target is where the state is, as parsed from a URL.
type target struct {
	endpoints []string
	tls       *tls.Config // nil: no encryption
	prefix    string      // of all keys; ends with a slash
	label     string      // names the state in errors and logs
}

// parse reads etcd://HOST:PORT,…?cacert=FILE&cert=FILE&key=FILE&prefix=NAME. It
// reads the certificates' files; they are read again for each new connection.
func parse(raw string) (target, error) {
	rest, ok := strings.CutPrefix(raw, "etcd://")
	if !ok {
		return target{}, &URLError{Reason: "it must begin with etcd://"}
	}
	hosts, query, _ := strings.Cut(rest, "?")
	if strings.Contains(hosts, "@") {
		return target{}, &URLError{Reason: "users and passwords are not supported; use client certificates (cert=FILE&key=FILE)"}
	}
	values, err := url.ParseQuery(strings.ReplaceAll(query, "+", "%2B")) // a plus in a path is a plus
	if err != nil {
		return target{}, &URLError{Reason: "malformed parameters: " + err.Error()}
	}
	for name, all := range values {
		switch name {
		case "cacert", "cert", "key", "prefix":
		default:
			return target{}, &URLError{Reason: fmt.Sprintf("unknown parameter %q; there are cacert, cert, key and prefix", name)}
		}
		if len(all) > 1 || all[0] == "" {
			return target{}, &URLError{Reason: name + " must be given once and not be empty"}
		}
	}
	var t target
	if t.prefix, err = parsePrefix(values); err != nil {
		return target{}, err
	}
	if t.tls, err = parseTLS(values); err != nil {
		return target{}, err
	}
	scheme := "http"
	if t.tls != nil {
		scheme = "https"
	}
	for host := range strings.SplitSeq(strings.TrimSuffix(hosts, "/"), ",") {
		name, port, err := net.SplitHostPort(host)
		if err != nil || name == "" || port == "" || strings.ContainsAny(host, "/ ") {
			return target{}, &URLError{Reason: fmt.Sprintf("%q is no HOST:PORT; several are separated by commas", host)}
		}
		t.endpoints = append(t.endpoints, scheme+"://"+host)
	}
	t.label = "etcd://" + strings.TrimSuffix(hosts, "/")
	if t.prefix != defaultPrefix {
		t.label += "?prefix=" + t.prefix
	}
	return t, nil
}

func parsePrefix(values url.Values) (string, error) {
	prefix := values.Get("prefix")
	switch {
	case prefix == "":
		return defaultPrefix, nil
	case strings.Trim(prefix, "/") == "":
		return "", &URLError{Reason: "prefix must have a name, as in prefix=/proxima-test/"}
	}
	return strings.TrimSuffix(prefix, "/") + "/", nil
}

func parseTLS(values url.Values) (*tls.Config, error) {
	info := transport.TLSInfo{TrustedCAFile: values.Get("cacert"), CertFile: values.Get("cert"), KeyFile: values.Get("key")}
	switch {
	case info.TrustedCAFile == "" && info.CertFile == "" && info.KeyFile == "":
		return nil, nil
	case (info.CertFile == "") != (info.KeyFile == ""):
		return nil, &URLError{Reason: "cert and key come together"}
	}
	config, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("certificates of the etcd URL: %w", err)
	}
	return config, nil
}

// local reports that no connection leaves the machine.
func (t target) local() bool {
	for _, endpoint := range t.endpoints {
		host, _, _ := net.SplitHostPort(strings.TrimPrefix(endpoint, "http://"))
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}
