// Package rule runs people's own rules for topology-aware routing: CEL
// expressions that say which zones should use an endpoint, and with what weight.
//
// It owns the language (what an expression sees, in Input), its limits, and the
// promise that no zone is left without an endpoint unless the rule says so. Enter at
// Compile, then Program.Eval. It is pure: an expression reaches nothing but its input,
// equal inputs give equal results, and none runs for longer than it may. It knows no
// API types; who stores rules, and what becomes of results, is not its business.
package rule

import (
	"fmt"
	"strings"
	"time"
)

// Limits of what an expression may do.
const (
	// MaxVariables and MaxExpression (bytes) bound the rule itself.
	MaxVariables  = 16
	MaxExpression = 4096
	// maxNesting of an expression.
	maxNesting = 50
	// MaxCost of one evaluation of one expression, in CEL's units of about an operation
	// each. A rule whose expressions could cost more with maxEndpoints and maxZones is
	// refused; one that does so all the same is stopped.
	MaxCost = 100_000
	// maxTotal is the cost of all evaluations for one Service together.
	maxTotal = 2_000_000
	// Timeout of all evaluations together, in case units are slow: usually they take less
	// than half a microsecond.
	Timeout = time.Second
	// interruptEvery so many steps of a loop the timeout is looked at.
	interruptEvery = 100

	// maxEndpoints and maxZones are what worst cases are reckoned with: those of the
	// Endpoints API, and what plans are made for.
	maxEndpoints = 1000
	maxZones     = 64
	// maxText is the longest text in an input: a name of a node.
	maxText = 253

	// MaxWeight is the highest that a weight expression may give.
	MaxWeight = 1e6

	// MaxZonesPerEndpoint is how many zones the hints of an endpoint can name
	// (discovery.k8s.io/v1).
	MaxZonesPerEndpoint = 8
)

// Fallback is what becomes of a zone that the rule allows no endpoint.
type Fallback string

const (
	// All: it may use every endpoint. The default.
	All Fallback = "All"
	// Fail: the result is refused.
	Fail Fallback = "Fail"
	// None: it stays without, and consumers of hints do as they do with zones that no hint
	// names.
	None Fallback = "None"
)

// Spec is a rule.
type Spec struct {
	// Variables are evaluated once for a Service, in order; each may use those before.
	Variables []Variable
	// Zones is evaluated for each ready endpoint: the names of the zones that should use it.
	// Empty: Weight says it alone.
	Zones string
	// Weight is evaluated for each ready endpoint and each zone that Zones allows it, or
	// each if there is no such expression: a number from 0 to MaxWeight, in proportion to
	// which the zone's connections are divided. With 0 the zone does not use it. Empty: all
	// endpoints that a zone may use weigh alike.
	Weight string
	// Fallback; empty: All.
	Fallback Fallback
}

// Variable is a value with a name.
type Variable struct{ Name, Expression string }

// Input is what expressions see. Fields have the names of their tags.
type Input struct {
	Service   Service
	Zones     []Zone // ascending by name
	Endpoints []Endpoint
}

// Service is the Service that hints are decided for.
type Service struct {
	Namespace string `cel:"namespace"`
	Name      string `cel:"name"`
	// Measured: the demand of zones is, and not guessed from their CPU. Rate is in
	// connections per second.
	Measured bool    `cel:"measured"`
	Rate     float64 `cel:"rate"`
}

// Zone is a zone of the cluster.
type Zone struct {
	Name   string `cel:"name"`
	Region string `cel:"region"`
	// Live: a node is ready.
	Live bool `cel:"live"`
	// CPU, Demand and Capacity are shares of the whole, 0 to 1: of allocatable CPU, of the
	// Service's new connections that start here, and of its ready endpoints.
	CPU      float64 `cel:"cpu"`
	Demand   float64 `cel:"demand"`
	Capacity float64 `cel:"capacity"`
	// Endpoints that are ready.
	Endpoints int64 `cel:"endpoints"`
}

// Endpoint of the Service.
type Endpoint struct {
	Address string `cel:"address"`
	// Zone and Node are empty if they are not known; Region is the zone's.
	Zone   string `cel:"zone"`
	Region string `cel:"region"`
	Node   string `cel:"node"`
	Ready  bool   `cel:"ready"`
}

// Result says which zones should use which endpoint.
type Result struct {
	// Zones by endpoint, in the order of the input, each ascending; nil for one that is not
	// ready. Where weights name more than MaxZonesPerEndpoint, those with the highest.
	Zones [][]string
	// Weights by endpoint and zone, in the orders of the input; nil: the rule gives none. A
	// zone that may use no endpoint has only zeros.
	Weights [][]float64
	// Filled are the zones that the rule allowed no endpoint, and Fallback gave some.
	Filled []string
	// Cost of it.
	Cost uint64
}

// FieldError says which part of a rule is refused, and why.
type FieldError struct {
	// Field is a path such as variables[1].expression.
	Field, Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// Errors are all that is wrong with a rule.
type Errors []*FieldError

func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return strings.Join(texts, "; ")
}

func (e *Errors) add(field, format string, args ...any) {
	*e = append(*e, &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)})
}
