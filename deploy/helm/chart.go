// Package helm holds the Helm chart of Proxima. It is data: package manifests renders it
// without Helm, and tests compare that with what Helm renders.
package helm

import "embed"

// Chart is the folder of the chart, proxima, which is read only.
//
//go:embed all:proxima
var Chart embed.FS
