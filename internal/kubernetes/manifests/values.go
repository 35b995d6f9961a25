package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/deploy/helm"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// Presets in the order in which they are documented.
func Presets() []string { return []string{"planner-only", "kube-proxy-replacement", "zone", "global"} }

// chartFile reads a file of the chart, which is in the program.
func chartFile(name string) ([]byte, error) { return fs.ReadFile(helm.Chart, root+"/"+name) }

// valuesOf lays the values of the user over those of the chart, and checks the result.
func valuesOf(o Options) (map[string]any, error) {
	text, err := chartFile("values.yaml")
	if err != nil {
		return nil, err
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return nil, err
	}
	given := map[string]any{}
	if err := yaml.Unmarshal(o.Values, &given); err != nil {
		return nil, wrong(fmt.Errorf("the values are no YAML: %w", err), "")
	}
	merge(values, given)
	if o.Preset != "" {
		values["preset"] = o.Preset
	}
	for _, s := range o.Set {
		if err := set(values, s); err != nil {
			return nil, err
		}
	}
	return values, check(values)
}

// merge lays maps over maps; all else replaces what is there.
func merge(under, over map[string]any) {
	for k, v := range over {
		o, isMap := v.(map[string]any)
		if u, ok := under[k].(map[string]any); ok && isMap {
			merge(u, o)
			continue
		}
		under[k] = v
	}
}

// set one value by its path. A dot that belongs to a name has a backslash before it.
func set(values map[string]any, text string) error {
	path, value, ok := strings.Cut(text, "=")
	if !ok || path == "" {
		return wrong(fmt.Errorf("--set %s: PATH=VALUE is needed", text), "as in --set image.tag=v1.0.0")
	}
	var v any
	if err := yaml.Unmarshal([]byte(value), &v); err != nil {
		return wrong(fmt.Errorf("--set %s: the value is no YAML: %w", text, err), "quote a text that is not meant as YAML: "+path+`='"…"'`)
	}
	if v == nil {
		v = "" // nothing after the equals sign
	}
	names := keys(path)
	for _, name := range names[:len(names)-1] {
		next, ok := values[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			values[name] = next
		}
		values = next
	}
	values[names[len(names)-1]] = v
	return nil
}

func keys(path string) []string {
	const dot = "\x00"
	parts := strings.Split(strings.ReplaceAll(path, `\.`, dot), ".")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], dot, ".")
	}
	return parts
}

// Schema of the values, as in the chart.
func Schema() (*spec.Schema, error) {
	text, err := chartFile("values.schema.json")
	if err != nil {
		return nil, err
	}
	out := &spec.Schema{}
	return out, json.Unmarshal(text, out)
}

// check the values by the schema, and return all mistakes.
func check(values map[string]any) error {
	schema, err := Schema()
	if err != nil {
		return err
	}
	result := validate.NewSchemaValidator(schema, nil, "", strfmt.Default).Validate(values)
	if result.IsValid() {
		return nil
	}
	var texts []string
	for _, e := range result.Errors {
		texts = append(texts, strings.TrimPrefix(e.Error(), "."))
	}
	slices.Sort(texts)
	return wrong(errors.New(strings.Join(slices.Compact(texts), "; ")), "\"proxima docs reference/chart-values\" lists the values")
}

// wrong is a mistake in the values.
func wrong(err error, hint string) error {
	return &problem.Error{Code: problem.Usage, Op: "values", Err: err, Hint: hint}
}
