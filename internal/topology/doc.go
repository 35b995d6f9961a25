// Package topology is the zone planner as a controller: it plans the Services whose
// annotation asks for it, writes the plans as TrafficPlans, gives hints to the
// EndpointSlices, and says on each Service what was decided and why.
//
// It owns the annotations and their parameters, the decision when a plan is published,
// conditions and events. Enter at New. Controller.Run is for the leader;
// Controller.Advise is what the EndpointSlice controller asks; Controller.Explain and
// Controller.Simulate answer people on every instance. The arithmetic is package
// planner's; plans are read by package trafficplan. DESIGN.md has the invariants.
package topology
