package main

import (
	"fmt"
	"strings"
)

// pages are the dashboards.
func pages() []page {
	return []page{overview(), service(), nodes(), controlPlane(), sites(), xds(), registries(), feed()}
}

// window of rate: Grafana makes it at least four scrapes long.
const window = "[$__rate_interval]"

// shown is how many lines a panel has at most where each node or Service has one.
const shown = 15

func graph(title, description, unit string, s ...series) panel {
	return panel{kind: "timeseries", title: title, description: description, unit: unit, width: 12, series: s}
}

// number is red from bad on.
func number(title, description string, bad float64, s ...series) panel {
	return panel{kind: "stat", title: title, description: description, unit: "short", width: 6, series: s, steps: []step{
		{Color: "green"}, {Color: "red", Value: &bad},
	}}
}

// count is a number that is neither good nor bad.
func count(title, description, unit string, s ...series) panel {
	return panel{kind: "stat", title: title, description: description, unit: unit, width: 6, series: s}
}

// rate of counters, summed by labels; of all with none.
func rate(counter string, labels ...string) string { return sum("rate("+counter+window+")", labels...) }

func sum(expr string, labels ...string) string {
	if len(labels) == 0 {
		return "sum(" + expr + ")"
	}
	return "sum by (" + strings.Join(labels, ", ") + ") (" + expr + ")"
}

func top(expr string) string { return fmt.Sprintf("topk(%d, %s)", shown, expr) }

// quantiles are the median and the 99th percentile of a histogram. Selector may be empty.
func quantiles(histogram, selector string) (out []series) {
	for _, q := range []struct{ of, name string }{{"0.5", "p50"}, {"0.99", "p99"}} {
		out = append(out, series{fmt.Sprintf("histogram_quantile(%s, %s)", q.of, rate(histogram+"_bucket"+selector, "le")), q.name})
	}
	return out
}

// connections are the counters of new connections, one for each mode; an agent has one or two of them.
var connections = []string{"userspace", "nftables", "iptables", "ebpf"}

func overview() page {
	const demand = "(proxima_topology_demand_connections_per_second > 0 or proxima_topology_demand_connections_per_second + 1)"
	const ports = "namespace, service, ports, family"
	low, high := 0.5, 0.8
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
			{kind: "gauge", title: "Connections that stay in their zone", unit: "percentunit", width: 6,
				description: "By the published plans under the present demand, weighted by demand. Plans without measured demand count as one connection a second.",
				series:      []series{{"sum(" + demand + " * proxima_topology_in_zone_ratio) / sum(" + demand + ")", "in zone"}},
				steps:       []step{{Color: "red"}, {Color: "yellow", Value: &low}, {Color: "green", Value: &high}}},
			count("Services by topology mode", "Services with a mode, and the level that chose it. Custom heuristics count as one mode.", "short",
				series{"max by (mode, level) (proxima_topology_services)", "{{mode}} ({{level}})"}),
			graph("Services that leave their zone most", "Connections a second that the published plans send to another zone, under the measured demand.", "cps",
				series{top("max by (" + ports + ") (proxima_topology_demand_connections_per_second * (1 - proxima_topology_in_zone_ratio))"), "{{namespace}}/{{service}} {{ports}} {{family}}"}),
			graph("Change until it is programmed", "From its arrival at the agent, p50 and p99 over all agents.", "s", quantiles("proxima_node_change_applied_seconds", "")...),
			graph("Changes per kind", "Committed changes of objects, as the change feed has them.", "ops",
				series{rate("proxima_feed_changes_total", "resource"), "{{resource}}"}),
			graph("New connections to Services", "As agents report them.", "cps",
				series{rate("proxima_demand_connections_total"), "connections"}),
			graph("DNS answers", "By code.", "ops",
				series{rate("proxima_dns_requests_total", "rcode"), "{{rcode}}"}),
			graph("Leases", "Of nodes and workloads.", "short",
				series{"max(proxima_health_leases)", "kept"}, series{"max(proxima_health_late_leases)", "late"},
				series{"max(proxima_health_held_expiries)", "expired and held"}),
			graph("Repairs of rules", "After another program changed them.", "ops",
				series{top(rate("proxima_nftables_repairs_total", "instance")), "{{instance}} nftables"},
				series{top(rate("proxima_iptables_repairs_total", "instance")), "{{instance}} iptables"}),
			graph("Certificates of workloads", "By state. Ending: less than a quarter of the life is left, so it is not renewed.", "short",
				series{"sum by (state) (proxima_mesh_certificates)", "{{state}}"}),
		},
	}
}

