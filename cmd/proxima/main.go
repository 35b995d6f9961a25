// Command proxima gives any set of machines Kubernetes Services.
package main

import (
	"os"

	"github.com/proxima-mesh/proxima/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.Stdio()))
}
