// Package trafficplan reads TrafficPlans: it says what a plan means for the endpoints
// that a Service has now.
//
// It owns the grouping of ports that share EndpointSlices, and the division of a zone's
// share among that zone's endpoints, so an endpoint gets traffic before the plan that
// counts it. Enter at Of for one Service, at Table to follow a catalog. It writes
// nothing and decides nothing; package topology writes plans.
package trafficplan
