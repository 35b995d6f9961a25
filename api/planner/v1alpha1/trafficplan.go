package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelPart is on every TrafficPlan of a Service whose plan is larger than
// MaxPlanBytes and is therefore split by port, except on the first. Its value is the
// number of the part, from 2. The first part has the name of the Service, the others
// that name, a dot and their number. All parts have the same version.
const LabelPart = GroupName + "/part"

// MaxPlanBytes is the size of a TrafficPlan's JSON above which it is split by port.
const MaxPlanBytes = 512 << 10

// NoZone stands for the zone of endpoints that have none. No zone can have this
// name, as it is not a label value.
const NoZone = "(no zone)"

// SitePrefix begins the name that another site has in plans, as one zone. No zone can have
// such a name, as it is not a label value.
const SitePrefix = "site:"

// SiteZone is the name of another site in plans.
func SiteZone(site string) string { return SitePrefix + site }

// SiteOf a zone of a plan; false: it is a zone of this site.
func SiteOf(zone string) (site string, ok bool) { return strings.CutPrefix(zone, SitePrefix) }

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// TrafficPlan says how the connections to a Service are divided among zones. The
// planner writes it, alone, whenever it publishes another plan; the Service owns it.
// A Service that is not planned has none.
type TrafficPlan struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name is that of the Service.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// The plan.
	// +optional
	Spec TrafficPlanSpec `json:"spec,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// TrafficPlanList is a list of TrafficPlans.
type TrafficPlanList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The TrafficPlans.
	Items []TrafficPlan `json:"items"`
}

// TrafficPlanSpec is a plan.
type TrafficPlanSpec struct {
	// Service is the name of the Service, in the same namespace.
	Service string `json:"service"`
	// Version rises by 1 each time a plan of the Service is published. A Service that is
	// planned again starts at 1.
	Version int64 `json:"version"`
	// Mode that the Service asks for: proxima.dev/Adaptive, or the name of a rule.
	Mode string `json:"mode"`
	// Parameters that the plan was made with.
	Parameters TrafficPlanParameters `json:"parameters"`
	// Groups of ports that are planned together.
	// +optional
	// +listType=atomic
	Groups []PortGroup `json:"groups,omitempty"`
}

// TrafficPlanParameters are those of the Service's annotations, with defaults filled in.
type TrafficPlanParameters struct {
	// Overload is how far above the mean load an endpoint may be planned, as a share.
	Overload float64 `json:"overload"`
	// Margin is taken off the overload, as demand is an estimate.
	Margin float64 `json:"margin"`
	// Utilisation of the endpoints, 1 for fully used; 0: not known.
	// +optional
	Utilisation float64 `json:"utilisation,omitempty"`
	// Costs is the name of the ZoneCosts; empty: default.
	// +optional
	Costs string `json:"costs,omitempty"`
	// Hints that readers of hints get: soft, strict or none.
	Hints string `json:"hints"`
	// Fallback where no hints can be planned: none or zone.
	Fallback string `json:"fallback"`
}

// PortGroup is the ports of one address family that share EndpointSlices: an endpoint
// has the same weight for all of them.
type PortGroup struct {
	// AddressType is IPv4 or IPv6.
	AddressType string `json:"addressType"`
	// Ports by name, in ascending order.
	// +listType=atomic
	Ports []string `json:"ports"`
	// Outcome is Planned, NoEndpoints, TooManyZones, TooLarge, Weighted or RuleFailed.
	Outcome Outcome `json:"outcome"`
	// Published is when this plan was published.
	Published metav1.Time `json:"published"`
	// Reason why it was published: EndpointsChanged, LargeGap or LastingGap.
	// +optional
	Reason PublishReason `json:"reason,omitempty"`
	// DemandSource is Measured or Guessed.
	// +optional
	DemandSource DemandSource `json:"demandSource,omitempty"`
	// Expected is what the plan gives for the demand it was made for.
	// +optional
	Expected *Expectation `json:"expected,omitempty"`
	// Zones where connections start, in ascending order of their names.
	// +optional
	// +listType=atomic
	Zones []SourceZone `json:"zones,omitempty"`
	// Endpoints with their weights, if a rule gave some. The zones have no shares then.
	// +optional
	// +listType=atomic
	Endpoints []WeightedEndpoint `json:"endpoints,omitempty"`
}

// Outcome of planning a PortGroup.
type Outcome string

const (
	// OutcomePlanned: shares of zones hold.
	OutcomePlanned Outcome = "Planned"
	// OutcomeNoEndpoints: no endpoint is ready.
	OutcomeNoEndpoints Outcome = "NoEndpoints"
	// OutcomeTooManyZones: there are more zones than the planner plans for.
	OutcomeTooManyZones Outcome = "TooManyZones"
	// OutcomeTooLarge: the plan of this group alone is larger than MaxPlanBytes.
	OutcomeTooLarge Outcome = "TooLarge"
	// OutcomeWeighted: the weights of endpoints hold, which a rule gave.
	OutcomeWeighted Outcome = "Weighted"
	// OutcomeRuleFailed: the last good weights hold, as the rule cannot be evaluated.
	OutcomeRuleFailed Outcome = "RuleFailed"
)

// Weighs says whether the group divides traffic; else it has no shares and no weights,
// and traffic goes as if there were no plan.
func (o Outcome) Weighs() bool {
	return o == OutcomePlanned || o == OutcomeWeighted || o == OutcomeRuleFailed
}

// PublishReason says why a plan was published.
type PublishReason string

const (
	// PublishEndpointsChanged: endpoints, nodes, costs or parameters changed.
	PublishEndpointsChanged PublishReason = "EndpointsChanged"
	// PublishLargeGap: the plan before was far from the best one.
	PublishLargeGap PublishReason = "LargeGap"
	// PublishLastingGap: the plan before was a little worse than the best one for long.
	PublishLastingGap PublishReason = "LastingGap"
)

// DemandSource says where the demand of a plan comes from.
type DemandSource string

const (
	// DemandMeasured: from connections that agents counted.
	DemandMeasured DemandSource = "Measured"
	// DemandGuessed: from the CPU of nodes.
	DemandGuessed DemandSource = "Guessed"
)

// Expectation is what a plan gives.
type Expectation struct {
	// InZone is the share of connections that stay in their zone.
	InZone float64 `json:"inZone"`
	// Cost of a connection, on average.
	Cost float64 `json:"cost"`
	// Busiest is the load of the busiest endpoint, as a multiple of the mean.
	Busiest float64 `json:"busiest"`
	// Limit that no endpoint is planned above, as a multiple of the mean.
	Limit float64 `json:"limit"`
}

// SourceZone is a zone where connections start.
type SourceZone struct {
	// Name of the zone; "(no zone)" for endpoints that have none, "site:NAME" for another site.
	Name string `json:"name"`
	// Endpoints of the zone that were ready when the plan was made.
	// +optional
	Endpoints int64 `json:"endpoints,omitempty"`
	// Weight is the sum of their weights; 0: each endpoint of the group has the default one.
	// +optional
	Weight int64 `json:"weight,omitempty"`
	// Demand is the share of all connections that start here, which the plan was made for.
	// +optional
	Demand float64 `json:"demand,omitempty"`
	// Fixed is load of the zone's endpoints that is not planned, as traffic policies keep it on its
	// node, as a multiple of all that is.
	// +optional
	Fixed float64 `json:"fixed,omitempty"`
	// Reason for the zone's shares.
	Reason ZoneReason `json:"reason"`
	// To is where the zone's connections go: shares above 0, which sum to 1.
	// +optional
	// +listType=atomic
	To []ZoneShare `json:"to,omitempty"`
}

// ZoneReason says why the connections of a zone go where they go.
type ZoneReason string

const (
	// ZoneNoEndpoints: the Service has none.
	ZoneNoEndpoints ZoneReason = "NoEndpoints"
	// ZoneHome: all connections stay in their zone.
	ZoneHome ZoneReason = "Home"
	// ZoneNoDemandHome: nothing starts here; if something does it stays in its zone.
	ZoneNoDemandHome ZoneReason = "NoDemandHome"
	// ZoneNoDemandAll: nothing starts here, and there is no endpoint; if something does
	// it goes to all endpoints alike.
	ZoneNoDemandAll ZoneReason = "NoDemandAll"
	// ZoneRegion: what the zone's endpoints cannot take stays in the region.
	ZoneRegion ZoneReason = "Region"
	// ZoneWorld: what the region's endpoints cannot take leaves it, within the site.
	ZoneWorld ZoneReason = "World"
	// ZoneSite: what the site's endpoints cannot take leaves it.
	ZoneSite ZoneReason = "Site"
	// ZoneCost: what leaves the zone goes where costs make it cheapest.
	ZoneCost ZoneReason = "Cost"
	// ZoneRule: a rule gave weights.
	ZoneRule ZoneReason = "Rule"
	// ZoneNoWeights: a rule gave no weights for this zone, so hints decide.
	ZoneNoWeights ZoneReason = "NoWeights"
)

// ZoneShare is a share of a zone's connections.
type ZoneShare struct {
	// Zone of the endpoints; "site:NAME" for another site.
	Zone string `json:"zone"`
	// Share of the connections, above 0 and at most 1.
	Share float64 `json:"share"`
}

// WeightedEndpoint has weights of its own.
type WeightedEndpoint struct {
	// Address of the endpoint.
	Address string `json:"address"`
	// Weights for connections of each of the group's zones, in their order.
	// +listType=atomic
	Weights []uint32 `json:"weights"`
}