// service has one Service at a time, or a few: each has up to four series a panel.
func service() page {
	const selected, ports = `{namespace=~"$namespace", service=~"$service"}`, "namespace, service, ports, family"
	const unit = "{{namespace}}/{{service}} {{ports}} {{family}}"
	of := func(metric, suffix string) series {
		return series{"max by (" + ports + ") (proxima_topology_" + metric + selected + ")", strings.TrimSpace(unit + " " + suffix)}
	}
	var carried, bytes []series
	for _, mode := range connections {
		carried = append(carried, series{rate("proxima_"+mode+"_connections_total"+selected, "namespace", "service", "port"), "{{namespace}}/{{service}} {{port}} " + mode})
	}
	for _, way := range []string{"received", "sent"} {
		bytes = append(bytes, series{rate("proxima_userspace_"+way+"_bytes_total"+selected, "namespace", "service", "port"), "{{namespace}}/{{service}} {{port}} " + way})
	}
	return page{
		uid: "proxima-service", title: "Proxima: service", description: "How the traffic of the Services that are chosen is divided among zones, and what agents carry.",
		variables: []variable{
			{name: "namespace", label: "Namespace", query: "label_values(proxima_topology_in_zone_ratio, namespace)", some: true},
			{name: "service", label: "Service", query: `label_values(proxima_topology_in_zone_ratio{namespace=~"$namespace"}, service)`, some: true},
		},
		panels: []panel{
			graph("In-zone share", "Share of connections that stay in their zone.", "percentunit",
				of("in_zone_ratio", ""), of("hints_in_zone_ratio", "hints only")),
			graph("Busiest endpoint",
				"Load of the busiest endpoint as a multiple of the mean, and the limit that no plan exceeds. Above the limit, demand has moved since the plan was made.",
				"short", of("overload_ratio", ""), of("overload_limit_ratio", "limit"), of("hints_overload_ratio", "hints only")),
			graph("Cost of a connection",
				"Mean cost, in the unit of the zone costs: 0 within a zone, 1 within a region and 10 across, unless ZoneCosts say otherwise.",
				"short", of("cost", "")),
			graph("Measured demand", "New connections per second. 0: demand is guessed from the CPU of nodes.", "cps", of("demand_connections_per_second", "")),
			graph("Plans published", "By reason: endpoints, nodes or parameters changed; demand moved far; demand moved for long.", "ops",
				series{rate("proxima_topology_replans_total"+selected, "reason"), "{{reason}}"}),
			graph("Distance from the best plan", "In points. A plan above 3 is replaced at the next report of demand, one above 0.3 after a while.",
				"short", of("gap_points", "")),
			graph("Utilisation of the busiest zone",
				"Where the Service states the capacity of an endpoint, or the utilisation of all: what an autoscaler should keep below 1.", "percentunit", of("utilisation_ratio", "")),
			graph("Long connections", "1 where the plan cannot move connections, as they stay open; condition LongConnections says what would.", "short",
				of("long_connections", "")),
			graph("Age of plans", "An old plan is a good one: it is replaced when something changes.", "s", of("plan_age_seconds", "")),
			graph("New connections, by mode", "As the agents' modes counted them, over all nodes.", "cps", carried...),
			graph("Bytes of the userspace mode", "Received from clients, and sent to them. Kernel modes do not count bytes by Service port in metrics.", "Bps", bytes...),
			graph("Connections that found nobody", "Of the userspace mode: no endpoint answered, or a further one had to be tried.", "cps",
				series{rate("proxima_userspace_failures_total"+selected, "namespace", "service", "port"), "{{namespace}}/{{service}} {{port}} failed"},
				series{rate("proxima_userspace_retries_total"+selected, "namespace", "service", "port"), "{{namespace}}/{{service}} {{port}} tried again"}),
		},
	}
}

