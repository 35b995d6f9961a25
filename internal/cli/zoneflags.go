package cli

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
)

// zoneFlags are those of a control plane among several.
type zoneFlags struct {
	role, zone, global, tokenFile string
	protocol                      int
	timeout                       time.Duration
}

func (z *zoneFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&z.role, "role", string(app.RoleStandalone), "role among several control planes: standalone, global, or zone, which connects to global")
	f.StringVar(&z.zone, "zone", "", "with --role zone: name of this zone, which is that of its Zone object at global")
	f.StringVar(&z.global, "global", "", "with --role zone: address (HOST:PORT) of the global control plane's API; several, separated by commas, for several instances")
	f.StringVar(&z.tokenFile, "token-file", "", "with --role zone: file with the token that \"proxima zone create\" prints at global; it may be deleted once the zone has joined")
	f.IntVar(&z.protocol, "federation-protocol", 2, "with --role zone: version of the protocol that is spoken with global, 2 or 1")
	f.DurationVar(&z.timeout, "zone-timeout", stream.DefaultZoneTimeout, "with --role global: how long a zone may be silent before it is offline")
}

// apply the flags; a mistake names the flag.
func (z *zoneFlags) apply(cfg *app.ControlPlaneConfig) error {
	cfg.Role = app.Role(z.role)
	switch cfg.Role {
	case app.RoleStandalone, app.RoleGlobal:
		// A node's settings, which may be in the same file, have a zone and a token, too.
		if z.global != "" {
			return usagef("--global is for --role zone, and this is --role %s", z.role)
		}
	case app.RoleZone:
		if err := z.check(); err != nil {
			return err
		}
		globals := z.globals()
		cfg.Zone, cfg.Global, cfg.ZoneTokenFile, cfg.FederationProtocol = z.zone, globals[0], z.tokenFile, z.protocol
		cfg.OtherGlobals = globals[1:]
	default:
		return usagef("--role %q: use standalone, global or zone", z.role)
	}
	if z.timeout < 3*time.Second {
		return usagef("--zone-timeout %s: 3s or more", z.timeout)
	}
	if cfg.Role == app.RoleGlobal && cfg.GRPCPort == 0 {
		return usagef("--grpc-port 0: zones connect to --role global over gRPC; choose a port")
	}
	cfg.ZoneTimeout = z.timeout
	return nil
}

// check the flags of a zone.
func (z *zoneFlags) check() error {
	for _, needed := range []struct{ flag, value, what string }{
		{"zone", z.zone, "the name of this zone"},
		{"global", z.global, "HOST:PORT of the global control plane's API"},
		{"token-file", z.tokenFile, "the file with the token that \"proxima zone create NAME\" prints at global"},
	} {
		if needed.value == "" {
			return usagef("--%s is needed with --role zone: %s", needed.flag, needed.what)
		}
	}
	if errs := validation.IsDNS1123Label(z.zone); len(errs) > 0 {
		return usagef("--zone %q: %s", z.zone, strings.Join(errs, "; "))
	}
	for _, address := range z.globals() {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			return usagef("--global %q: want HOST:PORT, as in global.example.com:6443, or several, separated by commas", z.global)
		}
	}
	if z.protocol != 1 && z.protocol != 2 {
		return usagef("--federation-protocol %d: 1 or 2", z.protocol)
	}
	return nil
}

// globals are the addresses of --global.
func (z *zoneFlags) globals() []string {
	out := strings.Split(z.global, ",")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return out
}

// joinCommand is what starts the control plane of a zone.
func joinCommand(zone, global string) string {
	return fmt.Sprintf("proxima control-plane --role zone --zone %s --global %s --token-file zone-%s.token", zone, global, zone)
}
