// Command proxima-sidecar supervises the proxy of one workload. It is small, as there is one for
// each workload.
package main

import (
	"os"

	"github.com/proxima-mesh/proxima/internal/sidecar"
)

func main() { os.Exit(sidecar.Main(os.Args[1:], os.Stdout, os.Stderr)) }