func nodes() page {
	const at = `{instance=~"$node"}`
	each := func(metric string) string { return top("max by (instance) (" + metric + at + ")") }
	var carried []series
	for _, mode := range connections {
		carried = append(carried, series{top(rate("proxima_"+mode+"_connections_total"+at, "instance")), "{{instance}} " + mode})
	}
	return page{
		uid: "proxima-nodes", title: "Proxima: nodes", description: "Agents, and the machines that they are on. Panels by node show the highest.",
		variables: []variable{{name: "node", label: "Node", query: "label_values(proxima_view_connected, instance)"}},
		panels: []panel{
			number("Without a control plane", "Agents that have no stream to a control plane; they serve their last state.", 1,
				series{"count(proxima_view_connected" + at + " == 0) or vector(0)", "agents"}),
			number("Pending service ports", "Service ports whose newest state is not programmed.", 1,
				series{"sum(proxima_node_pending_service_ports" + at + ")", "pending"}),
			number("Rejected resources", "Resources of the view that agents could not read.", 1,
				series{"sum(proxima_view_rejected_resources" + at + ")", "rejected"}),
			number("State that is not on disk", "Agents whose state on disk lacks the newest changes.", 1,
				series{"sum(proxima_view_unsaved" + at + ")", "agents"}),
			graph("Change until it is programmed", "From its arrival at the agent, p50 and p99.", "s", quantiles("proxima_node_change_applied_seconds", at)...),
			graph("Calls of the mode that failed", "Wholly, or for some service ports.", "ops",
				series{top(rate("proxima_node_apply_failures_total"+at, "instance")), "{{instance}}"}),
			graph("Nodes that are behind", "Service ports that are pending, by node.", "short",
				series{each("proxima_node_pending_service_ports"), "{{instance}}"}),
			graph("New connections, by mode", "To Services, as the modes counted them.", "cps", carried...),
			graph("Connection tracking", "Share of the kernel's table of connections that is taken. When it is full, packets of new ones are dropped.", "percentunit",
				series{top("max by (instance) (proxima_conntrack_flows" + at + " / proxima_conntrack_limit" + at + ")"), "{{instance}}"}),
			graph("Silent agents", "Time since the last report of demand, of those that are silent the longest.", "s",
				series{top("max by (node) (proxima_demand_silent_agent_age_seconds)"), "{{node}}"}),
			graph("Streams to the control plane", "That were admitted. Many mean that agents connect again and again.", "ops",
				series{top(rate("proxima_view_streams_total"+at, "instance")), "{{instance}}"}),
			graph("Probes of agents by agents", "By outcome.", "ops", series{rate("proxima_health_probes_total"+at, "outcome"), "{{outcome}}"}),
			graph("Certificates end", "Time until the first certificate of a node's workloads expires, of those where it is the least.", "s",
				series{fmt.Sprintf("bottomk(%d, min by (instance) ((proxima_mesh_certificate_expiry_timestamp_seconds%s > 0) - time()))", shown, at), "{{instance}}"}),
			graph("Draining nodes", "Nodes by state, and the connections that are still open there.", "short",
				series{"max by (state) (proxima_drain_nodes)", "{{state}}"}, series{"max(proxima_drain_open_connections)", "open connections"}),
			graph("DNS on nodes", "Questions, and exchanges with upstream resolvers that failed.", "ops",
				series{top(rate("proxima_dns_requests_total"+at, "instance")), "{{instance}}"},
				series{top(rate("proxima_dns_upstream_failures_total"+at, "instance")), "{{instance}} upstream failed"}),
		},
	}
}

