package app

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/eureka"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/registry/nacos"
	"github.com/proxima-mesh/proxima/internal/registry/zookeeper"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// RegistryMirrorConfig says which registries are kept alike.
type RegistryMirrorConfig struct {
	// Old registry, and the port of a control plane that serves its protocol.
	Old, Here mirror.Address
	// OldTLS and HereTLS are used where the addresses ask for TLS.
	OldTLS, HereTLS *tls.Config
	// Namespaces are the old registry's namespaces that are mirrored, with those of Kubernetes that they are. HereNamespaces
	// are those of the control plane's --registry-namespaces.
	Namespaces, HereNamespaces registry.Namespaces
	// Groups of Nacos; none: its default.
	Groups []string
	// Poll is how often registries are asked that do not tell what is new; 0: 5 s.
	Poll time.Duration
	// Client of the control plane's API, and the name by which copies in the old registry say that they are from it.
	Client   resource.Client
	HereName string
	// Follow and Hold are those of mirror.Config.
	Follow bool
	Hold   time.Duration
	// Entries: configuration is mirrored, too, and Winner is whose entry counts where both have one.
	Entries bool
	Winner  mirror.Winner
	// Loopback: all is on one machine.
	Loopback bool
	Logger   *slog.Logger
}

// NewRegistryMirror makes the mirror of an old registry and a control plane. Errors are those of the configuration.
func NewRegistryMirror(c *RegistryMirrorConfig) (*mirror.Mirror, error) {
	if c.Old.Protocol != c.Here.Protocol {
		return nil, fmt.Errorf("the old registry speaks %s, and the control plane's port %s: both must be the same", c.Old.Protocol, c.Here.Protocol)
	}
	if c.Old.Protocol != registry.Nacos && len(c.Namespaces) != 1 {
		return nil, fmt.Errorf("%d namespaces: a registry of the protocol %s has one, as public=default", len(c.Namespaces), c.Old.Protocol)
	}
	cfg := mirror.Config{
		Old: registryClient(c, &c.Old, c.OldTLS, c.Namespaces, false), Here: registryClient(c, &c.Here, c.HereTLS, c.here(), true),
		Winner: c.Winner, OldName: c.Old.String(), HereName: c.HereName, Follow: c.Follow, Hold: c.Hold, Loopback: c.Loopback, Logger: c.Logger,
	}
	if c.Entries {
		cfg.Bases = registryBases(c)
		cfg.OldEntries = registryEntries(c, &c.Old, c.OldTLS, c.Namespaces, false)
		cfg.HereEntries = registryEntries(c, &c.Here, c.HereTLS, c.here(), true)
	}
	seen := &mirror.Catalogue{Client: c.Client, Logger: c.Logger}
	for _, namespace := range c.Namespaces {
		seen.Namespaces = append(seen.Namespaces, namespace)
	}
	cfg.Catalogue = seen
	switch c.Old.Protocol {
	case registry.ZooKeeper:
		cfg.Apart, cfg.Refuse = zookeeper.CopiedApart, zookeeper.Refuse
	case registry.Eureka:
		cfg.Refuse = eureka.Refuse
	}
	return mirror.New(cfg), nil
}

// registryBases are kept in the first of the namespaces that are mirrored. With other registries, or other names of
// namespaces, what a registry lacks would look as if it were removed: so all of that is in the identity.
func registryBases(c *RegistryMirrorConfig) mirror.Bases {
	if c.Client == nil || c.Old.Protocol == registry.Eureka {
		return nil // it has no configuration
	}
	servers := slices.Sorted(slices.Values(c.Old.Servers))
	identity := fmt.Sprintf("%s %q %q", c.Old.Protocol, servers, c.Old.Path)
	for _, namespaces := range []registry.Namespaces{c.Namespaces, c.here()} {
		for _, name := range slices.Sorted(maps.Keys(namespaces)) {
			identity += fmt.Sprintf(" %q=%q", name, namespaces[name])
		}
	}
	return &mirror.SecretBases{Client: c.Client, Namespace: slices.Min(slices.Collect(maps.Values(c.Namespaces))), Old: c.Old.String(), Identity: identity}
}

// here are the namespaces that are mirrored, by the names that the control plane has for them.
func (c *RegistryMirrorConfig) here() registry.Namespaces {
	out := registry.Namespaces{}
	for _, namespace := range c.Namespaces {
		name := c.HereNamespaces.NameOf(namespace)
		if name == "" {
			name = "public"
		}
		out[name] = namespace
	}
	return out
}

// registryClient of an address.
func registryClient(c *RegistryMirrorConfig, a *mirror.Address, config *tls.Config, namespaces registry.Namespaces, here bool) mirror.Client {
	switch a.Protocol {
	case registry.ZooKeeper:
		return zookeeper.NewClient(zookeeperConfig(c, a, config, namespaces, here))
	case registry.Eureka:
		if !a.TLS {
			config = nil
		}
		name, namespace := only(namespaces)
		path := a.Path
		if here && name != "public" && path == "" {
			path = "/namespaces/" + name + "/eureka"
		}
		return eureka.NewClient(eureka.ClientConfig{
			Servers: a.Servers, TLS: config, Username: a.Username, Password: a.Password, Path: path, Namespace: namespace, Poll: c.Poll, Proxima: here,
			Logger: c.Logger.With("registry", a.String()),
		})
	default:
		return nacos.NewClient(nacosConfig(c, a, config, namespaces))
	}
}

// registryEntries is the configuration of an address; nil: its protocol has none.
func registryEntries(c *RegistryMirrorConfig, a *mirror.Address, config *tls.Config, namespaces registry.Namespaces, here bool) mirror.EntryClient {
	switch a.Protocol {
	case registry.ZooKeeper:
		return zookeeper.NewEntries(zookeeperConfig(c, a, config, namespaces, here))
	case registry.Nacos:
		return nacos.NewEntries(nacosConfig(c, a, config, namespaces))
	default:
		return nil
	}
}

func zookeeperConfig(c *RegistryMirrorConfig, a *mirror.Address, config *tls.Config, namespaces registry.Namespaces, here bool) zookeeper.ClientConfig {
	if !a.TLS {
		config = nil
	}
	name, namespace := only(namespaces)
	path := a.Path
	if here && name != "public" && path == "" {
		path = "/" + name
	}
	return zookeeper.ClientConfig{
		Servers: a.Servers, TLS: config, Username: a.Username, Password: a.Password, Root: path, Namespace: namespace, Proxima: here,
		Logger: c.Logger.With("registry", a.String()),
	}
}

func nacosConfig(c *RegistryMirrorConfig, a *mirror.Address, config *tls.Config, namespaces registry.Namespaces) nacos.ClientConfig {
	if !a.TLS {
		config = nil
	}
	return nacos.ClientConfig{
		Servers: a.Servers, TLS: config, Username: a.Username, Password: a.Password, Namespaces: namespaces, Groups: c.Groups, Poll: c.Poll,
		Logger: c.Logger.With("registry", a.String()),
	}
}

// only namespace of a registry that has one.
func only(namespaces registry.Namespaces) (name, namespace string) {
	for name, namespace = range namespaces {
		return name, namespace
	}
	return "", ""
}
