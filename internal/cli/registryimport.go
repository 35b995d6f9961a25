package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/secretfile"
)

// importFlags are those of "registry import".
type importFlags struct {
	from, to           string
	credentialsFile    string
	tokenFile          string
	caFile             string
	namespaces         []string
	registryNamespaces []string
	groups             []string
	follow, oneWay     bool
	dryRun             bool
	poll, hold         time.Duration
	name               string
	configFrom         string
	metricsAddress     string
}

func newRegistryImport(s *settings) *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use:   "import --from nacos://HOST|eureka://HOST|zk://HOST --follow",
		Short: "Keep an old registry and this one alike while applications move",
		Long: `Import lets applications move from a registry of Nacos, Eureka or ZooKeeper one by
one: what is registered there appears here, and what is registered here appears
there, as long as the command runs. Each of these copies says in its metadata where
it is from (proxima.mirrored-from), and is never copied again.

The copies in the old registry go when the command ends. Those here stay for the
grace of a session, so a command that is started again within it takes them over.
A copy gives way to the instance itself, when that registers here, and takes its
place again when it goes.

Configuration of Nacos, and what Dubbo stores in ZooKeeper, is the same in both, too:
what is changed in one is written in the other. Where both have an entry that
differs, and it is not known which is newer, that of --config-from counts: look at
--dry-run before. Mappings of Dubbo get the applications of both. What both have is
noted in Secrets of the control plane, so what is removed on one side while the
command does not run is removed on the other when it does.

The command is a client of both registries, and of the API: it runs wherever it
reaches the three. It writes here by the protocol of the old registry, so the
control plane has to serve that one. Without --follow or --dry-run it says what it
would do.`,
		Example: "  proxima registry import --from nacos://10.0.0.5:8848 --follow\n" +
			"  proxima registry import --from zk://zk-1,zk-2,zk-3 --dry-run\n" +
			"  proxima registry import --from eureka://old:8761 --credentials-file old.credentials --follow --one-way",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.registryImport(cmd.Context(), &f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "the old registry: nacos://, eureka:// or zk:// and HOST[:PORT][,…]; with TLS nacos+tls:// and so on. A path is the root in a ZooKeeper, or that of Eureka's service URL")
	flags.StringVar(&f.to, "to", "", "the port of the control plane for the same protocol, written alike; empty: the one that it says it serves")
	flags.StringVar(&f.credentialsFile, "credentials-file", "", "file with USER:PASSWORD for the old registry, in place of USER:PASSWORD@ in its address")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with a token of the control plane, to register with; empty: none, for a control plane that needs none of this machine")
	flags.StringVar(&f.caFile, "ca-file", "", "file with the authorities that certificates of the old registry are of; empty: those of this machine")
	flags.StringSliceVar(&f.namespaces, "from-namespaces", []string{"public=default"}, "namespaces of the old registry that are mirrored, with those of Kubernetes that they become; a registry of Eureka or ZooKeeper has one, as public=shop")
	flags.StringSliceVar(&f.registryNamespaces, "registry-namespaces", nil, "those of the control plane, where it was started with them")
	flags.StringSliceVar(&f.groups, "from-groups", nil, "groups of Nacos that are mirrored; none: DEFAULT_GROUP")
	flags.BoolVar(&f.follow, "follow", false, "mirror until the command is stopped")
	flags.BoolVar(&f.oneWay, "one-way", false, "do not write to the old registry")
	flags.StringVar(&f.configFrom, "config-from", "old", "configuration: whose entry counts where both have one, of the old registry or of this one (old, here); none: it is not mirrored")
	flags.BoolVar(&f.dryRun, "dry-run", false, "say what would be copied, and write nothing; on the command line only")
	flags.DurationVar(&f.poll, "poll", 5*time.Second, "how often a Eureka is asked for its applications, and a Nacos for new services")
	flags.DurationVar(&f.hold, "hold", mirror.DefaultHold, "how long copies stay whose instances the old registry has lost in a restart, or as more than half of all at a time")
	flags.StringVar(&f.metricsAddress, "metrics-address", "", "HOST:PORT at which --follow serves /metrics; empty: it does not; on the command line only")
	flags.StringVar(&f.name, "name", "", "what copies in the old registry say that they are from; empty: proxima:// and the address of the API; on the command line only")
	for _, name := range []string{"dry-run", "name", "metrics-address"} { // they mean something else to other commands
		_ = flags.SetAnnotation(name, commandLineOnly, nil)
	}
	return cmd
}

