package cli

import (
	"io"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/topology"
)

func newSimulate(s *settings) *cobra.Command {
	var failZones, endpoints, demand []string
	var output string
	cmd := &cobra.Command{
		Use:     "simulate",
		GroupID: "operate",
		Short:   "Show the effect of a failed zone, more endpoints or more demand, and change nothing",
		Long: `Simulate shows how the control plane would divide the traffic of Services among
zones in another situation. It uses the current demand, costs and parameters, and
the same planner. Nothing is applied.

A failed zone affects every Service that is planned (proxima.dev/Adaptive). More
endpoints and more demand affect the Service that they name, planned or not. All
flags can be given several times and are combined.`,
		Example: `  proxima simulate --fail-zone zone-a
  proxima simulate --endpoints shop/web:zone-b:+2
  proxima simulate --demand shop/web:zone-a:x3 --endpoints shop/web:zone-a:+1 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"table", "wide", "json", "yaml"}, output) {
				return usagef("-o %q: choose table, wide, json or yaml", output)
			}
			if len(failZones)+len(endpoints)+len(demand) == 0 {
				return usagef("say what to simulate: --fail-zone, --endpoints or --demand")
			}
			cfg, namespace, err := s.restConfig()
			if err != nil {
				return err
			}
			query, err := simulationQuery(namespace, failZones, endpoints, demand)
			if err != nil {
				return err
			}
			var answer topology.Simulation
			if err := callJSON(cmd.Context(), cfg, http.MethodGet, admin.SimulatePath+"?"+query.Encode(), nil, &answer); err != nil {
				return explainAPI(cfg, err)
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, &answer, output)
			}
			_, err = io.WriteString(s.io.Out, answer.Text())
			return err
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&failZones, "fail-zone", nil, "a zone without nodes and endpoints")
	f.StringArrayVar(&endpoints, "endpoints", nil, "[NAMESPACE/]SERVICE:ZONE:+N, or -N: so many more endpoints there")
	f.StringArrayVar(&demand, "demand", nil, "[NAMESPACE/]SERVICE:ZONE:xK: so many times the demand from there")
	f.StringVarP(&output, "output", "o", "table", "table, wide, json or yaml")
	return cmd
}

// simulationQuery validates the flags, so that mistakes are reported without a server, and
// names every namespace.
func simulationQuery(namespace string, failZones, endpoints, demand []string) (url.Values, error) {
	query := url.Values{"failZone": failZones}
	for _, text := range endpoints {
		c, err := topology.ParseEndpoints(text, namespace)
		if err != nil {
			return nil, usagef("--endpoints %v", err)
		}
		query.Add("endpoints", c.String())
	}
	for _, text := range demand {
		c, err := topology.ParseDemand(text, namespace)
		if err != nil {
			return nil, usagef("--demand %v", err)
		}
		query.Add("demand", c.String())
	}
	return query, nil
}
