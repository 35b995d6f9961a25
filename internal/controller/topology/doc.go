// Package topology brings the zone planner to life: it plans the Services whose
// annotation asks for it, gives the plans' weights to the views of zones and hints to
// the EndpointSlices, and tells on each Service what was decided and why.
//
// It owns the annotations and their parameters, the plans of all Services, the
// decision when one is published, conditions and events. Enter at New. Follow a
// catalog through Controller.Source, which plans each delta before its reader sees it;
// Controller.Advise is what the EndpointSlice controller asks; Controller.Explain and
// Controller.Simulate answer people. The arithmetic is package planner's; how slices
// are packed, and how views travel, is not known here. DESIGN.md has the invariants.
package topology