func (s *settings) registryImport(ctx context.Context, f *importFlags) error {
	if f.follow && f.dryRun {
		return usagef("--follow and --dry-run: one of them")
	}
	log, err := s.logger()
	if err != nil {
		return err
	}
	cfg, rc, err := s.importConfig(ctx, f, log)
	if err != nil {
		return err
	}
	m, err := app.NewRegistryMirror(cfg)
	if err != nil {
		return usagef("--from, --to, --from-namespaces: %w", err)
	}
	if !f.follow {
		return s.importPlan(ctx, m, rc)
	}
	if f.metricsAddress != "" {
		end, err := app.ServeMetrics("--metrics-address", f.metricsAddress, log, m)
		if err != nil {
			return err
		}
		defer end()
	}
	log.Info("the registries are kept alike until this command ends", "old", cfg.Old.String(), "here", cfg.Here.String(), "one-way", f.oneWay)
	reporting, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); reportMirror(reporting, m, log) }()
	defer func() { stop(); <-done }()
	return explainAPI(rc, m.Run(ctx))
}

// importConfig of the flags, and of what the control plane says.
func (s *settings) importConfig(ctx context.Context, f *importFlags, log *slog.Logger) (*app.RegistryMirrorConfig, *rest.Config, error) {
	cfg := &app.RegistryMirrorConfig{Groups: f.groups, Poll: f.poll, Hold: f.hold, Follow: !f.oneWay, Logger: log}
	switch f.configFrom {
	case "old", "here":
		cfg.Entries = true
		if f.configFrom == "here" {
			cfg.Winner = mirror.HereWins
		}
	case "none":
	default:
		return nil, nil, usagef("--config-from: %q is none of old, here and none", f.configFrom)
	}
	var err error
	if f.from == "" {
		return nil, nil, usagef("--from is missing: the old registry, as nacos://HOST:8848")
	}
	if f.poll <= 0 || f.hold <= 0 {
		return nil, nil, usagef("--poll and --hold must be more than 0")
	}
	if cfg.Old, err = mirror.ParseAddress(f.from); err != nil {
		return nil, nil, usagef("--from: %w", err)
	}
	if cfg.Namespaces, err = registry.ParseNamespaces(f.namespaces); err != nil {
		return nil, nil, usagef("--from-namespaces: %w", err)
	}
	if len(cfg.Namespaces) == 0 {
		return nil, nil, usagef("--from-namespaces: none is named, so nothing would be mirrored")
	}
	if cfg.HereNamespaces, err = registry.ParseNamespaces(f.registryNamespaces); err != nil {
		return nil, nil, usagef("--registry-namespaces: %w", err)
	}
	if f.credentialsFile != "" {
		text, err := readSecret(f.credentialsFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--credentials-file: %w", err)
		}
		var ok bool
		if cfg.Old.Username, cfg.Old.Password, ok = strings.Cut(text, ":"); !ok {
			return nil, nil, usagef("--credentials-file %s: it is not USER:PASSWORD", f.credentialsFile)
		}
	}
	if cfg.OldTLS, err = oldTLS(f.caFile); err != nil {
		return nil, nil, err
	}
	rc, _, err := s.restConfig()
	if err != nil {
		return nil, nil, err
	}
	rc.Timeout = 0 // of watches
	api, err := url.Parse(rc.Host)
	if err != nil {
		return nil, nil, fmt.Errorf("the kubeconfig's server: %w", err)
	}
	cfg.HereName = cmp.Or(f.name, "proxima://"+api.Host)
	if err := s.hereAddress(ctx, f, cfg, rc, api.Hostname()); err != nil {
		return nil, nil, err
	}
	cfg.Loopback = isLoopback(cfg.Here) && isLoopback(cfg.Old)
	if cfg.Client, err = kubeclient.New(rc, []*resource.Descriptor{kind.Dataplane, kind.Secret}); err != nil {
		return nil, nil, err
	}
	return cfg, rc, nil
}

