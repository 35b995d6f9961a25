// Package manifests renders what is installed into a Kubernetes cluster: the templates of
// the Helm chart, without Helm.
//
// It owns the values and their checks, the rendering, and the table of permissions. The
// templates use few functions, all of which are here with the meaning that they have in
// Helm: a test compares the results. It talks to no cluster. Enter at Render.
package manifests

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/version"
)

// Namespace of Proxima in a cluster, where its own objects are.
const Namespace = "proxima-system"

// release is the name of what is installed, which Helm users choose.
const release = "proxima"

// Options of Render. The zero value renders the chart's defaults.
type Options struct {
	// Preset: planner-only, kube-proxy-replacement, zone or global. Empty: the values'.
	Preset string
	// Set has values as PATH=VALUE, as in image.tag=v1, and goes before the chart's. The value
	// is YAML, so that numbers, truth values and lists in brackets are what they look like.
	Set []string
	// Values are further values as YAML, which go before the chart's and after Set.
	Values []byte
	// Service names who manages the objects, for their labels. Empty: Proxima.
	Service string
	// AppVersion is the version that is installed. Empty: that of this program.
	AppVersion string
}

// Object is one of the manifests.
type Object struct {
	APIVersion, Kind, Namespace, Name string
	// Text is the object as YAML, with a newline at its end.
	Text string
}

// Render makes the manifests of a preset, in the order in which they can be created. It
// returns an error that names the value where one is wrong.
func Render(o Options) ([]Object, error) {
	values, err := valuesOf(o)
	if err != nil {
		return nil, err
	}
	files, err := render(values, release, Namespace, cmp.Or(o.Service, "proxima"), cmp.Or(o.AppVersion, version.Get().Version))
	if err != nil {
		return nil, err
	}
	var out []Object
	for _, text := range files {
		objects, err := split(text)
		if err != nil {
			return nil, err
		}
		out = append(out, objects...)
	}
	slices.SortStableFunc(out, func(a, b Object) int { return cmp.Compare(rank(a.Kind), rank(b.Kind)) })
	return out, nil
}

// order in which kinds can be created: what others refer to comes first.
var order = []string{
	"Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
	"Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment", "StatefulSet", "DaemonSet", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService",
}

func rank(kind string) int {
	if i := slices.Index(order, kind); i >= 0 {
		return i
	}
	return len(order)
}

// split a rendered file into its objects.
func split(text string) ([]Object, error) {
	var out []Object
	for part := range strings.SplitSeq("\n"+text, "\n---\n") {
		part = strings.Trim(part, "\n")
		if strings.TrimSpace(part) == "" {
			continue
		}
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Metadata   struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(decoded(part)), &head); err != nil {
			return nil, fmt.Errorf("a template of the chart makes no YAML: %w", err)
		}
		out = append(out, Object{head.APIVersion, head.Kind, head.Metadata.Namespace, head.Metadata.Name, part + "\n"})
	}
	return out, nil
}

// decoded is what split decodes of an object: everything, so that a value that makes no YAML is found; of a definition, which has no
// values and whose schema takes most of the time of Render, what is before that.
func decoded(part string) string {
	if !strings.Contains(part, "\nkind: CustomResourceDefinition\n") {
		return part
	}
	head, _, _ := strings.Cut(part, "\nspec:\n")
	return head
}

// Join writes objects as one stream of YAML documents.
func Join(all []Object) string {
	var b strings.Builder
	for i, o := range all {
		if i > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(o.Text)
	}
	return b.String()
}

// Removal returns what kubectl deletes to remove Proxima: the objects of all presets, by
// name alone, in the order in which they can be deleted. Definitions, and with them all
// objects of Proxima's kinds, are there if asked for.
func Removal(definitions bool) ([]Object, error) {
	seen := map[string]bool{}
	var all []Object
	for i, preset := range append(Presets(), Presets()...) {
		objects, err := Render(Options{Preset: preset, Set: []string{
			"feed.enabled=true", fmt.Sprintf("feed.persistence.enabled=%t", i >= len(Presets())), "createNamespace=true", "apiServer=https://none", "zone.name=none", "zone.global=none:1", "controlPlane.replicas=2", "ingress.replicas=1", "egress.replicas=1", "aggregatedAPI.enabled=true", "networkPolicy.enabled=true", fmt.Sprintf("sidecar.enabled=%t", preset == "kube-proxy-replacement" || preset == "zone"),
		}})
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			key := o.Kind + " " + o.Namespace + " " + o.Name
			if seen[key] || o.Kind == "CustomResourceDefinition" && !definitions {
				continue
			}
			seen[key] = true
			all = append(all, o.named())
		}
	}
	slices.SortStableFunc(all, func(a, b Object) int { return cmp.Compare(rank(b.Kind), rank(a.Kind)) })
	return all, nil
}

// named is the object without all but its name.
func (o Object) named() Object {
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n", o.APIVersion, o.Kind, o.Name)
	if o.Namespace != "" {
		text += "  namespace: " + o.Namespace + "\n"
	}
	o.Text = text
	return o
}
