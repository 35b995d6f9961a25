package manifests

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Role is a role of a service account, with the reason of each rule.
type Role struct {
	Role    string   `json:"role"`
	Account string   `json:"account"`
	Presets []string `json:"presets"`
	// Namespace is "release" for a Role in the namespace of the release, or the name of another
	// one; empty: a ClusterRole.
	Namespace string `json:"namespace,omitempty"`
	// When is the part of the values with which the role is there; empty: always.
	When  string `json:"when,omitempty"`
	Rules []Rule `json:"rules"`
}

// Rule allows verbs on resources.
type Rule struct {
	APIGroups []string `json:"apiGroups"`
	Resources []string `json:"resources"`
	// ResourceNames are the only objects that the rule is about. Empty: all.
	ResourceNames []string `json:"resourceNames,omitempty"`
	Verbs         []string `json:"verbs"`
	Reason        string   `json:"reason"`
}

// Roles of all presets.
func Roles() ([]Role, error) {
	text, err := chartFile("files/permissions.yaml")
	if err != nil {
		return nil, err
	}
	var out []Role
	return out, yaml.UnmarshalStrict(text, &out)
}

// PermissionsReference is the page of the permissions, in Markdown.
func PermissionsReference() (string, error) {
	roles, err := Roles()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Permissions in a cluster\n\nGenerated from [the chart](../../deploy/helm/proxima/files/permissions.yaml) by `make gen`. What `proxima install kubernetes` and the Helm chart allow\n" +
		"Proxima, and why. The service account `proxima` is the control plane's, `proxima-agent` the agents'. Nothing else is allowed, and no role of\nKubernetes itself is bound.\n")
	for _, preset := range Presets() {
		fmt.Fprintf(&b, "\n## %s\n\n| account | where | API group | resources | verbs | reason |\n|---|---|---|---|---|---|\n", preset)
		for _, r := range roles {
			if !slices.Contains(r.Presets, preset) {
				continue
			}
			where := "all namespaces"
			switch r.Namespace {
			case "":
			case "release":
				where = "`" + Namespace + "`"
			default:
				where = "`" + r.Namespace + "`"
			}
			for _, rule := range r.Rules {
				resources := strings.ReplaceAll(strings.Join(rule.Resources, ", "), "*", "all")
				if len(rule.ResourceNames) > 0 {
					resources += " (" + strings.Join(rule.ResourceNames, ", ") + ")"
				}
				reason := rule.Reason
				if r.When != "" {
					reason += " With `" + r.When + ".enabled`."
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.Account, where, groups(rule.APIGroups), resources,
					strings.Join(rule.Verbs, ", "), reason)
			}
		}
	}
	return b.String(), nil
}

func groups(all []string) string {
	var out []string
	for _, g := range all {
		if g == "" {
			g = "core"
		}
		out = append(out, g)
	}
	return strings.Join(out, ", ")
}
