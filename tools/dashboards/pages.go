package main

import "strings"

// pages are the dashboards.
func pages() []page { return []page{overview(), topology()} }

func overview() page {
	graph := func(title, description, unit string, s ...series) panel {
		return panel{kind: "timeseries", title: title, description: description, unit: unit, width: 12, series: s}
	}
	number := func(title, description string, bad float64, s ...series) panel {
		return panel{kind: "stat", title: title, description: description, unit: "short", width: 6, series: s, steps: []step{
			{Color: "green"}, {Color: "red", Value: &bad},
		}}
	}
	return page{
		uid: "proxima-overview", title: "Proxima: overview", description: "Control planes and agents: what an operator looks at first.",
		panels: []panel{
			number("Suspect machines", "Machines that do not answer; their endpoints are used last.", 1,
				series{"max(proxima_health_suspect_nodes)", "suspect"}),
			number("Pending service ports", "Service ports whose newest state is not programmed, over all agents.", 1,
				series{"sum(proxima_node_pending_service_ports)", "pending"}),
			number("Instances without a leader", "1 while no instance of a control plane leads.", 1,
				series{"min by (job) (proxima_cluster_vacant)", "{{job}}"}),
			number("Held deletions", "Deletions that wait for a confirmation.", 1,
				series{"sum(proxima_global_held_deletions) or vector(0)", "by global"}, series{"sum(proxima_zone_held_deletions) or vector(0)", "by zones"}),
			graph("Change until it is programmed", "From its arrival at the agent, p50 and p99 over all agents.", "s",
				series{"histogram_quantile(0.5, sum by (le) (rate(proxima_node_change_applied_seconds_bucket[5m])))", "p50"},
				series{"histogram_quantile(0.99, sum by (le) (rate(proxima_node_change_applied_seconds_bucket[5m])))", "p99"}),
			graph("Commits of the store", "How long they take, p50 and p99.", "s",
				series{`histogram_quantile(0.5, sum by (le) (rate(proxima_store_operation_seconds_bucket{operation="commit"}[5m])))`, "p50"},
				series{`histogram_quantile(0.99, sum by (le) (rate(proxima_store_operation_seconds_bucket{operation="commit"}[5m])))`, "p99"}),
			graph("Changes per kind", "Committed changes of objects, as the change feed has them.", "ops",
				series{"sum by (resource) (rate(proxima_feed_changes_total[5m]))", "{{resource}}"}),
			graph("New connections to Services", "As agents report them.", "cps",
				series{"sum(rate(proxima_demand_connections_total[1m]))", "connections"}),
			graph("Requests that the API refused", "By the limit that they went beyond.", "ops",
				series{"sum by (limit) (rate(proxima_api_requests_refused_total[5m]))", "{{limit}}"}),
			graph("DNS answers", "By code.", "ops",
				series{"sum by (rcode) (rate(proxima_dns_requests_total[5m]))", "{{rcode}}"}),
			graph("Leases", "Of nodes and workloads.", "short",
				series{"max(proxima_health_leases)", "kept"}, series{"max(proxima_health_late_leases)", "late"},
				series{"max(proxima_health_held_expiries)", "expired and held"}),
			graph("Connections to other sites", "Open streams of tunnels and gateways.", "short",
				series{"sum(proxima_tunnel_streams)", "tunnels"}, series{"sum(proxima_gateway_streams)", "gateways"}),
			graph("Streams that no gateway accepted", "By the reason of the last attempt.", "ops",
				series{"sum by (reason) (rate(proxima_tunnel_open_failures_total[5m]))", "{{reason}}"}),
			graph("Repairs of rules", "After another program changed them.", "ops",
				series{"sum by (instance) (rate(proxima_nftables_repairs_total[5m]))", "{{instance}} nftables"},
				series{"sum by (instance) (rate(proxima_iptables_repairs_total[5m]))", "{{instance}} iptables"}),
			graph("Certificates of workloads", "By state. Ending: less than a quarter of the life is left, so it is not renewed.", "short",
				series{"sum by (state) (proxima_mesh_certificates)", "{{state}}"}),
		},
	}
}

func topology() page {
	const selected, unit = `{namespace=~"$namespace", service=~"$service"}`, "{{namespace}}/{{service}} {{ports}} {{family}}"
	of := func(metric, suffix string) series {
		return series{"proxima_topology_" + metric + selected, strings.TrimSpace(unit + " " + suffix)}
	}
	graph := func(title, description, unit string, s ...series) panel {
		return panel{kind: "timeseries", title: title, description: description, unit: unit, width: 12, series: s}
	}
	low, high := 0.5, 0.8
	demand := "(proxima_topology_demand_connections_per_second" + selected + " > 0 or proxima_topology_demand_connections_per_second" + selected + " + 1)"
	return page{
		uid: "proxima-topology", title: "Proxima: topology", description: "How the traffic of planned Services is divided among zones.",
		variables: []variable{
			{"namespace", "Namespace", "label_values(proxima_topology_in_zone_ratio, namespace)"},
			{"service", "Service", `label_values(proxima_topology_in_zone_ratio{namespace=~"$namespace"}, service)`},
		},
		panels: []panel{
			{kind: "stat", title: "Services by topology mode", unit: "short", width: 6,
				description: "Services with a mode, and the level that chose it. Custom heuristics count as one mode.",
				series:      []series{{"sum by (mode, level) (proxima_topology_services)", "{{mode}} ({{level}})"}}},
			{kind: "gauge", title: "Connections that stay in their zone", unit: "percentunit", width: 6,
				description: "By the published plans under the present demand, weighted by demand. Plans without measured demand count as one connection a second.",
				series:      []series{{"sum(" + demand + " * proxima_topology_in_zone_ratio" + selected + ") / sum(" + demand + ")", "in zone"}},
				steps:       []step{{Color: "red"}, {Color: "yellow", Value: &low}, {Color: "green", Value: &high}}},
			graph("Plans published", "By reason: endpoints, nodes or parameters changed; demand moved far; demand moved for long.", "ops",
				series{"sum by (reason) (rate(proxima_topology_replans_total" + selected + "[5m]))", "{{reason}}"}),
			graph("In-zone share", "Share of connections that stay in their zone.", "percentunit",
				of("in_zone_ratio", ""), of("hints_in_zone_ratio", "hints only")),
			graph("Busiest endpoint",
				"Load of the busiest endpoint as a multiple of the mean, and the limit that no plan exceeds. Above the limit, demand has moved since the plan was made.",
				"short", of("overload_ratio", ""), of("overload_limit_ratio", "limit"), of("hints_overload_ratio", "hints only")),
			graph("Cost of a connection",
				"Mean cost, in the unit of the zone costs: 0 within a zone, 1 within a region and 10 across, unless ZoneCosts say otherwise.",
				"short", of("cost", "")),
			graph("Distance from the best plan", "In points. A plan above 3 is replaced at the next report of demand, one above 0.3 after a while.",
				"short", of("gap_points", "")),
			graph("Utilisation of the busiest zone",
				"Where the Service states the capacity of an endpoint, or the utilisation of all: what an autoscaler should keep below 1.", "percentunit", of("utilisation_ratio", "")),
			graph("Long connections", "1 where the plan cannot move connections, as they stay open; condition LongConnections says what would.", "short",
				of("long_connections", "")),
			graph("Age of plans", "An old plan is a good one: it is replaced when something changes.", "s", of("plan_age_seconds", "")),
			graph("Measured demand", "New connections per second. 0: demand is guessed from the CPU of nodes.", "cps", of("demand_connections_per_second", "")),
		},
	}
}
