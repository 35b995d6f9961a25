// Package program runs the command proxima, with heuristics of one's own: see package
// heuristic, and examples/heuristic for a program.
package program

import (
	"os"

	"github.com/proxima-mesh/proxima/heuristic"
	"github.com/proxima-mesh/proxima/internal/cli"
)

// Main runs the command line of this process with these heuristics, and returns the exit
// code: 0, 1 after a failure, 2 after a mistake in usage, which a name in the set may be. It
// returns when the command ends, which for a control plane is on SIGTERM.
func Main(heuristics heuristic.Set) int {
	return cli.MainWith(os.Args[1:], cli.Stdio(), heuristics)
}
