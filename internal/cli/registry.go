package cli

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/registry"
)

// registryFlags are those of a control plane that serves clients of registry protocols.
type registryFlags struct {
	cfg        app.RegistriesConfig
	extraQuota string
	tls        string
	anonymous  []string
	namespaces []string
}

func (r *registryFlags) add(f *pflag.FlagSet) {
	f.IntVar(&r.cfg.NacosPort, "nacos-port", 0, "port for clients of Nacos, on the API's host: HTTP here, gRPC 1000 above it; 8848 is usual; 0: off")
	f.IntVar(&r.cfg.EurekaPort, "eureka-port", 0, "port for clients of Eureka, on the API's host; 8761 is usual; 0: off")
	f.IntVar(&r.cfg.ZooKeeperPort, "zookeeper-port", 0, "port for clients of ZooKeeper that register services, on the API's host; 2181 is usual; 0: off")
	f.StringVar(&r.extraQuota, "zookeeper-extra-quota", "0", "bytes of durable nodes that clients of ZooKeeper may have beside services, for locks, elections and the like, as 64Mi; the same at all instances of a control plane; 0: none")
	f.StringVar(&r.tls, "registry-tls", string(registry.TLSOptional), "TLS of registry clients: off, optional (the client decides) or required")
	f.StringSliceVar(&r.anonymous, "registry-anonymous", []string{"127.0.0.0/8", "::1/128"}, "addresses of registry clients that need no credentials; others show a token of the control plane as their password")
	f.StringSliceVar(&r.namespaces, "registry-namespaces", nil, "namespaces of registries as those of Kubernetes, as public=default,dev=shop-dev; the names of others are the same")
}

// maxExtraQuota bounds --zookeeper-extra-quota: the nodes are in memory, too.
var maxExtraQuota = resource.MustParse("4Gi")

func (r *registryFlags) config() (app.RegistriesConfig, error) {
	cfg := r.cfg
	quota, err := resource.ParseQuantity(r.extraQuota)
	if err != nil || quota.Sign() < 0 || quota.Cmp(maxExtraQuota) > 0 {
		return cfg, usagef("--zookeeper-extra-quota: %q is no number of bytes from 0 to %s, as 64Mi", r.extraQuota, &maxExtraQuota)
	}
	cfg.ZooKeeperQuota = quota.Value()
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

func newRegistry(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "registry",
		GroupID: "operate",
		Short:   "Look at what clients of registry protocols do, and move them from another registry",
	}
	cmd.AddCommand(newRegistryStatus(s), newRegistryImport(s))
	return cmd
}

func newRegistryStatus(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the registry protocols that are served, and their clients",
		Long: `Status shows, for each registry protocol that the control plane serves: how many
clients are connected to the instance that answers, how many sessions keep
instances alive there, how many instances are registered by the protocol at any
instance of the control plane, how many requests there were and failed, and how
many changes clients were told of, the last one how long after it was made. Then
how many of the instances "proxima registry import" copied, and from where; and
how many nodes clients of ZooKeeper have beside services, and how many bytes of
their quota (--zookeeper-extra-quota) those take.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			var status admin.Status
			if err := s.call(cmd.Context(), http.MethodGet, admin.StatusPath, nil, &status); err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, status.Registries, output)
			}
			if len(status.Registries) == 0 {
				fmt.Fprintln(s.io.Err, "no registry protocol is served: start the control plane with --nacos-port or --eureka-port")
				return nil
			}
			w := tabwriter.NewWriter(s.io.Out, 6, 4, 3, ' ', 0)
			fmt.Fprintln(w, "PROTOCOL\tADDRESS\tCLIENTS\tSESSIONS\tINSTANCES\tREQUESTS\tFAILED\tPUSHES\tLAST PUSH AFTER")
			for _, r := range status.Registries {
				last := "<none>"
				if r.Pushes > 0 {
					last = time.Duration(r.LastLagSeconds * float64(time.Second)).Round(10 * time.Microsecond).String()
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n",
					r.Protocol, r.Address, r.Clients, r.Sessions, r.Instances, r.Requests, r.Failed, r.Pushes, last)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if err := s.printImported(status.Registries); err != nil {
				return err
			}
			for _, r := range status.Registries {
				if n := r.Nodes; n != nil {
					fmt.Fprintf(s.io.Out, "%s: %d nodes beside services, %d bytes of %s\n", r.Protocol, n.Count, n.Bytes, resource.NewQuantity(n.Quota, resource.BinarySI))
				}
			}
			return nil
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

// printImported prints how many instances are copies, by the registry that they are from.
func (s *settings) printImported(list []registry.Status) error {
	w := tabwriter.NewWriter(s.io.Out, 6, 4, 3, ' ', 0)
	head := "\nIMPORTED FROM\tINSTANCES"
	for _, r := range list {
		for _, from := range slices.Sorted(maps.Keys(r.Imported)) {
			if head != "" {
				fmt.Fprintln(w, head)
				head = ""
			}
			fmt.Fprintf(w, "%s\t%d\n", from, r.Imported[from])
		}
	}
	return w.Flush()
}
