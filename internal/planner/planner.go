// Package planner decides which share of a service's traffic goes from each zone to
// each other: as near as possible, no endpoint overloaded, always a plan.
//
// It owns the arithmetic: a Topology (zones and costs, made once), a Problem (one
// service port), a Solver that makes Plans, what a plan becomes under another demand
// (Metrics), and when a new plan replaces the published one (Republisher). Below it: hint
// approximates plans for consumers of zone hints, auto is Kubernetes' own heuristic,
// demand estimates where traffic starts, explain says why.
//
// It never does I/O, reads no clock, keeps no state between calls but in values of the
// caller, and knows no API types. Equal inputs give equal plans. DESIGN.md in this
// file gives the formulation and the proofs.
package planner
