package cli

import (
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/registry"
)

// registryFlags are those of a control plane that serves clients of registry protocols.
type registryFlags struct {
	cfg        app.RegistriesConfig
	tls        string
	anonymous  []string
	namespaces []string
}

func (r *registryFlags) add(f *pflag.FlagSet) {
	f.IntVar(&r.cfg.NacosPort, "nacos-port", 0, "port for clients of Nacos, on the API's host: HTTP here, gRPC 1000 above it; 8848 is usual; 0: off")
	f.IntVar(&r.cfg.EurekaPort, "eureka-port", 0, "port for clients of Eureka, on the API's host; 8761 is usual; 0: off")
	f.StringVar(&r.tls, "registry-tls", string(registry.TLSOptional), "TLS of registry clients: off, optional (the client decides) or required")
	f.StringSliceVar(&r.anonymous, "registry-anonymous", []string{"127.0.0.0/8", "::1/128"}, "addresses of registry clients that need no credentials; others show a token of the control plane as their password")
	f.StringSliceVar(&r.namespaces, "registry-namespaces", nil, "namespaces of registries as those of Kubernetes, as public=default,dev=shop-dev; the names of others are the same")
}

func (r *registryFlags) config() (app.RegistriesConfig, error) {
	cfg := r.cfg
	var err error
	if cfg.TLS, err = registry.ParseTLSMode(r.tls); err != nil {
		return cfg, usagef("--registry-tls: %w", err)
	}
	for _, text := range r.anonymous {
		if text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return cfg, usagef("--registry-anonymous: %q is no range of addresses, as 10.0.0.0/8", text)
		}
		cfg.Anonymous = append(cfg.Anonymous, p.Masked())
	}
	if cfg.Namespaces, err = registry.ParseNamespaces(r.namespaces); err != nil {
		return cfg, usagef("--registry-namespaces: %w", err)
	}
	return cfg, nil
}
