package app

import (
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/finding"
)

// DefaultProbePort is the UDP port at which agents answer the probes of others, unless it is configured otherwise.
const DefaultProbePort = 10256

// findProblems of a control plane.
func findProblems() admin.ProblemFinder { return finding.Finder{ProbePort: DefaultProbePort}.Find }