func controlPlane() page {
	return page{
		uid: "proxima-control-plane", title: "Proxima: control plane", description: "The store, the API, controllers and the instances of control planes.",
		panels: []panel{
			number("Instances without a leader", "1 while no instance of a control plane leads.", 1,
				series{"min by (job) (proxima_cluster_vacant)", "{{job}}"}),
			count("Instances", "Whose heartbeats arrive, as the instance that sees the most has it.", "short",
				series{"max by (job) (proxima_cluster_instances)", "{{job}}"}),
			number("Audit logs that fail", "Logs that cannot be written: requests go on without a record.", 1,
				series{"sum(proxima_audit_failing)", "logs"}),
			count("Store", "Bytes of live values.", "bytes", series{"max by (job) (proxima_store_bytes)", "{{job}}"}),
			graph("Commits of the store", "How long they take, p50 and p99.", "s", quantiles("proxima_store_operation_seconds", `{operation="commit"}`)...),
			graph("Calls of the store", "By operation.", "ops", series{rate("proxima_store_operation_seconds_count", "operation"), "{{operation}}"}),
			graph("Calls of the store that failed", "Reason medium is about the store's health; others are conflicts and the like.", "ops",
				series{rate("proxima_store_operation_errors_total", "operation", "reason"), "{{operation}} {{reason}}"}),
			graph("Revisions", "Changes of the store a second.", "ops", series{"max by (job) (deriv(proxima_store_revision" + window + "))", "{{job}}"}),
			graph("Requests in progress", "By lane.", "short", series{"sum by (lane) (proxima_api_requests_in_flight)", "{{lane}}"}),
			graph("Requests that the API refused", "By the limit that they went beyond.", "ops",
				series{rate("proxima_api_requests_refused_total", "limit"), "{{limit}}"}),
			graph("Watches", "That are open at the API and at the store, and clients that were cut off, as they did not read.", "short",
				series{"sum(proxima_api_watches)", "API"}, series{"sum(proxima_store_watches)", "store"}, series{"sum(increase(proxima_api_slow_clients_total" + window + "))", "cut off"}),
			graph("Memory of request bodies", "That is reserved for bodies and what they are decoded to, by lane.", "bytes",
				series{"sum by (lane) (proxima_api_body_memory_bytes)", "{{lane}}"}),
			graph("Calls of controllers", "By verb and outcome.", "ops", series{rate("proxima_resource_calls_total", "verb", "reason"), "{{verb}} {{reason}}"}),
			graph("Leadership", "Which instance leads, and writes of former leaders that the store refused.", "short",
				series{top("max by (instance) (proxima_cluster_leads)"), "{{instance}} leads"}, series{"sum(increase(proxima_cluster_fenced_writes_total" + window + "))", "refused writes"}),
			graph("Addresses and ports that Services have", "Share of each range that is taken.", "percentunit",
				series{"max by (range) (proxima_service_range_taken / proxima_service_range_size)", "{{range}}"}),
			graph("Demand", "Agents and proxies that report, and those that are silent.", "short",
				series{"max by (state) (proxima_demand_agents)", "agents {{state}}"}, series{"max by (state) (proxima_demand_proxies)", "proxies {{state}}"}),
		},
	}
}

func sites() page {
	const at = `{zone=~"$zone"}`
	return page{
		uid: "proxima-sites", title: "Proxima: sites", description: "Zones and their global control plane, tunnels and gateways between them.",
		variables: []variable{{name: "zone", label: "Zone", query: "label_values(proxima_zone_online, zone)"}},
		panels: []panel{
			number("Zones that are offline", "That have connected to global before.", 1,
				series{"count(max by (zone) (proxima_zone_online" + at + ") == 0) or vector(0)", "zones"}),
			number("Control planes without global", "Zones that objects of global do not reach right now, as their leaders see it.", 1,
				series{"count(proxima_global_connected == 0) or vector(0)", "zones"}),
			number("Held deletions", "Deletions that wait for a confirmation.", 1,
				series{"sum(proxima_global_held_deletions) or vector(0)", "by global"}, series{"sum(proxima_zone_held_deletions" + at + ") or vector(0)", "by zones"}),
			count("Zone shifts end", "When shifts that are in effect end by themselves.", "dateTimeFromNow",
				series{"max by (kind, name) (proxima_zone_shift_end_timestamp_seconds) * 1000", "{{kind}} {{name}}"}),
			graph("Objects of zones at global", "By zone and type.", "short", series{top("max by (zone, type) (proxima_zone_objects" + at + ")"), "{{zone}} {{type}}"}),
			graph("Refused objects", "That the receiver refused or cannot apply yet.", "short",
				series{top("max by (zone, type, direction) (proxima_zone_refused_objects" + at + ")"), "{{zone}} {{type}} {{direction}}"},
				series{top("max by (type) (proxima_global_refused_objects)"), "from global {{type}}"}),
			graph("Connections to other sites", "Open streams of tunnels and gateways.", "short",
				series{"sum(proxima_tunnel_streams)", "tunnels"}, series{"sum(proxima_gateway_streams)", "gateways"}),
			graph("Bytes between sites", "Through gateways.", "Bps",
				series{rate("proxima_gateway_received_bytes_total"), "received"}, series{rate("proxima_gateway_sent_bytes_total"), "sent"}),
			graph("Time until a peer accepts a stream", "Over all attempts, p50 and p99.", "s", quantiles("proxima_tunnel_open_seconds", "")...),
			graph("Streams that no gateway accepted", "By the reason of the last attempt.", "ops",
				series{rate("proxima_tunnel_open_failures_total", "reason"), "{{reason}}"}),
			graph("Streams that gateways refused or reset", "By reason.", "ops",
				series{rate("proxima_gateway_refused_total", "reason"), "refused {{reason}}"}, series{rate("proxima_gateway_resets_total", "reason"), "reset {{reason}}"}),
			graph("Handshakes", "Of gateways, by result, and of tunnels.", "ops",
				series{rate("proxima_gateway_handshakes_total", "result"), "gateway {{result}}"}, series{rate("proxima_tunnel_connections_total", "handshake"), "tunnel {{handshake}}"}),
		},
	}
}

