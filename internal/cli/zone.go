package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func newZone(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "zone",
		GroupID: "operate",
		Short:   "Manage the zones of a global control plane",
		Long: `A zone is a site with a control plane of its own, connected to a global control
plane. These commands talk to the global control plane (--role global); "zone
confirm" and "zone board" talk to that of a zone, too. "zone shift" is about the topology zones
of a site (label topology.kubernetes.io/zone), and talks to its control plane.`,
	}
	cmd.AddCommand(newZoneCreate(s), newZoneList(s), newZoneInspect(s), newZoneEnable(s, false), newZoneEnable(s, true),
		newZoneDelete(s), newZoneConfirm(s), newZoneShift(s), newZoneBoard(s))
	return cmd
}

// zoneClient reads and writes zones and what is observed of them.
func (s *settings) zoneClient() (resource.Client, *rest.Config, error) {
	cfg, _, err := s.restConfig()
	if err != nil {
		return nil, nil, err
	}
	client, err := kubeclient.New(cfg, []*resource.Descriptor{kind.Zone, kind.ZoneInsight})
	return client, cfg, err
}

func newZoneCreate(s *settings) *cobra.Command {
	var output string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a zone, and print how its control plane joins",
		Long: `Create makes the Zone, and a token by which its control plane joins. It prints
the token and the command to start that control plane with. For a zone that is
there already it makes another token.`,
		Example: "  proxima zone create east\n  proxima zone create east -o token > zone-east.token",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "table" && output != "token" {
				return usagef("-o %q: table or token", output)
			}
			if ttl < 0 {
				return usagef("--ttl %s: must not be negative", ttl)
			}
			return s.createZone(cmd.Context(), args[0], ttl, output == "token")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table: the token, and the command to join with; token: the token alone")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "time after which the token expires; 0: never. A zone that has joined renews its certificate without it")
	return cmd
}

func (s *settings) createZone(ctx context.Context, name string, ttl time.Duration, tokenOnly bool) error {
	client, cfg, err := s.zoneClient()
	if err != nil {
		return err
	}
	done := "made"
	_, err = client.Create(ctx, kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: name}})
	switch {
	case apierrors.IsAlreadyExists(err):
		done = "there already"
	case err != nil:
		return explainAPI(cfg, err)
	}
	var answer access.TokenAnswer
	body := access.TokenRequest{Kind: identity.Zone, Name: name, TTLSeconds: int64(ttl / time.Second)}
	if err := explainAPI(cfg, callJSON(ctx, cfg, http.MethodPost, access.TokensPath, body, &answer)); err != nil {
		return err
	}
	if tokenOnly {
		fmt.Fprintln(s.io.Out, answer.Token)
		fmt.Fprintf(s.io.Err, "zone %s is %s; token %s, %s; only its hash is kept\n", name, done, answer.ID, expiry(answer.TokenInfo))
		return nil
	}
	fmt.Fprintf(s.io.Err, "zone %s is %s; token %s, %s; only its hash is kept. On a machine of the zone:\n", name, done, answer.ID, expiry(answer.TokenInfo))
	fmt.Fprintf(s.io.Out, "(umask 077; echo %s > zone-%s.token)\n%s\n", answer.Token, name, joinCommand(name, hostOfServer(cfg.Host)))
	return nil
}

// hostOfServer is HOST:PORT of the URL of an API.
func hostOfServer(server string) string {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return server
	}
	if u.Port() == "" {
		return u.Host + ":443"
	}
	return u.Host
}

func newZoneList(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List zones, and how they are connected",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			status, err := s.globalStatus(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, status.Zones, output)
			}
			w := tabwriter.NewWriter(s.io.Out, 6, 4, 3, ' ', 0)
			printZones(w, status.Zones)
			return w.Flush()
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

