package cli

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/proxima-mesh/proxima/internal/admin"
)

// printFederation prints the connection of a zone to global.
func printFederation(w io.Writer, f *admin.FederationStatus) {
	if f == nil || f.Zone == "" {
		return
	}
	state := "not connected"
	switch {
	case f.Elsewhere:
		state = "another instance has the connection"
	case f.Connected:
		state = fmt.Sprintf("connected, %d changes behind", f.Behind)
		if f.Instance != "" {
			state = fmt.Sprintf("connected to %s, %d changes behind", f.Instance, f.Behind)
		}
	}
	fmt.Fprintf(w, "zone\t%s, global %s, %s\n", f.Zone, f.Global, state)
	if f.Link != nil && f.Link.Sent != nil {
		fmt.Fprintf(w, "lag to global\t%s\n", lagText(f.Link.Sent))
	}
}

// printZonesOf prints the zones of a global control plane.
func printZonesOf(w *tabwriter.Writer, f *admin.FederationStatus) {
	if f == nil || len(f.Zones) == 0 {
		return
	}
	fmt.Fprintln(w)
	printZones(w, f.Zones)
}

// printLit prints the rows of the board that are so, or may be.
func printLit(w io.Writer, f *admin.FederationStatus) {
	if f == nil {
		return
	}
	for _, row := range f.Failures {
		if row.Lit() {
			fmt.Fprintf(w, "board\t%s: %s; \"proxima zone board\" says what works meanwhile\n", row.Failure, row.State)
		}
	}
}