// hereAddress is the control plane's port for the protocol, with the credentials for it.
func (s *settings) hereAddress(ctx context.Context, f *importFlags, cfg *app.RegistryMirrorConfig, rc *rest.Config, host string) error {
	var err error
	if f.to != "" {
		if cfg.Here, err = mirror.ParseAddress(f.to); err != nil {
			return usagef("--to: %w", err)
		}
	} else {
		var status admin.Status
		if err := s.call(ctx, http.MethodGet, admin.StatusPath, nil, &status); err != nil {
			return err
		}
		cfg.Here.Protocol = cfg.Old.Protocol
		for _, r := range status.Registries {
			if r.Protocol == cfg.Old.Protocol {
				_, port, err := net.SplitHostPort(r.Address)
				if err != nil {
					return fmt.Errorf("address %q of the control plane's port for %s: %w", r.Address, r.Protocol, err)
				}
				cfg.Here.Servers = []string{net.JoinHostPort(host, port)}
			}
		}
		if len(cfg.Here.Servers) == 0 {
			return &problem.Error{
				Code: problem.Usage, Err: fmt.Errorf("the control plane does not serve %s, by which it would be written", cfg.Old.Protocol),
				Hint: fmt.Sprintf("start it with --%s-port, or name its port with --to", cfg.Old.Protocol),
			}
		}
	}
	if f.tokenFile != "" {
		if cfg.Here.Password, err = readSecret(f.tokenFile); err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
		cfg.Here.Username = cmp.Or(cfg.Here.Username, "proxima")
	}
	if cfg.HereTLS, err = rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: rc.CAData, CAFile: rc.CAFile}}); err != nil {
		return fmt.Errorf("the kubeconfig's authority: %w", err)
	}
	return nil
}

// oldTLS verifies the old registry.
func oldTLS(caFile string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile == "" {
		return cfg, nil
	}
	data, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(data) {
		return nil, usagef("--ca-file %s: there is no certificate in it", caFile)
	}
	return cfg, nil
}

// maxSecret in bytes: a token of the control plane, or a password.
const maxSecret = 16 << 10

func readSecret(path string) (string, error) {
	data, err := secretfile.Read(path, secretfile.Rule{Readers: secretfile.OwnersGroup, Max: maxSecret, Advice: "chmod 600 it", Kind: "it is no file of credentials"})
	return strings.TrimSpace(string(data)), err
}

func isLoopback(a mirror.Address) bool {
	for _, server := range a.Servers {
		host, _, _ := net.SplitHostPort(server)
		if at, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !at.IsLoopback()) {
			return false
		}
	}
	return true
}

// planWithin is how long both registries may take to be read.
const planWithin = time.Minute

// importPlan prints what would be copied.
func (s *settings) importPlan(ctx context.Context, m *mirror.Mirror, rc *rest.Config) error {
	within, cancel := context.WithTimeoutCause(ctx, planWithin, fmt.Errorf("the registries are not read within %s", planWithin))
	defer cancel()
	steps, configuration, err := m.Plan(within)
	if err != nil {
		if cause := context.Cause(within); errors.Is(err, context.DeadlineExceeded) && cause != nil {
			err = cause
		}
		return explainAPI(rc, err)
	}
	w := tabwriter.NewWriter(s.io.Out, 6, 4, 3, ' ', 0)
	fmt.Fprintln(w, "SERVICE\tCOPIED\tINSTANCES\tNOT COPIED")
	for _, step := range steps {
		direction := "here"
		if step.Export {
			direction = "to the old registry"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", step.Service, direction, cmp.Or(strings.Join(step.Instances, ","), "<none>"), cmp.Or(strings.Join(step.Skipped, "; "), "<none>"))
	}
	if len(configuration) > 0 {
		fmt.Fprintln(w, "\nENTRY\tWRITTEN\tBECAUSE\tNOT WRITTEN")
	}
	for _, step := range configuration {
		var to []string
		if step.Here {
			to = append(to, "here")
		}
		if step.Old {
			to = append(to, "to the old registry")
		}
		if step.RemoveHere {
			to = append(to, "removed here")
		}
		if step.RemoveOld {
			to = append(to, "removed in the old registry")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", step.Key, cmp.Or(strings.Join(to, ", "), "<none>"), step.Why, cmp.Or(step.Skipped, "<none>"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(s.io.Err, "nothing was written: --follow copies as long as the command runs")
	return nil
}

// reportEvery is how often a change of what is mirrored is logged.
const reportEvery = 10 * time.Second

// reportMirror logs where a mirror is, when that has changed.
func reportMirror(ctx context.Context, m *mirror.Mirror, log *slog.Logger) {
	if m.Synced(ctx) != nil {
		return
	}
	var last mirror.Status
	for wait := time.Second; backoff.Sleep(ctx, wait); wait = reportEvery {
		now := m.Status()
		if now == last {
			continue
		}
		log.Info("mirrored", "entries", now.Entries, "entries-imported", now.EntriesImported, "entries-exported", now.EntriesExported,
			"entries-removed", now.EntriesRemoved, "entry-conflicts", now.EntryConflicts, "entries-waiting", now.EntriesWaiting,
			"entries-not-copied", now.EntriesSkipped, "old", now.Old, "here", now.Here, "imported", now.Imported, "exported", now.Exported, "waiting", now.Waiting,
			"not-copied", now.Skipped, "changes", now.Published, "last-after", now.LastLag.Round(time.Millisecond).String())
		last = now
	}
}
