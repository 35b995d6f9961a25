package crd

// Gap is a difference between what an API server checks by the schema, and Validate.
type Gap struct {
	Kind string
	// Field is the beginning of the path of the field, as errors name it, without indexes.
	Field string
	What  string
	Why   string
}

// Reasons of gaps.
const (
	noClock   = "CEL has no clock"
	noLoop    = "the cost of the rule is not bounded"
	noParser  = "it takes a compiler"
	noOrder   = "CEL has no order of addresses"
	noMeta    = "rules see no metadata but the name"
	planeOnly = "only control planes write it"
)

// Beyond lists what Validate refuses and the schema accepts.
func Beyond() []Gap {
	return []Gap{
		{"BackendPolicy", "spec.targetRefs", "no target is there twice; a Mesh is named in namespace proxima-system only", noMeta},
		{"Dataplane", "spec.proxy.outbound", "no address and port is there twice", noLoop},
		{"Dataplane", "spec.proxy.probes.path", "no path is there twice", noLoop},
		{"ProxyPatch", "spec.targetRefs", "no target is there twice; a Mesh is named in namespace proxima-system only, and nothing of another namespace", noMeta},
		{"ProxyPatch", "spec.patches.value", "it is YAML or JSON of the form that the operation needs", noParser},
		{"TrafficPermission", "spec.targetRefs", "no target is there twice; a Mesh is named in namespace proxima-system only, and nothing of another namespace", noMeta},
		{"TrafficPermission", "spec.allow.to.paths", "regular expressions compile", noParser},
		{"TrafficPermission", "spec.deny.to.paths", "regular expressions compile", noParser},
		{"TrafficPermission", "spec.allow.from.addresses", "they are addresses, or ranges without bits beyond their prefix", noLoop},
		{"TrafficPermission", "spec.deny.from.addresses", "they are addresses, or ranges without bits beyond their prefix", noLoop},
		{"WorkloadPolicy", "spec.faults.from.addresses", "they are addresses, or ranges without bits beyond their prefix", noLoop},
		{"WorkloadPolicy", "spec.rateLimit.from.addresses", "they are addresses, or ranges without bits beyond their prefix", noLoop},
		{"WorkloadPolicy", "spec.targetRefs", "no target is there twice; a Mesh is named in namespace proxima-system only, and nothing of another namespace", noMeta},
		{"WorkloadPolicy", "spec.metrics.include", "regular expressions compile", noParser},
		{"WorkloadPolicy", "spec.metrics.exclude", "regular expressions compile", noParser},
		{"Dataplane", "spec.ports.tags", "keys of tags are those of labels", noLoop},
		{"IPAddressPool", "spec.addresses", "a range goes from an address to a higher one of its family; addresses do not overlap", noOrder},
		{"ServiceExport", "metadata.annotations", "mesh.proxima.dev/to-zones names zones", noMeta},
		{"ServiceExport", "spec.exportedLabels", "keys are those of labels", noLoop},
		{"ServiceExport", "spec.exportedAnnotations", "keys are those of annotations, and all together are at most 256 KiB", noLoop},
		{"ServiceExport", "status.available.endpoints", "addresses are of their type; at most 1000 hosts in all; ports name their protocol", planeOnly},
		{"TopologyHeuristic", "spec", "expressions compile, have the right types, and a bounded cost", noParser},
		{"TrafficPlan", "spec.groups.zones.name", "zones are in ascending order", planeOnly},
		{"TrafficPlan", "spec.groups.endpoints.weights", "there is a weight for each zone", planeOnly},
		{"ZoneCosts", "spec.pairs", "no pair of zones is there twice", noLoop},
		{"ZoneShift", "spec.until", "the end is in the future when it is created, and at most 7 days away when it is written", noClock},
	}
}

// Stricter lists what the schema refuses and Validate accepts.
func Stricter() []Gap {
	return []Gap{
		{"", "required fields", "a field that is not marked optional must be there, also where its zero value is valid", "as in the reference of the kind"},
		{"Mesh", "spec.mtls.backends", "at most 64", noLoop},
		{"Dataplane", "spec.ports", "at most 256", noLoop},
		{"Dataplane", "spec.ports.protocol", "empty is refused: leave it out", "it is a key of the list"},
		{"ExternalService", "spec.ports.protocol", "empty is refused: leave it out", "it is a key of the list"},
		{"ZoneInsight", "status.subscriptions.id", "at most 253 characters; of ZoneIngressInsight, ZoneEgressInsight and DataplaneInsight, too", noLoop},
		{"IPAddressPool", "spec.addresses", "no IPv4-mapped IPv6 addresses, and not 255.255.255.255", "CEL has no such addresses"},
	}
}

// Defaults lists what the schema does not fill in: the control plane and its clients do,
// when they read.
func Defaults() []Gap {
	return []Gap{
		{"Dataplane", "spec.mesh", "the mesh that labels or annotations name", noMeta},
		{"ExternalService", "spec.mesh", "the mesh that labels or annotations name", noMeta},
		{"ZoneCosts", "spec.world", "10, or spec.region if that is more", "it depends on another field"},
		{"ZoneCosts", "spec.site", "100, or spec.world if that is more", "it depends on another field"},
	}
}
