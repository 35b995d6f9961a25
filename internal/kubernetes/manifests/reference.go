package manifests

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/yaml"
)

// ValuesReference is the page of the chart's values, in Markdown.
func ValuesReference() (string, error) {
	schema, err := Schema()
	if err != nil {
		return "", err
	}
	text, err := chartFile("values.yaml")
	if err != nil {
		return "", err
	}
	defaults := map[string]any{}
	if err := yaml.Unmarshal(text, &defaults); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Values of the chart\n\nGenerated from [the chart](../../deploy/helm/proxima/values.schema.json) by `make gen`. `proxima install kubernetes` takes each by `--set PATH=VALUE` or `--values FILE`,\n" +
		"Helm as always. A value that is not here is refused.\n\n| value | default | meaning |\n|---|---|---|\n")
	list(&b, "", schema, defaults)
	return b.String(), nil
}

// list the values below a path.
func list(b *strings.Builder, path string, schema *spec.Schema, defaults map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		p := schema.Properties[name]
		at := path + name
		below, isMap := defaults[name].(map[string]any)
		if isMap && p.AdditionalProperties != nil && !p.AdditionalProperties.Allows && p.AdditionalProperties.Schema == nil && !leaf(&p) {
			list(b, at+".", &p, below)
			continue
		}
		value, ok := defaults[name]
		if !ok {
			continue // taken, and without a meaning
		}
		text, err := json.Marshal(value)
		if err != nil {
			text = fmt.Append(nil, value)
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s%s |\n", at, text, p.Description, words(p.Enum))
	}
}

// leaf reports an object that is one value of the reader: its parts are Kubernetes' own.
func leaf(s *spec.Schema) bool { return s.Properties["requests"].Type != nil }

func words(all []any) string {
	if len(all) == 0 {
		return ""
	}
	var out []string
	for _, v := range all {
		out = append(out, fmt.Sprintf("`%v`", v))
	}
	return " One of " + strings.Join(out, ", ") + "."
}
