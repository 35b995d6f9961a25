package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/feed/sink"
	"github.com/proxima-mesh/proxima/internal/feed/sink/pulsarsink"
)

func newFeedSink(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sink",
		Short: "Send the changes of the change feed to webhooks, and to Apache Pulsar",
		Long: `A sink gets all changes that are committed after it was added, in order; over restarts, and for
as long as the feed has them.

A webhook gets CloudEvents 1.0 in batches, by POST. A delivery that is not answered with 2xx is
repeated until it is, with all that follow behind it. Deliveries are signed as Standard Webhooks
says. A topic of Apache Pulsar gets a message for each change: exactly once, if the broker
deduplicates; else some may be there twice after a lost connection.`,
	}
	cmd.AddCommand(newFeedSinkAdd(s), newFeedSinkList(s), newFeedSinkRemove(s))
	return cmd
}

// callSinks asks the control plane about sinks.
func (s *settings) callSinks(ctx context.Context, method, query string, in, out any) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	return explainFeed(cfg, callJSON(ctx, cfg, method, admin.FeedSinksPath+query, in, out))
}

func newFeedSinkAdd(s *settings) *cobra.Command {
	var spec sink.Spec
	var secretFile, caFile, tokenFile string
	cmd := &cobra.Command{
		Use:   "add webhook|pulsar URL",
		Short: "Add a webhook, or a topic of Apache Pulsar",
		Long: `Add has changes sent to a URL from now on. For a webhook its output has the secret by which the
receiver checks signatures; it is not shown again.

For Pulsar the URL is pulsar://HOST:PORT/TENANT/NAMESPACE or pulsar+ssl://…, and may have a topic
behind the namespace; the default is "proxima", and "proxima-ZONE" in a zone. The topic must have
no partitions, and nothing else may publish to it.`,
		Example: "  proxima feed sink add webhook https://cmdb.example.com/proxima --name cmdb --resource services --resource endpointslices.discovery.k8s.io\n" +
			"  proxima feed sink add pulsar pulsar+ssl://pulsar.example.com:6651/infra/mesh --token-file pulsar.token",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != sink.Webhook && args[0] != pulsarsink.Name {
				return usagef("%q: the kinds of sinks are \"webhook\" and \"pulsar\"", args[0])
			}
			spec.Kind, spec.URL = args[0], args[1]
			for to, file := range map[*string]string{&spec.Secret: secretFile, &spec.Authorities: caFile, &spec.Token: tokenFile} {
				if file == "" {
					continue
				}
				data, err := os.ReadFile(file)
				if err != nil {
					return usagef("%w", err)
				}
				*to = string(data)
			}
			spec.Secret, spec.Token = strings.TrimSpace(spec.Secret), strings.TrimSpace(spec.Token)
			var made sink.Spec
			if err := s.callSinks(cmd.Context(), http.MethodPost, "", &spec, &made); err != nil {
				return err
			}
			fmt.Fprintf(s.io.Out, "sink %q added\n", made.Name)
			if made.Secret != "" && secretFile == "" {
				fmt.Fprintf(s.io.Out, "secret of its signatures, which is not shown again: %s\n", made.Secret)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec.Name, "name", "", "name of the sink (default: the host of the URL)")
	f.StringSliceVar(&spec.Resources, "resource", nil, "resources whose changes are sent, as \"services\" or \"dataplanes.mesh.proxima.dev\" (default: all)")
	f.StringSliceVar(&spec.Namespaces, "in-namespace", nil, "namespaces of objects whose changes are sent (default: all, and objects without one)")
	f.StringVar(&secretFile, "secret-file", "", "file with the secret of a webhook's signatures, as whsec_ and base64 of 24 to 64 bytes (default: one is made)")
	f.StringVar(&tokenFile, "token-file", "", "file with the token that is shown to the broker of Pulsar")
	f.StringVar(&caFile, "ca-file", "", "file with the certificates (PEM) of authorities of the receiver (default: those of the control plane's machine)")
	return cmd
}

func newFeedSinkList(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sinks, how far they are, and why deliveries fail",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			all := []sink.Status{}
			if err := s.callSinks(cmd.Context(), http.MethodGet, "", nil, &all); err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, all, output)
			}
			if len(all) == 0 {
				fmt.Fprintln(s.io.Err, "No sinks found.")
				return nil
			}
			return printSinks(s.io.Out, all)
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func printSinks(out io.Writer, all []sink.Status) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tKIND\tURL\tAGE\tDELIVERED\tBEHIND\tFAILURES\tPROBLEM")
	for i := range all {
		t := &all[i]
		delivered, failures, problem := "-", "-", t.Problem
		if t.Here {
			delivered, failures = fmt.Sprint(t.Delivered), fmt.Sprint(t.Failures)
		}
		if t.Since != nil {
			problem = "for " + duration.HumanDuration(time.Since(*t.Since)) + ": " + problem
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", t.Name, t.Kind, t.URL, duration.HumanDuration(time.Since(t.Created)), delivered, t.Behind, failures, orNone(problem))
	}
	return w.Flush()
}

func newFeedSinkRemove(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a sink, with how far it was",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.callSinks(cmd.Context(), http.MethodDelete, "?"+url.Values{"name": args}.Encode(), nil, nil); err != nil {
				return err
			}
			fmt.Fprintf(s.io.Out, "sink %q removed\n", args[0])
			return nil
		},
	}
}
