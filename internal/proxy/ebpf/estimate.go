package ebpf

import (
	"fmt"
	"time"
)

// Estimate is what a self-test says that the layer would save on this node.
type Estimate struct {
	// Unavailable says why the layer does not work here, or could not be tested; empty: it works.
	Unavailable string `json:"unavailable,omitempty"`
	// Below is the mode that the layer was compared with, and that would serve what passes.
	Below string `json:"below,omitempty"`
	// Without and With the layer: medians of the time that a short connection of this node to a virtual address takes, from its
	// socket to its end. In JSON they are nanoseconds.
	Without time.Duration `json:"withoutNanoseconds,omitempty"`
	With    time.Duration `json:"withNanoseconds,omitempty"`
	// Connections that were made, in each of the two ways.
	Connections int `json:"connections,omitempty"`
}

// Saved per short connection; not positive: nothing that could be measured.
func (e *Estimate) Saved() time.Duration { return e.Without - e.With }

// String says in a line what the layer would save, or why it would not work.
func (e *Estimate) String() string {
	if e.Unavailable != "" {
		return "mode ebpf would not work here: " + e.Unavailable
	}
	measured := fmt.Sprintf("(measured: %s µs with the layer, %s µs with %s alone, medians of %d connections each)",
		micros(e.With), micros(e.Without), e.Below, e.Connections)
	if e.Saved() <= 0 {
		return "mode ebpf works here, and would save nothing that a self-test can measure " + measured
	}
	return fmt.Sprintf("mode ebpf would save about %s µs per short connection of this node %s; choose it with --mode ebpf", micros(e.Saved()), measured)
}

func micros(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Microsecond)) }