func xds() page {
	return page{
		uid: "proxima-xds", title: "Proxima: xDS", description: "Proxies and gRPC programs: what they are sent, what they refuse, and the load that they report.",
		panels: []panel{
			count("Connected", "Proxies and gRPC programs.", "short", series{"sum(proxima_xds_streams)", "streams"}),
			number("Proxies that reject a resource", "They keep what they had before; proxima proxy status names them.", 1,
				series{"sum(proxima_xds_insight_rejecting_proxies)", "proxies"}),
			number("Pods that wait for their sidecar", "Their connections are not led to it yet; they are not ready.", 1,
				series{"sum(proxima_sidecar_waiting_pods) or vector(0)", "Pods"}),
			count("Proxies that report load", "To instances of the control plane.", "short", series{"sum(proxima_xds_load_streams)", "proxies"}),
			graph("Responses", "By type of resource.", "ops", series{rate("proxima_xds_responses_total", "type"), "{{type}}"}),
			graph("Refused responses", "By type of resource.", "ops", series{rate("proxima_xds_refusals_total", "type"), "{{type}}"}),
			graph("Payload", "Of responses, by type of resource.", "Bps", series{rate("proxima_xds_sent_bytes_total", "type"), "{{type}}"}),
			graph("Streams by instance", "Proxies and gRPC programs at each instance of the control plane.", "short",
				series{top("sum by (instance) (proxima_xds_streams)"), "{{instance}}"}),
			graph("Load reports", "By what became of them.", "ops", series{rate("proxima_xds_load_reports_total", "outcome"), "{{outcome}}"}),
			graph("Load of service ports", "What proxies issued to them: connections of TCP, requests of HTTP.", "ops",
				series{rate("proxima_xds_load_issued_total", "unit"), "{{unit}}"}),
			graph("Insights", "Status of proxies that was written, by outcome.", "ops", series{rate("proxima_xds_insight_writes_total", "outcome"), "{{outcome}}"}),
			graph("Certificates", "Requests for certificates of workloads and nodes, by gRPC code.", "ops",
				series{rate("proxima_mesh_certificate_requests_total", "code"), "{{code}}"}),
		},
	}
}

