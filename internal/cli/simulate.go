package cli

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/topology"
)

func newSimulate(s *settings) *cobra.Command {
	var taken takenOut
	var endpoints, demand, bytes []string
	var output, price string
	var top int
	var summary bool
	var survey surveyFlags
	cmd := &cobra.Command{
		Use:     "simulate",
		GroupID: "operate",
		Short:   "Show the effect of a failed zone, more endpoints or more demand, and change nothing",
		Long: `Simulate shows how the control plane would divide the traffic of Services among
zones in another situation. It uses the current demand, costs and parameters, and
the same planner. Nothing is applied.

A failed zone affects every Service that is planned (proxima.dev/Adaptive). So does
a zone or node that is taken out, whose clients stay (see "proxima zone shift"). More
endpoints and more demand affect the Service that they name, planned or not. All
flags can be given several times and are combined.

Where the price of traffic between zones is known, from a ZoneCosts or from
--price, it says what the traffic costs in a month; --top N lists the Services
for which Adaptive would save most. Bytes are measured. Where they are not,
--bytes-per-connection enters them; they are never guessed.

--all compares every Service with what kube-proxy does: what stays in its zone, how
busy the busiest endpoint is, and what a plan saves. Volumes are what agents
measure, or what --traffic or --traffic-from states; without any it ranks by the
share of traffic that a plan keeps in its zone.`,
		Example: `  proxima simulate --fail-zone zone-a
  proxima simulate --fail-zone zone-a --summary
  proxima simulate --endpoints shop/web:zone-b:+2
  proxima simulate --top 10 --price USD:0.02:0.04
  proxima simulate --all --traffic traffic.csv --price-per-gb 0.02 --top 10
  proxima simulate --demand shop/web:zone-a:x3 --endpoints shop/web:zone-a:+1 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"table", "wide", "json", "yaml"}, output) {
				return usagef("-o %q: choose table, wide, json or yaml", output)
			}
			situation := len(taken.failed) + len(taken.zones) + len(taken.nodes) + len(endpoints) + len(demand)
			if err := survey.check(price, situation); err != nil {
				return err
			}
			if survey.all && summary {
				return usagef("--summary: with --all, the total is printed without it; --top 1 leaves the Services out")
			}
			if survey.all {
				return s.survey(cmd, survey, top, price, bytes, output)
			}
			if situation+top == 0 {
				return usagef("say what to simulate: --all, --fail-zone, --shift-zone, --shift-node, --endpoints, --demand or --top")
			}
			price, err := survey.price(price)
			if err != nil {
				return err
			}
			cfg, namespace, err := s.restConfig()
			if err != nil {
				return err
			}
			query, err := simulationQuery(namespace, taken, endpoints, demand)
			if err != nil {
				return err
			}
			if err := moneyQuery(query, namespace, top, price, bytes); err != nil {
				return err
			}
			if summary {
				query.Set("summary", "true")
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
	f.StringArrayVar(&taken.failed, "fail-zone", nil, "a zone without nodes and endpoints")
	f.StringArrayVar(&taken.zones, "shift-zone", nil, "a zone whose endpoints are taken out; its clients stay")
	f.StringArrayVar(&taken.nodes, "shift-node", nil, "a node whose endpoints are taken out; its clients stay")
	f.StringArrayVar(&endpoints, "endpoints", nil, "[NAMESPACE/]SERVICE:ZONE:+N, or -N: so many more endpoints there")
	f.StringArrayVar(&demand, "demand", nil, "[NAMESPACE/]SERVICE:ZONE:xK: so many times the demand from there")
	f.IntVar(&top, "top", 0, "list so many Services, those for which Adaptive would save most")
	f.BoolVar(&summary, "summary", false, "the sum of all Services in the place of each")
	f.StringVar(&price, "price", "", "CURRENCY:REGION:WORLD: what a GB costs that crosses between zones of a region, and between regions (default: that of ZoneCosts)")
	f.StringArrayVar(&bytes, "bytes-per-connection", nil, "[NAMESPACE/]SERVICE:N: bytes of a connection, both ways, where they are not measured")
	survey.add(f)
	f.StringVarP(&output, "output", "o", "table", "table, wide, json or yaml")
	return cmd
}

// takenOut are the names of what is taken out of Services.
type takenOut struct{ failed, zones, nodes []string }

// moneyQuery adds what is asked about money.
func moneyQuery(query url.Values, namespace string, top int, price string, bytes []string) error {
	if top < 0 {
		return usagef("--top %d: 1 or more", top)
	}
	if top > 0 {
		query.Set("top", strconv.Itoa(top))
	}
	if price != "" {
		if _, err := topology.ParsePrice(price); err != nil {
			return usagef("--price %v", err)
		}
		query.Set("price", price)
	}
	for _, text := range bytes {
		b, err := topology.ParseBytes(text, namespace)
		if err != nil {
			return usagef("--bytes-per-connection %v", err)
		}
		query.Add("bytes", b.String())
	}
	return nil
}

// simulationQuery validates the flags, so that mistakes are reported without a server, and
// names every namespace.
func simulationQuery(namespace string, taken takenOut, endpoints, demand []string) (url.Values, error) {
	query := url.Values{"failZone": taken.failed, "shiftZone": taken.zones, "shiftNode": taken.nodes}
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
