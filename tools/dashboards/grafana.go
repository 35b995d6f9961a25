package main

// What follows is the part of Grafana's dashboard model that is written
// (schema version 39, Grafana 10).

type dashboard struct {
	UID           string      `json:"uid"`
	Title         string      `json:"title"`
	Description   string      `json:"description"`
	Tags          []string    `json:"tags"`
	SchemaVersion int         `json:"schemaVersion"`
	Version       int         `json:"version"`
	Refresh       string      `json:"refresh"`
	Time          timeRange   `json:"time"`
	Timezone      string      `json:"timezone"`
	Editable      bool        `json:"editable"`
	Templating    list        `json:"templating"`
	Annotations   list        `json:"annotations"`
	Panels        []panelJSON `json:"panels"`
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

type list struct {
	List []any `json:"list"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type variableJSON struct {
	Name       string      `json:"name"`
	Type       string      `json:"type"`
	Label      string      `json:"label"`
	Datasource *datasource `json:"datasource,omitempty"`
	Query      any         `json:"query"`
	Refresh    int         `json:"refresh,omitempty"`
	IncludeAll bool        `json:"includeAll,omitempty"`
	Multi      bool        `json:"multi,omitempty"`
	AllValue   string      `json:"allValue,omitempty"`
}

type panelJSON struct {
	ID          int          `json:"id"`
	Type        string       `json:"type"`
	Title       string       `json:"title"`
	Description string       `json:"description"`
	Datasource  datasource   `json:"datasource"`
	GridPos     gridPos      `json:"gridPos"`
	Targets     []targetJSON `json:"targets"`
	FieldConfig fieldConfig  `json:"fieldConfig"`
}

type gridPos struct {
	X int `json:"x"`
	Y int `json:"y"`
	W int `json:"w"`
	H int `json:"h"`
}

type targetJSON struct {
	Expr   string `json:"expr"`
	Legend string `json:"legendFormat"`
	RefID  string `json:"refId"`
}

type fieldConfig struct {
	Defaults  fieldDefaults `json:"defaults"`
	Overrides []any         `json:"overrides"`
}

type fieldDefaults struct {
	Unit       string      `json:"unit"`
	Thresholds *thresholds `json:"thresholds,omitempty"`
}

type thresholds struct {
	Mode  string `json:"mode"`
	Steps []step `json:"steps"`
}

type step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// prometheus is the data source that the reader of a dashboard chooses.
var prometheus = datasource{Type: "prometheus", UID: "${datasource}"}

// render lays panels out in rows of two thirds of a screen's height, from left to right, 24
// units wide, as Grafana has it.
func render(p page) dashboard {
	d := dashboard{
		UID: p.uid, Title: p.title, Description: p.description, Tags: []string{"proxima"}, SchemaVersion: 39, Version: 1, Refresh: "30s",
		Time: timeRange{From: "now-3h", To: "now"}, Timezone: "browser", Editable: true,
		Templating:  list{List: []any{variableJSON{Name: "datasource", Type: "datasource", Query: "prometheus", Label: "Data source"}}},
		Annotations: list{List: []any{}},
	}
	for _, v := range p.variables {
		out := variableJSON{
			Name: v.name, Type: "query", Label: v.label, Datasource: &prometheus,
			Query: map[string]string{"query": v.query, "refId": v.name}, Refresh: 2, Multi: true,
		}
		if !v.some {
			out.IncludeAll, out.AllValue = true, ".*"
		}
		d.Templating.List = append(d.Templating.List, out)
	}
	const width, height = 24, 8
	x, y := 0, 0
	for i, panel := range p.panels {
		if x+panel.width > width {
			x, y = 0, y+height
		}
		out := panelJSON{
			ID: i + 1, Type: panel.kind, Title: panel.title, Description: panel.description, Datasource: prometheus,
			GridPos: gridPos{x, y, panel.width, height}, FieldConfig: fieldConfig{Defaults: fieldDefaults{Unit: panel.unit}, Overrides: []any{}},
		}
		if panel.steps != nil {
			out.FieldConfig.Defaults.Thresholds = &thresholds{Mode: "absolute", Steps: panel.steps}
		}
		for k, s := range panel.series {
			out.Targets = append(out.Targets, targetJSON{Expr: s.expr, Legend: s.legend, RefID: string(rune('A' + k))})
		}
		d.Panels = append(d.Panels, out)
		x += panel.width
	}
	return d
}
