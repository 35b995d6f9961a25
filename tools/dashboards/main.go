// Dashboards writes the dashboards of deploy/grafana. What they show is in pages.go.
//
//	dashboards DIR
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dashboards DIR")
		os.Exit(2)
	}
	for _, p := range pages() {
		body, err := p.json()
		if err == nil {
			err = os.WriteFile(filepath.Join(os.Args[1], p.file()), body, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "dashboards:", err)
			os.Exit(1)
		}
	}
}

// page is one dashboard.
type page struct {
	uid, title, description string
	variables               []variable
	panels                  []panel
}

// variable lets the reader choose values of a label.
type variable struct {
	name, label, query string
	// some values, but never all at once: each adds series to a panel.
	some bool
}

type panel struct {
	// kind is Grafana's type: timeseries, stat or gauge; width is of 24.
	kind, title, description, unit string
	width                          int
	series                         []series
	steps                          []step
}

type series struct{ expr, legend string }

func (p page) file() string { return p.uid[len("proxima-"):] + ".json" }

// json of the dashboard, as it is committed.
func (p page) json() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(render(p))
	return b.Bytes(), err
}
