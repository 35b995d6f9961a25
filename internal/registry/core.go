package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Core is what the server of every protocol stands on.
type Core struct {
	Registrar *Registrar
	Index     *Index
	Configs   *Configs
	Gate      *Gate
	Meters    *Meters
	// Client for objects other than instances: configuration, mappings. It writes as the control
	// plane; a server asks the User first.
	Client resource.Client
	// NodeOf, if it is not nil, is the node that the workload with an address runs on, as a Pod; empty: there is none.
	NodeOf func(netip.Addr) string
	// Others, if it is not nil, are the servers of a protocol at the other instances of the control plane.
	Others func(Protocol) []Server
	// Namespaces maps the registry's own names of namespaces.
	Namespaces Namespaces
	Logger     *slog.Logger
}

// Server of a protocol at an instance of the control plane.
type Server struct {
	// Host and Port as other machines reach it; a client's list may name it otherwise.
	Host, Port string
	// Clients that are connected to it.
	Clients int
}

// Namespaces maps the names of a registry's namespaces to those of Kubernetes. Names that it does not
// list are those of Kubernetes.
type Namespaces map[string]string

// defaults are the names that registries have for the namespace of clients that name none.
var defaultNames = []string{"", "public"}

// Of is the namespace of Kubernetes for a registry's name.
func (n Namespaces) Of(name string) string {
	if to, ok := n[name]; ok {
		return to
	}
	for _, d := range defaultNames {
		if name == d {
			if to, ok := n["public"]; ok {
				return to
			}
			return corev1.NamespaceDefault
		}
	}
	return name
}

// NameOf is the registry's name of a namespace of Kubernetes; the default one is empty.
func (n Namespaces) NameOf(namespace string) string {
	if n.Of("") == namespace {
		return ""
	}
	for name, to := range n {
		if to == namespace {
			return name
		}
	}
	return namespace
}

// ParseNamespaces reads NAME=NAMESPACE pairs. Each namespace is mapped once, as answers name it.
func ParseNamespaces(pairs []string) (Namespaces, error) {
	out, seen := Namespaces{}, map[string]string{}
	for _, pair := range pairs {
		name, to, ok := strings.Cut(pair, "=")
		if !ok || name == "" || to == "" {
			return nil, fmt.Errorf("%q is not NAME=NAMESPACE, as in public=default", pair)
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("name %q is mapped twice", name)
		}
		if other, twice := seen[to]; twice {
			return nil, fmt.Errorf("namespace %q is mapped from %q and %q", to, other, name)
		}
		out[name], seen[to] = to, name
	}
	return out, nil
}

// Locate finds the node that an address is of, and its zone; both are empty where none of ours has
// it.
func (c *Core) Locate(address netip.Addr) (node string, zone locality.Zone) {
	address = address.Unmap()
	if c.NodeOf != nil {
		if node = c.NodeOf(address); node != "" {
			return node, c.Index.ZoneOf(node)
		}
	}
	if node = c.Index.nodeAt(address); node != "" {
		return node, c.Index.ZoneOf(node)
	}
	return "", ""
}

// Place an instance that is to be registered: its node is the one of ours that has its address, its zone
// what its metadata say under one of the keys, else that of the node.
func (c *Core) Place(in *Instance, zoneKeys ...string) {
	node, zone := c.Locate(in.Address)
	in.Node = node
	for _, key := range zoneKeys {
		if in.Zone == "" {
			in.Zone = locality.Zone(in.Metadata[key])
		}
	}
	if in.Zone == "" {
		in.Zone = zone
	}
}

// ErrStarting: the tables are not filled yet, so nothing can be said of what there is.
var ErrStarting = errors.New("the control plane is starting")

// Started returns ErrStarting until the tables are filled.
func (c *Core) Started() error {
	for _, ready := range []<-chan struct{}{c.Index.Ready(), c.Configs.Ready()} {
		select {
		case <-ready:
		default:
			return ErrStarting
		}
	}
	return nil
}

// Welcome returns nil when a client that comes, maybe from another instance of the control plane, can be answered: the
// tables are filled, and what it is told is newer than what it has. It may block for some requests (Index.CatchUp). A
// server calls it when a client connects whose protocol compares positions. Errors are, or wrap, ErrStarting.
func (c *Core) Welcome(ctx context.Context) error {
	if err := c.Started(); err != nil {
		return err
	}
	if err := c.Index.CatchUp(ctx); err != nil {
		c.Logger.Warn("a client is not served yet, as positions could go back; it tries again", "error", err)
		return fmt.Errorf("%w: %w", ErrStarting, err)
	}
	return nil
}

// Revision of the newest change in the tables.
func (c *Core) Revision() uint64 { return c.Registrar.config.Catalog.Snapshot().Revision() }

// ErrNoNamespace: there is no namespace of that name.
var ErrNoNamespace = errors.New("there is no namespace")

// CheckNamespace reports whether a namespace exists, and instances can be registered in it. One that does not is ErrNoNamespace.
func (c *Core) CheckNamespace(namespace string) error {
	n, ok := c.Registrar.config.Catalog.Snapshot().Namespaces.Get(resource.Key{Name: namespace})
	switch {
	case !ok:
		return fmt.Errorf("%w %q: create it, or map the registry's name to one with --registry-namespaces", ErrNoNamespace, namespace)
	case n.DeletionTimestamp != nil:
		return fmt.Errorf("namespace %q is being deleted", namespace)
	}
	return nil
}

// Gate decides who a client is.
type Gate struct {
	// Check finds the user of a token of the control plane, or refuses it.
	Check func(ctx context.Context, token string) (User, error)
	// Anonymous are the addresses of clients that need no credentials.
	Anonymous []netip.Prefix
	// Local reports whether an address is one of this machine; nil: loopback addresses alone are.
	Local func(netip.Addr) bool
}

// ErrUnauthenticated: the client has to show a token.
var ErrUnauthenticated = errors.New("credentials are required: a token of the control plane as the password, " +
	"or a client address in --registry-anonymous")

// Admit returns the user of a client. An invalid token is refused, wherever it comes from; without one,
// the address decides.
func (g *Gate) Admit(ctx context.Context, from netip.Addr, token string) (User, error) {
	from = from.Unmap()
	local := from.IsLoopback() || g.Local != nil && g.Local(from)
	if token != "" {
		user, err := g.Check(ctx, token)
		user.Local = local
		return user, err
	}
	for _, p := range g.Anonymous {
		if p.Contains(from) {
			return User{Local: local}, nil
		}
	}
	return User{}, ErrUnauthenticated
}
