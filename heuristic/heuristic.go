// Package heuristic is how a program of one's own adds topology modes to Proxima: rules that
// say which zones use which endpoints of a Service, written in Go.
//
// Implement [Heuristic], name it with a domain of yours, and start Proxima's commands with
// package program. A Service chooses the rule by that name, as a value of the annotation
// service.kubernetes.io/topology-mode. Rules that need no program of one's own are written in
// CEL: see docs/concepts/heuristics.md.
//
// The package has types only, and imports nothing of Proxima.
package heuristic

import (
	"fmt"
	"strings"
)

// Zone is a topology zone of the cluster.
type Zone struct {
	Name, Region string
	// CPU is the zone's share of the allocatable CPU of nodes that count, from 0 to 1.
	CPU float64
	// Live: there is a node that is ready.
	Live bool
}

// Endpoint of a Service.
type Endpoint struct {
	// Address is an IP address; Node and Zone are empty if they are not known.
	Address, Node, Zone string
	Ready               bool
}

// Question is what a Heuristic is asked: about the endpoints of one Service and address
// family. Its slices and maps are the heuristic's, which may change and keep them.
type Question struct {
	Namespace, Service  string
	Labels, Annotations map[string]string
	IPv6                bool
	// Zones in ascending order of their names.
	Zones     []Zone
	Endpoints []Endpoint
}

// Answer of a Heuristic.
type Answer struct {
	// Zones that should use an endpoint, at most 8, by the question's endpoints; none for no
	// hint. Every reader of hints follows them. Nil: no endpoint has hints.
	Zones [][]string
	// Weights of each of the question's endpoints for connections from each of its zones, from 0
	// to 1e9: agents divide a zone's connections in proportion, and send nothing where it is 0.
	// A zone for which all are 0 goes by hints. Nil: hints alone decide.
	Weights [][]float64
}

// Heuristic decides which zones use which endpoints. It must be pure: equal questions have
// equal answers. It must be quick, as the Service waits for it, and safe for concurrent use.
type Heuristic interface {
	// Decide answers. After an error, or a panic, hints and weights stay as they are, and the
	// Service's condition says why.
	Decide(Question) (Answer, error)
}

// Func is a function as a Heuristic.
type Func func(Question) (Answer, error)

// Decide implements Heuristic.
func (f Func) Decide(q Question) (Answer, error) { return f(q) }

// Set of heuristics by the name that Services use: DOMAIN/NAME.
type Set map[string]Heuristic

// Check returns an error for a name that no Service can use, and for a heuristic that is
// missing.
func (s Set) Check() error {
	for name, h := range s {
		domain, rest, ok := strings.Cut(name, "/")
		f, isFunc := h.(Func)
		switch {
		case !ok || domain == "" || rest == "" || !strings.Contains(domain, "."):
			return fmt.Errorf("heuristic %q: name it DOMAIN/NAME, such as example.com/Canary", name)
		case reserved(domain):
			return fmt.Errorf("heuristic %q: the domain is taken, use one of your own", name)
		case h == nil || isFunc && f == nil:
			return fmt.Errorf("heuristic %q: there is none of that name", name)
		}
	}
	return nil
}

// reserved domains are Proxima's and those of Kubernetes.
func reserved(domain string) bool {
	for _, of := range [...]string{"proxima.dev", "kubernetes.io", "k8s.io"} {
		if domain == of || strings.HasSuffix(domain, "."+of) {
			return true
		}
	}
	return false
}