// globalStatus asks a control plane that must be global.
func (s *settings) globalStatus(ctx context.Context) (*admin.FederationStatus, error) {
	var status admin.Status
	if err := s.call(ctx, http.MethodGet, admin.StatusPath, nil, &status); err != nil {
		return nil, err
	}
	if status.Role != "global" || status.Federation == nil {
		where := "it stands alone"
		if f := status.Federation; f != nil && f.Global != "" {
			where = "it is that of zone " + f.Zone + ", and global is " + f.Global
		}
		return nil, fmt.Errorf("this is not a global control plane (--role global): %s", where)
	}
	return status.Federation, nil
}

// printZones as a table.
func printZones(w *tabwriter.Writer, all []admin.ZoneState) {
	fmt.Fprintln(w, "ZONE\tSTATE\tVERSION\tSINCE\tHELD\tREFUSED")
	for _, z := range all {
		version, since := "<none>", "<none>"
		held, refused := 0, 0
		if z.Insight != nil {
			if n := len(z.Insight.Subscriptions); n > 0 {
				last := z.Insight.Subscriptions[n-1]
				version, since = last.Version, duration.HumanDuration(time.Since(last.ConnectTime.Time))
			}
			held, refused = countSync(z.Insight.Types)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\n", z.Name, zoneState(z), version, since, held, refused)
	}
}

// zoneState in a word or two.
func zoneState(z admin.ZoneState) string {
	switch {
	case !z.Enabled:
		return "disabled"
	case z.Insight == nil || len(z.Insight.Subscriptions) == 0:
		return "never connected"
	case z.Insight.Online:
		return "online"
	}
	return "offline"
}

func countSync(types []meshv1alpha1.TypeSync) (held, refused int) {
	for _, t := range types {
		held += int(t.Held)
		refused += len(t.Refused)
	}
	return held, refused
}

func newZoneEnable(s *settings, enable bool) *cobra.Command {
	use, short := "disable NAME", "Cut a zone off: its connection ends, and what it offers leaves the other zones"
	if enable {
		use, short = "enable NAME", "Admit a disabled zone again"
	}
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, cfg, err := s.zoneClient()
			if err != nil {
				return err
			}
			if err := setEnabled(cmd.Context(), client, args[0], enable); err != nil {
				return explainAPI(cfg, err)
			}
			if enable {
				fmt.Fprintf(s.io.Err, "zone %s is enabled: its control plane connects again within seconds\n", args[0])
			} else {
				fmt.Fprintf(s.io.Err, "zone %s is disabled: its connection has ended, and other zones send it nothing more\n", args[0])
			}
			return nil
		},
	}
}

func setEnabled(ctx context.Context, client resource.Client, name string, enable bool) error {
	for {
		obj, err := client.Get(ctx, kind.Zone, resource.Key{Name: name})
		if err != nil {
			return err
		}
		zone := obj.(*meshv1alpha1.Zone)
		if kind.ZoneEnabled(zone) == enable {
			return nil
		}
		zone.Spec.Enabled = &enable
		if _, err = client.Update(ctx, kind.Zone, zone); !apierrors.IsConflict(err) {
			return err
		}
	}
}

func newZoneDelete(s *settings) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a zone from global: its copies there, and its tokens",
		Long: `Delete removes a Zone, the copies of its objects at global and in the other
zones, and its tokens. What the zone itself has stays: it goes on serving, without
global. A zone that is online is deleted with --force alone, which disables it first.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, cfg, err := s.zoneClient()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if force {
				if err := setEnabled(ctx, client, args[0], false); err != nil {
					return explainAPI(cfg, err)
				}
			}
			if err := client.Delete(ctx, kind.Zone, resource.Key{Name: args[0]}, resource.Preconditions{}); err != nil {
				return explainAPI(cfg, err)
			}
			fmt.Fprintf(s.io.Err, "zone %s is deleted: its tokens are revoked, and global drops the copies of its objects\n", args[0])
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also if it is online: it is disabled first")
	return cmd
}

func newZoneConfirm(s *settings) *cobra.Command {
	var token string
	cmd := &cobra.Command{
		Use:   "confirm ZONE TYPE",
		Short: "Apply deletions that are held because there are so many of them",
		Long: `A control plane that would delete more than 10 objects and more than 10 % of one
