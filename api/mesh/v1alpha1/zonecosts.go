package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultZoneCosts is the name of the ZoneCosts that hold for Services that name
// no other.
const DefaultZoneCosts = "default"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneCosts say what a connection from one topology zone to another costs. Costs
// are relative to each other and have no unit.
type ZoneCosts struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The costs named default hold for all Services that name no others.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// The costs.
	// +optional
	Spec ZoneCostsSpec `json:"spec,omitempty"`
	// Whether the costs are in use, as this control plane and those of zones observe it.
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneCostsList is a list of ZoneCosts.
type ZoneCostsList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ZoneCosts.
	Items []ZoneCosts `json:"items"`
}

// ZoneCostsSpec is what connections cost. Within a zone they cost nothing unless a
// pair says otherwise.
type ZoneCostsSpec struct {
	// Region is the cost between two zones of one region. Defaults to 1.
	// +optional
	Region *float64 `json:"region,omitempty"`
	// World is the cost between zones of different regions, at least that of Region. Defaults to 10.
	// +optional
	World *float64 `json:"world,omitempty"`
	// Site is the cost from a zone to another site, at least that of World. Defaults to 100.
	// +optional
	Site *float64 `json:"site,omitempty"`
	// Pairs of zones with costs of their own. A name that is no zone of the site whose control plane
	// plans stands for the site of that name.
	// +optional
	// +listType=atomic
	Pairs []ZoneCostsPair `json:"pairs,omitempty"`
	// Price of the traffic. It changes no plan, and is what explanations and simulations reckon
	// with.
	// +optional
	Price *ZonePrice `json:"price,omitempty"`
}

// ZonePrice is what a GB (1000000000 bytes) costs that crosses from one zone to another, in
// whichever direction. Where a provider charges both ends, it is the sum.
type ZonePrice struct {
	// Currency as an ISO 4217 code, such as EUR.
	Currency string `json:"currency"`
	// Region is the price between two zones of one region.
	// +optional
	Region float64 `json:"region,omitempty"`
	// World is the price between zones of different regions.
	// +optional
	World float64 `json:"world,omitempty"`
	// Site is the price to another site. Defaults to that of World.
	// +optional
	Site *float64 `json:"site,omitempty"`
}

// ZoneCostsPair is the cost between two zones, in both directions unless it says
// otherwise.
type ZoneCostsPair struct {
	// From is the zone in which connections start.
	From string `json:"from"`
	// To is the zone of the endpoint. It may be the same one.
	To string `json:"to"`
	// Cost of a connection, from 0 to 1000000000.
	Cost float64 `json:"cost"`
	// OneWay leaves the way back as it is.
	// +optional
	OneWay bool `json:"oneWay,omitempty"`
	// Price of a GB between the two, where the costs state prices. Defaults to that of the level.
	// +optional
	Price *float64 `json:"price,omitempty"`
}
