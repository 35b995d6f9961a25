package mirror

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// Address of a registry: SCHEME[+tls]://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/PATH]. The schemes are nacos, eureka and
// zk (or zookeeper).
type Address struct {
	Protocol registry.Protocol
	TLS      bool
	// Servers as HOST:PORT.
	Servers []string
	// Path is the root in a ZooKeeper, or that of Eureka's service URL; empty: none is named.
	Path               string
	Username, Password string
}

// schemes of addresses, with their usual ports.
var schemes = map[string]struct {
	protocol registry.Protocol
	port     string
}{
	"nacos":     {registry.Nacos, "8848"},
	"eureka":    {registry.Eureka, "8761"},
	"zk":        {registry.ZooKeeper, "2181"},
	"zookeeper": {registry.ZooKeeper, "2181"},
}

// ParseAddress reads an address. Errors never quote it, as it may have a password.
func ParseAddress(text string) (Address, error) {
	var out Address
	scheme, rest, ok := strings.Cut(text, "://")
	scheme, out.TLS = strings.CutSuffix(scheme, "+tls")
	known, found := schemes[scheme]
	if !ok || !found {
		return out, errors.New("it does not begin with nacos://, eureka:// or zk://, or one of them with TLS, as nacos+tls://")
	}
	out.Protocol = known.protocol
	hosts, path, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(rest, "?#") {
		return out, errors.New("it has a query or a fragment, which mean nothing here")
	}
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		user, password, _ := strings.Cut(hosts[:at], ":")
		var errs [2]error
		out.Username, errs[0] = url.PathUnescape(user)
		out.Password, errs[1] = url.PathUnescape(password)
		if errors.Join(errs[:]...) != nil {
			return out, errors.New("its user or password has a % that is no escape: write it as %25")
		}
		hosts = hosts[at+1:]
	}
	for server := range strings.SplitSeq(hosts, ",") {
		host, port, err := net.SplitHostPort(server)
		if err != nil {
			host, port = strings.Trim(server, "[]"), known.port
		}
		if host == "" || port == "" {
			return out, fmt.Errorf("%q is no HOST or HOST:PORT", server)
		}
		out.Servers = append(out.Servers, net.JoinHostPort(host, port))
	}
	if path = strings.Trim(path, "/"); path != "" {
		out.Path = "/" + path
	}
	if out.Path != "" && out.Protocol == registry.Nacos {
		return out, errors.New("an address of Nacos has no path: name namespaces with --from-namespaces")
	}
	return out, nil
}

// String is the address without credentials: what copies say that they are from.
func (a Address) String() string {
	scheme := string(a.Protocol)
	if a.Protocol == registry.ZooKeeper {
		scheme = "zk"
	}
	if a.TLS {
		scheme += "+tls"
	}
	return scheme + "://" + strings.Join(a.Servers, ",") + a.Path
}
