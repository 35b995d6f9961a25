package crd

import (
	"fmt"
	"strings"
)

// Reference is the page of the definitions, in Markdown.
func Reference() (string, error) {
	all, err := All()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# CustomResourceDefinitions\n\nGenerated from the code by `make gen`. In a Kubernetes cluster its API server stores Proxima's kinds, by the\n" +
		"[definitions](../../deploy/helm/proxima/files/crds) that `proxima install kubernetes` and the Helm chart install. `kubectl explain KIND --recursive` has every field.\n\n" +
		"| kind | group | versions | short names | scope | status |\n|---|---|---|---|---|---|\n")
	for _, d := range all {
		var versions []string
		for _, v := range d.Spec.Versions {
			versions = append(versions, v.Name)
		}
		status := "–"
		if d.Spec.Versions[0].Subresources != nil {
			status = "sub-resource"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", d.Spec.Names.Kind, d.Spec.Group, strings.Join(versions, ", "),
			orElse(strings.Join(d.Spec.Names.ShortNames, ", "), "–"), d.Spec.Scope, status)
	}
	b.WriteString("\nA GlobalSecret has no definition: in a cluster it is a Secret of type `mesh.proxima.dev/global` in the namespace `proxima-system`.\n")
	gaps(&b, "What schemas do not check", "A control plane outside Kubernetes refuses these mistakes when they are written. In a cluster its validating webhook does, in the same words; without it (`webhook.enabled: false`), and in namespace `kube-system`, the API server accepts them.", Beyond())
	gaps(&b, "What schemas refuse in addition", "A control plane outside Kubernetes accepts these.", Stricter())
	gaps(&b, "Defaults that schemas do not fill in", "They are worked out when objects are read.", Defaults())
	columns(&b)
	return b.String(), nil
}

func gaps(b *strings.Builder, title, text string, all []Gap) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n| kind | field | rule | why |\n|---|---|---|---|\n", title, text)
	for _, g := range all {
		fmt.Fprintf(b, "| %s | `%s` | %s | %s |\n", orElse(g.Kind, "all"), g.Field, g.What, g.Why)
	}
}

// columns that an API server cannot print.
func columns(b *strings.Builder) {
	b.WriteString("\n## Columns that are left out\n\n`proxima get` prints them in a cluster, too: it has the objects.\n\n| kind | column | why |\n|---|---|---|\n")
	for _, d := range Descriptors() {
		for _, c := range d.Columns[1:] {
			if at, err := cellOf(d, c); err == nil && at.out != "" {
				fmt.Fprintf(b, "| %s | %s | %s |\n", d.GVK.Kind, c.Name, at.out)
			}
		}
	}
}
