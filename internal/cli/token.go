package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/problem"
)

func newToken(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "token",
		GroupID: "operate",
		Short:   "Make, list and revoke tokens",
	}
	cmd.AddCommand(newTokenCreate(s), newTokenList(s), newTokenRevoke(s))
	return cmd
}

func newTokenCreate(s *settings) *cobra.Command {
	var kindName, name string
	var ttl time.Duration
	var b boundFlags
	cmd := &cobra.Command{
		Use:   "create --kind KIND --name NAME",
		Short: "Make a token and print it, this once",
		Long: `Create makes a token and prints it. What it is for depends on its kind:

  admin      everything
  read-only  reads everything but Secrets
  node       joins a machine's agent as Node NAME, which registers workloads
             within the bounds that --namespaces, --labels and --addresses set
  zone       joins a control plane of zone NAME
  workload   registers workloads as the service account NAME, which is
             NAMESPACE/SERVICEACCOUNT, for "proxima run --token-file"

A stolen node token receives traffic of any Service whose selector it can match
within its bounds. --labels restricts the keys that it names, and no others: a
Service that selects by another key is protected by --namespaces alone.`,
		Example: "  proxima token create --kind node --name host-7 --ttl 1h > token\n" +
			"  proxima token create --kind node --name edge-1 --namespaces shop --labels app=web,app=api --ttl 1h > token\n" +
			"  proxima token create --kind workload --name shop/web --labels app=web > token",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := identity.ParseKind(kindName)
			if err != nil {
				return &problem.Error{Code: problem.Usage, Err: fmt.Errorf("--kind: %w", err)}
			}
			if name == "" {
				return usagef("--name is needed: the node, zone, workload or person that the token is for")
			}
			bounds, err := b.bounds(k)
			if err != nil {
				return err
			}
			if ttl < 0 {
				return usagef("--ttl %s: must not be negative", ttl)
			}
			var answer access.TokenAnswer
			body := access.TokenRequest{Kind: k, Name: name, TTLSeconds: int64(ttl / time.Second), Bounds: bounds}
			if err := s.call(cmd.Context(), http.MethodPost, access.TokensPath, body, &answer); err != nil {
				return err
			}
			fmt.Fprintln(s.io.Out, answer.Token)
			fmt.Fprintf(s.io.Err, "token %s for %s %s, %s; only its hash is kept\n", answer.ID, answer.Kind, answer.Name, expiry(answer.TokenInfo))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&kindName, "kind", "", "admin, read-only, node, zone or workload (needed)")
	f.StringVar(&name, "name", "", "the node, zone or person that the token is for; of a workload NAMESPACE/SERVICEACCOUNT (needed)")
	f.DurationVar(&ttl, "ttl", 0, "time after which it expires; 0: never")
	b.add(f)
	return cmd
}

func newTokenList(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List tokens, without their secrets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list access.TokenList
			if err := s.call(cmd.Context(), http.MethodGet, access.TokensPath, nil, &list); err != nil {
				return err
			}
			w := tabwriter.NewWriter(s.io.Out, 6, 4, 3, ' ', 0)
			fmt.Fprintln(w, "ID\tKIND\tNAME\tSTATE\tAGE\tREGISTERS")
			for _, t := range list.Items {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Kind, t.Name, expiry(t), duration.HumanDuration(time.Since(t.Created)), registers(t))
			}
			return w.Flush()
		},
	}
}

func expiry(t identity.TokenInfo) string {
	state := expiryOf(t)
	if left := time.Until(t.CertificateNotAfter); t.Revoked.IsZero() && left > 0 {
		state += ", certificate for " + duration.HumanDuration(left)
	}
	return state
}

func expiryOf(t identity.TokenInfo) string {
	switch {
	case !t.Revoked.IsZero():
		return "revoked"
	case t.Expires.IsZero():
		return "never expires"
	case time.Until(t.Expires) <= 0:
		return "expired"
	}
	return "expires in " + duration.HumanDuration(time.Until(t.Expires))
}

func newTokenRevoke(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID",
		Short: "Make a token useless at once",
		Args:  cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return s.live(tokenIDs)(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var info identity.TokenInfo
			if err := s.call(cmd.Context(), http.MethodDelete, access.TokensPath+"/"+args[0], nil, &info); err != nil {
				return err
			}
			fmt.Fprintf(s.io.Err, "token %s of %s %s is revoked: it and all certificates that descend from it are refused from now on, "+
				"and what is open ends within 5 seconds\n", info.ID, info.Kind, info.Name)
			if info.Kind == identity.Node {
				fmt.Fprintf(s.io.Err, "the agent continues to serve its last state; to admit the machine again: proxima token create --kind node --name %s\n", info.Name)
			}
			return nil
		},
	}
}

// call sends a request to one of Proxima's own paths, with JSON both ways. in and out may
// be nil.
func (s *settings) call(ctx context.Context, method, path string, in, out any) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	return explainAPI(cfg, callJSON(ctx, cfg, method, path, in, out))
}

func callJSON(ctx context.Context, cfg *rest.Config, method, path string, in, out any) error {
	resp, err := send(ctx, cfg, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// getJSON also returns the server's time; zero if it did not say.
func getJSON(ctx context.Context, cfg *rest.Config, path string, out any) (time.Time, error) {
	resp, err := send(ctx, cfg, http.MethodGet, path, nil)
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Body.Close()
	date, _ := http.ParseTime(resp.Header.Get("Date"))
	return date, json.NewDecoder(resp.Body).Decode(out)
}

// errNotServed is the error for a server that does not serve a path.
var errNotServed = errors.New("is it Proxima's?")

// send a request to a path, which may have a query; an answer that is no success is an
// error. A server that does not serve our paths may be the API of a Kubernetes cluster, which has
// them as an aggregated API.
func send(ctx context.Context, cfg *rest.Config, method, path string, in any) (*http.Response, error) {
	resp, err := sendTo(ctx, cfg, method, path, in)
	aggregated := extension.GroupPath(path)
	if aggregated == "" || !errors.Is(err, errNotServed) && !apierrors.IsForbidden(err) {
		return resp, err
	}
	there, thereErr := sendTo(ctx, cfg, method, aggregated, in)
	switch {
	case errors.Is(thereErr, errNotServed): // no aggregated API of ours
		return nil, err
	case apierrors.IsForbidden(err) && apierrors.IsForbidden(thereErr):
		return nil, fmt.Errorf("%w; and as an aggregated API of a cluster: %w", err, thereErr)
	}
	return there, thereErr
}

func sendTo(ctx context.Context, cfg *rest.Config, method, path string, in any) (*http.Response, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return nil, err
		}
	}
	path, query, _ := strings.Cut(path, "?")
	target := base.JoinPath(path)
	target.RawQuery = query
	req, err := http.NewRequestWithContext(ctx, method, target.String(), &body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, failureOf(resp, method, path)
	}
	return resp, nil
}

// failureOf reads the server's reason.
func failureOf(resp *http.Response, method, path string) error {
	var status metav1.Status
	if err := json.NewDecoder(resp.Body).Decode(&status); err == nil && status.Message != "" {
		return &apierrors.StatusError{ErrStatus: status}
	}
	if resp.StatusCode == http.StatusUnauthorized {
		return apierrors.NewUnauthorized("wrong credentials")
	}
	if resp.StatusCode == http.StatusNotFound {
		return fmt.Errorf("this server does not serve %s: %w", path, errNotServed)
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, method, schema.GroupResource{}, path, "", 0, false)
}
