package history

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func parsed(t *testing.T, text string) map[string]any {
	t.Helper()
	if text == "" {
		return nil
	}
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFields(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after string
		sealed        bool
		want          string
	}{
		"a port": {
			before: "spec: {ports: [{port: 80}]}", after: "spec: {ports: [{port: 8080}]}",
			want: "spec.ports[0].port 80 8080",
		},
		"nothing that tells": {
			before: "metadata: {resourceVersion: '1', managedFields: [{manager: a}], generation: 1}",
			after:  "metadata: {resourceVersion: '2', managedFields: [{manager: b}], generation: 2}",
		},
		"a name with dots": {
			before: "metadata: {labels: {a.b/c: x}}", after: "metadata: {labels: {a.b/c: z}}",
			want: `metadata.labels["a.b/c"] "x" "z"`,
		},
		"the first endpoint goes": {
			before: "endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2], conditions: {ready: true}}]",
			after:  "endpoints: [{addresses: [10.0.0.2], conditions: {ready: false}}]",
			want:   "endpoints[10.0.0.1] {\"addresses\":[\"10.0.0.1\"]} \nendpoints[10.0.0.2].conditions.ready true false",
		},
		"conditions change places": {
			before: "conditions: [{type: A, status: 'True'}, {type: B, status: 'True'}]",
			after:  "conditions: [{type: B, status: 'False'}, {type: A, status: 'True'}]",
			want:   `conditions[B].status "True" "False"`,
		},
		"elements without names": {
			before: "rules: [{a: 1}, {a: 2}]", after: "rules: [{a: 1}]",
			want: "rules[1].a 2 ",
		},
		"a list of values": {
			before: "addresses: [a, b]", after: "addresses: [b]",
			want: `addresses ["a","b"] ["b"]`,
		},
		"created":        {after: "spec: {a: 1, b: {}, c: {d: x}}", want: "spec.a  1\nspec.c.d  \"x\""},
		"another type":   {before: "a: 1", after: "a: {b: 2}", want: "a 1 {\"b\":2}"},
		"a secret":       {before: "data: {k: eA==}\ntype: a", after: "data: {k: eQ==}\ntype: b", sealed: true, want: "data.k hidden\ntype \"a\" \"b\""},
		"a new secret":   {after: "data: {k: eA==}", sealed: true, want: "data.k hidden"},
		"last applied":   {after: "metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: x, a: b}}", sealed: true, want: "metadata.annotations.a  \"b\"\nmetadata.annotations[\"kubectl.kubernetes.io/last-applied-configuration\"] hidden"},
		"twice the name": {before: "l: [{name: a, v: 1}, {name: a, v: 2}]", after: "l: [{name: a, v: 2}]", want: "l[0].v 1 2\nl[1].name \"a\" \nl[1].v 2 "},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range fieldsOf(parsed(t, tc.before), parsed(t, tc.after), tc.sealed) {
				if f.Hidden {
					got = append(got, f.Path+" hidden")
				} else {
					got = append(got, f.Path+" "+string(f.From)+" "+string(f.To))
				}
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithoutSecrets(t *testing.T) {
	got := parsed(t, "kind: Secret\ntype: a\ndata: {k: eA==}\nstringData: {k: x}\nother: y\nmetadata: {name: n, annotations: {kubectl.kubernetes.io/last-applied-configuration: x, a: b}}")
	withoutSecrets(got)
	if diff := cmp.Diff(parsed(t, "kind: Secret\ntype: a\nmetadata: {name: n, annotations: {a: b}}"), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