func registries() page {
	const at = `{protocol=~"$protocol"}`
	return page{
		uid: "proxima-registries", title: "Proxima: registries", description: "Clients of Nacos, Eureka, ZooKeeper and Dubbo, and the mirror of an old registry.",
		variables: []variable{{name: "protocol", label: "Protocol", query: "label_values(proxima_registry_clients, protocol)"}},
		panels: []panel{
			count("Clients", "That are connected, or whose leases run.", "short", series{"sum by (protocol) (proxima_registry_clients" + at + ")", "{{protocol}}"}),
			number("Services that the mirror has not copied", "They wait for it, or their copies are not as they should be.", 1,
				series{"max(proxima_mirror_services_waiting) or vector(0)", "services"}),
			number("Instances that cannot be copied", "The other registry cannot have them.", 1,
				series{"max(proxima_mirror_instances_not_copied) or vector(0)", "instances"}),
			count("Lag of the mirror", "How long after the change in the other registry copies were changed the last time.", "s",
				series{"max(proxima_mirror_last_change_lag_seconds)", "lag"}),
			graph("Change until a client is told", "From the tables to the message, p50 and p99.", "s", quantiles("proxima_registry_push_seconds", at)...),
			graph("Pushes", "Changes that clients were told of.", "ops", series{rate("proxima_registry_pushes_total"+at, "protocol"), "{{protocol}}"}),
			graph("Requests", "By outcome.", "ops", series{rate("proxima_registry_requests_total"+at, "protocol", "outcome"), "{{protocol}} {{outcome}}"}),
			graph("Clients by instance", "Of the control plane.", "short", series{top("sum by (instance, protocol) (proxima_registry_clients" + at + ")"), "{{instance}} {{protocol}}"}),
			graph("Other nodes of clients", "Share of the quota that is taken.", "percentunit",
				series{"max by (protocol) (proxima_registry_node_bytes" + at + " / proxima_registry_node_quota_bytes" + at + ")", "{{protocol}}"}),
			graph("Metadata of Dubbo", "Providers that were asked for them, by outcome.", "ops", series{rate("proxima_registry_metadata_fetches_total", "outcome"), "{{outcome}}"}),
			graph("Mirror: instances", "That are registered in each registry, without copies, and copies.", "short",
				series{"max by (registry) (proxima_mirror_instances)", "{{registry}}"}, series{"max by (registry) (proxima_mirror_copies)", "{{registry}} copies"}),
			graph("Mirror: configuration", "Entries by state, and those that were written over though not known to be older.", "short",
				series{"max by (state) (proxima_mirror_entries)", "{{state}}"}, series{"sum(increase(proxima_mirror_entry_conflicts_total" + window + "))", "conflicts"}),
		},
	}
}

func feed() page {
	return page{
		uid: "proxima-feed", title: "Proxima: feed", description: "The change feed: what was written to it, where it is kept, and who reads it.",
		panels: []panel{
			number("Not written", "Control planes whose changes wait in the history of the store.", 1,
				series{"count(proxima_feed_up == 0) or vector(0)", "control planes"}),
			number("Roots that fail", "Roots of segments that take none.", 1, series{"count(proxima_feed_root_up == 0) or vector(0)", "roots"}),
			number("Sinks that fail", "Whose last delivery was not accepted.", 1, series{"count(proxima_feed_sink_up == 0) or vector(0)", "sinks"}),
			number("Offloads that fail", "Segments cannot be copied to the target.", 1, series{"count(proxima_feed_offload_up == 0) or vector(0)", "control planes"}),
			graph("Changes", "By operation.", "ops", series{rate("proxima_feed_changes_total", "operation"), "{{operation}}"}),
			graph("Changes per kind", "The kinds that change most.", "ops", series{top(rate("proxima_feed_changes_total", "resource")), "{{resource}}"}),
			graph("Behind the store", "Revisions that the feed does not have yet.", "short",
				series{"max by (job) (proxima_store_revision) - max by (job) (proxima_feed_complete_position)", "{{job}}"}),
			graph("Size", "Of the segments, counted once for all copies, and at each root.", "bytes",
				series{"max by (job) (proxima_feed_bytes)", "{{job}}"}, series{top("max by (instance, root) (proxima_feed_root_bytes)"), "{{instance}} {{root}}"}),
			graph("Lag of sinks", "Positions that they are behind.", "short", series{top("max by (sink) (proxima_feed_sink_lag_positions)"), "{{sink}}"}),
			graph("Deliveries of sinks", "Events that were accepted, and deliveries that failed and are repeated.", "ops",
				series{top(rate("proxima_feed_sink_delivered_total", "sink")), "{{sink}}"}, series{top(rate("proxima_feed_sink_failures_total", "sink")), "{{sink}} failed"}),
			graph("Segments that are not offloaded", "Sealed ones that are not yet at the target.", "short",
				series{"max by (job) (proxima_feed_offload_pending_segments)", "{{job}}"}),
			graph("Redactions", "That are not yet in all files.", "short", series{top("max by (instance) (proxima_feed_redactions_outstanding)"), "{{instance}}"}),
			graph("Clients of Pulsar", "Connections and consumers.", "short",
				series{"sum(proxima_pulsar_connections)", "connections"}, series{"sum(proxima_pulsar_consumers)", "consumers"}),
			graph("Messages to clients of Pulsar", "Sent, and acknowledged.", "ops",
				series{rate("proxima_pulsar_messages_total"), "sent"}, series{rate("proxima_pulsar_acknowledged_total"), "acknowledged"}),
		},
	}
}
