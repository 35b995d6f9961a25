package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

func newPlot(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "plot",
		GroupID: "operate",
		Short:   "Draw the traffic between zones, a Service, or the last hours, as SVG",
		Long: `Plot writes what the control plane draws: the same input gives the same bytes. A
picture has no scripts and needs no network; it follows the light or dark scheme of
the viewer. Planned flows are outlined, measured ones filled, estimates hatched.`,
		Example: "  proxima plot zones -o zones.svg\n  proxima plot service shop/web -o web.svg\n  proxima plot history --last 1h -o history.svg",
	}
	var output string
	add := func(use, short string, args cobra.PositionalArgs, query func(args []string) (path string, q url.Values, err error)) *cobra.Command {
		sub := &cobra.Command{
			Use: use, Short: short, Args: args,
			RunE: func(cmd *cobra.Command, args []string) error {
				path, q, err := query(args)
				if err != nil {
					return err
				}
				return s.plot(cmd.Context(), path, q, output)
			},
		}
		sub.Flags().StringVarP(&output, "output", "o", "-", "file to write; -: standard output. The extension .json chooses the geometry instead of SVG; on the command line only")
		_ = sub.Flags().SetAnnotation("output", commandLineOnly, nil) // it means something else to other commands
		cmd.AddCommand(sub)
		return sub
	}
	add("zones", "Draw the traffic between zones", cobra.NoArgs, func([]string) (string, url.Values, error) {
		return admin.PlotZonesPath, url.Values{}, nil
	})
	var namespace string
	named := func(name string) (url.Values, error) {
		if of, rest, ok := strings.Cut(name, "/"); ok {
			return url.Values{"namespace": {of}, "name": {rest}}, nil
		}
		_, configured, err := s.restConfig()
		if err != nil {
			return nil, err
		}
		if namespace != "" {
			configured = namespace
		}
		return url.Values{"namespace": {configured}, "name": {name}}, nil
	}
	service := add("service [NAMESPACE/]NAME", "Draw where connections of a Service come from, and its endpoints", cobra.ExactArgs(1), func(args []string) (string, url.Values, error) {
		q, err := named(args[0])
		return admin.PlotServicePath, q, err
	})
	addNamespaceFlag(service.Flags(), &namespace)
	var last time.Duration
	history := add("history [[NAMESPACE/]NAME]", "Draw how zones were in the last hours, or a Service", cobra.MaximumNArgs(1), func(args []string) (string, url.Values, error) {
		if len(args) == 1 {
			q, err := named(args[0])
			return admin.PlotHistoryPath, q, err
		}
		minutes := int(last / time.Minute)
		if last < time.Minute {
			return "", nil, usagef("--last %s: a minute, or more", last)
		}
		return admin.PlotHistoryPath, url.Values{"minutes": {strconv.Itoa(minutes)}}, nil
	})
	addNamespaceFlag(history.Flags(), &namespace)
	history.Flags().DurationVar(&last, "last", 6*time.Hour, "how far back, of zones; at most 6h")
	return cmd
}

// maxPlot bounds a drawing, in bytes.
const maxPlot = 64 << 20

// plot writes a drawing as the server sends it.
func (s *settings) plot(ctx context.Context, path string, q url.Values, output string) error {
	if strings.HasSuffix(output, ".json") {
		q.Set("format", "json")
	}
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	resp, err := send(ctx, cfg, http.MethodGet, path+"?"+q.Encode(), nil)
	if err != nil {
		return explainAPI(cfg, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxPlot))
	if err != nil {
		return fmt.Errorf("read the drawing: %w", err)
	}
	if output == "-" {
		_, err := s.io.Out.Write(data)
		return err
	}
	if err := atomicfile.Write(output, data, 0o644); err != nil {
		return err
	}
	return nil
}