type at the word of another one holds them, as that one may have lost its data.
"proxima status" and "proxima zone inspect" show what is held. Confirm deletes it:

  at global, what global has of ZONE;
  at a zone's control plane, where ZONE is its own name, what it has of global
  and of the other zones.

Any instance of the control plane may be asked: it passes the call on to the one
that has the connection.

TYPE is the kind, as in Mesh, or group and kind.`,
		Example: "  proxima zone confirm east ServiceExport",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var answer admin.ConfirmAnswer
			in := admin.ConfirmRequest{Zone: args[0], Type: args[1], Token: token}
			if err := s.call(cmd.Context(), http.MethodPost, admin.ConfirmPath, in, &answer); err != nil {
				return err
			}
			fmt.Fprintf(s.io.Err, "%d deletions of %s are applied\n", answer.Deleted, args[1])
			return nil
		},
	}
	cmd.Flags().StringVar(&token, "token", "", "the set of deletions, as \"zone inspect\" shows it; without it: whatever is held now")
	return cmd
}

func newZoneInspect(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show a zone: its connections, and the state of each type",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			status, err := s.globalStatus(cmd.Context())
			if err != nil {
				return err
			}
			for _, z := range status.Zones {
				if z.Name != args[0] {
					continue
				}
				if output == "json" || output == "yaml" {
					return printValue(s.io.Out, z, output)
				}
				return s.printZone(z)
			}
			return fmt.Errorf("there is no zone %s: \"proxima zone list\" shows them", args[0])
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func (s *settings) printZone(z admin.ZoneState) error {
	w := tabwriter.NewWriter(s.io.Out, 6, 4, 3, ' ', 0)
	fmt.Fprintf(w, "zone\t%s\nstate\t%s\n", z.Name, zoneState(z))
	if z.Insight == nil {
		return w.Flush()
	}
	fmt.Fprintln(w, "\nCONNECTED\tFOR\tTO\tFROM\tVERSION\tPROTOCOL")
	for _, sub := range z.Insight.Subscriptions {
		length := "open"
		if sub.DisconnectTime != nil {
			length = duration.HumanDuration(sub.DisconnectTime.Sub(sub.ConnectTime.Time))
		}
		fmt.Fprintf(w, "%s ago\t%s\t%s\t%s\t%s\t%d\n", duration.HumanDuration(time.Since(sub.ConnectTime.Time)), length, orNone(sub.Instance),
			orNone(sub.Client), orNone(sub.Version), sub.Protocol)
	}
	printTypes(w, z.Insight.Types)
	printLink(w, z.Link)
	return w.Flush()
}

// printTypes as a table, and what is held and refused below it.
func printTypes(w *tabwriter.Writer, types []meshv1alpha1.TypeSync) {
	if len(types) == 0 {
		return
	}
	fmt.Fprintln(w, "\nTYPE\tDIRECTION\tOBJECTS\tHELD\tREFUSED")
	for _, t := range types {
		objects := "-"
		if t.Objects > 0 || t.Direction == meshv1alpha1.SyncToGlobal {
			objects = fmt.Sprint(t.Objects)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\n", t.Type, t.Direction, objects, t.Held, len(t.Refused))
	}
	for _, t := range types {
		if t.Held > 0 {
			fmt.Fprintf(w, "\nheld: %d deletions of %s (%s), first %s\n", t.Held, t.Type, orNone(t.HeldToken), strings.Join(t.HeldNames, ", "))
		}
		for _, r := range t.Refused {
			word := "refused"
			if r.Waiting {
				word = "waiting"
			}
			fmt.Fprintf(w, "\n%s: %s %s: %s\n", word, t.Type, r.Name, r.Reason)
		}
	}
}
