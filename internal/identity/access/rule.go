package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/identity"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Rule lets a group do something. What no rule allows is denied.
type Rule struct {
	// Group of users that the rule is for.
	Group string
	Verbs []string
	// APIGroups and Resources; a sub-resource is "nodes/status", "*" is any.
	// "*" among Resources covers sub-resources; Except takes some out.
	APIGroups []string
	Resources []string
	Except    []string
	// Namespace that it is limited to; empty: all.
	Namespace string
	// OwnNamespace limits it to the namespace of the requesting workload.
	OwnNamespace bool
	// OwnName: only objects named like the node. Creation is let through where the
	// name is not known yet; WritePolicy decides then.
	OwnName bool
	// Paths of requests that are not for resources; a trailing * is any rest.
	Paths []string
	// Why, for the documentation.
	Why string
}

var (
	read = []string{"get", "list", "watch"}
	// write leaves out deletecollection: it would skip the check of each object's owner.
	write     = []string{"create", "update", "patch", "delete"}
	heartbeat = []string{"get", "create", "update", "patch", "delete"}
)

// LeaseNamespace is where nodes keep their Leases, as in Kubernetes.
const LeaseNamespace = "kube-node-lease"

const (
	coordinationGroup = "coordination.k8s.io"
	meshGroup         = "mesh.proxima.dev"
	plannerGroup      = "planner.mesh.proxima.dev"
	multiclusterGroup = "multicluster.x-k8s.io"
)

// Rules is the whole table. The caller owns the slice and shares the rest.
func Rules() []Rule {
	return []Rule{
		{Group: user.AllUnauthenticated, Verbs: []string{"get", "head"},
			Paths: []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*", "/version", "/version/"},
			Why:   "health and version are no secret"},
		{Group: user.AllUnauthenticated, Verbs: []string{"get", "head"}, Paths: []string{"/console", "/console/*"},
			Why: "the files of the console hold no data"},

		{Group: user.AllAuthenticated, Verbs: []string{"get", "head"},
			Paths: []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*", "/version", "/version/",
				"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/console", "/console/*"},
			Why: "clients discover what the API serves"},
		{Group: user.AllAuthenticated, Verbs: []string{"get"},
			Paths: []string{"/proxima/v1/feed/history", "/proxima/v1/feed/state", "/proxima/v1/feed/tail"},
			Why:   "the past of objects that the user may get, or list; values of secrets are left out"},
		{Group: user.AllAuthenticated, Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io", "authentication.k8s.io"},
			Resources: []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"},
			Why:       "every user may query their own permissions (kubectl auth can-i)"},

		{
			Group:     identity.GroupAdmins,
			Verbs:     []string{"*"},
			APIGroups: []string{"*"},
			Resources: []string{"*"},
			Why:       "an admin may do everything",
		},
		{Group: identity.GroupAdmins, Verbs: []string{"*"}, Paths: []string{"*"}, Why: "an admin may do everything"},

		{
			Group:     identity.GroupReadOnly,
			Verbs:     read,
			APIGroups: []string{"*"},
			Resources: []string{"*"},
			Except:    []string{"secrets", "globalsecrets"},
			Why:       "sees everything but secrets",
		},
		{Group: identity.GroupReadOnly, Verbs: []string{"get", "head"}, Paths: []string{"/metrics", "/metrics/*"},
			Why: "metrics"},
		{Group: identity.GroupReadOnly, Verbs: []string{"get"}, Paths: []string{"/proxima/v1/explain/*", "/proxima/v1/simulate"},
			Why: "why traffic goes where it goes, and what would change it"},
		{Group: identity.GroupReadOnly, Verbs: []string{"get"}, Paths: []string{"/proxima/v1/status", "/proxima/v1/feed/status", "/proxima/v1/feed/cursors", "/proxima/v1/demand", "/proxima/v1/zones/shift"},
			Why: "how the control plane is, where traffic starts, and what a zone shift would move"},
		{Group: identity.GroupReadOnly, Verbs: []string{"get"}, Paths: []string{"/proxima/v1/summary/*", "/proxima/v1/problems", "/proxima/v1/plot/*", "/proxima/v1/series", "/proxima/v1/changes/*", "/proxima/v1/stream"},
			Why: "sums of all Services, what is wrong, and how far a change got"},
		{Group: identity.GroupReadOnly, Verbs: []string{"post"}, Paths: []string{"/proxima/v1/simulate/all"},
			Why: "a question with a body: it changes nothing"},
		{Group: identity.GroupReadOnly, Verbs: []string{"get"}, Paths: []string{"/proxima/v1/nodes/drain"},
			Why: "how far the drain of a node is"},

		{
			Group:     identity.GroupNodes,
			Verbs:     read,
			APIGroups: []string{""},
			Resources: []string{"services", "endpoints", "nodes", "namespaces", "pods"},
			Why:       "what a node needs to route and to resolve names",
		},
		{Group: identity.GroupNodes, Verbs: read, APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"},
			Why: "what a node needs to route"},
		{Group: identity.GroupNodes, Verbs: read, APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs", "ipaddresses"},
			Why: "an unallocated address of a service range is dropped"},
		{Group: identity.GroupNodes, Verbs: read, APIGroups: []string{meshGroup}, Resources: []string{"*"}, Except: []string{"globalsecrets"},
			Why: "workloads, zones and policies"},
		{Group: identity.GroupNodes, Verbs: read, APIGroups: []string{plannerGroup}, Resources: []string{"trafficplans"},
			Why: "the plans of the services that it may read; AllowWrite refuses every write but the planner's"},
		{Group: identity.GroupNodes, Verbs: read, APIGroups: []string{multiclusterGroup}, Resources: []string{"*"},
			Why: "services that zones export and import"},
		{Group: identity.GroupNodes, Verbs: write, APIGroups: []string{meshGroup}, Resources: []string{"zoneingresses", "zoneegresses"}, OwnName: true,
			Why: "the gateway that runs under the node's name"},
		{Group: identity.GroupNodes, Verbs: write, APIGroups: []string{""}, Resources: []string{"nodes"}, OwnName: true,
			Why: "the agent owns its Node"},
		{
			Group:     identity.GroupNodes,
			Verbs:     []string{"update", "patch"},
			APIGroups: []string{""},
			Resources: []string{"nodes/status"},
			OwnName:   true,
			Why:       "the agent owns its Node",
		},
		{Group: identity.GroupNodes, Verbs: heartbeat, APIGroups: []string{coordinationGroup}, Resources: []string{"leases"},
			Namespace: LeaseNamespace, OwnName: true, Why: "the agent's heartbeat"},
		{Group: identity.GroupNodes, Verbs: write, APIGroups: []string{meshGroup}, Resources: []string{"dataplanes"},
			Why: "workloads of its own, within the bounds of its token; WritePolicy compares spec.nodeName, namespace, labels and addresses"},
		{Group: identity.GroupNodes, Verbs: []string{"update", "patch"}, APIGroups: []string{meshGroup}, Resources: []string{"dataplanes/status"},
			Why: "health of its own workloads, within the same bounds"},
		{
			Group:     identity.GroupNodes,
			Verbs:     []string{"create", "update", "patch"},
			APIGroups: []string{"", "events.k8s.io"},
			Resources: []string{"events"},
			Why:       "what the agent reports",
		},
		{Group: identity.GroupNodes, Verbs: []string{"post"}, Paths: []string{identity.CertificatesPath}, Why: "its own certificate"},

		{Group: identity.GroupZones, Verbs: []string{"post"}, Paths: []string{identity.CertificatesPath},
			Why: "its own certificate; all else goes over the federation stream"},

		{Group: identity.GroupWorkloads, Verbs: []string{"post"}, Paths: []string{identity.CertificatesPath},
			Why: "its own certificate, with which the proxy of a workload connects"},

		{Group: identity.GroupWorkloads, Verbs: []string{"get", "create", "update", "patch", "delete"}, APIGroups: []string{meshGroup},
			Resources: []string{"dataplanes"}, OwnNamespace: true,
			Why: "its own registration; WritePolicy compares service account, labels and addresses"},
		{Group: identity.GroupWorkloads, Verbs: []string{"get", "update", "patch"}, APIGroups: []string{meshGroup},
			Resources: []string{"dataplanes/status"}, OwnNamespace: true, Why: "its own health"},
		{Group: identity.GroupWorkloads, Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"services"},
			OwnNamespace: true, Why: "the Services of its namespace, for environment variables"},
		{Group: identity.GroupWorkloads, Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"},
			Why: "whether the machine that it runs on has a Node"},
	}
}

// query is the part of a request that rules match.
type query struct {
	verb, apiGroup, resource, subresource, namespace, name string
	path                                                   string
	isResource                                             bool
	node                                                   string
	// workload is the namespace of the requesting workload; empty: it is none.
	workload string
}

func (r *Rule) allows(q *query) bool {
	if !slices.Contains(r.Verbs, q.verb) && !slices.Contains(r.Verbs, "*") {
		return false
	}
	if !q.isResource {
		return slices.ContainsFunc(r.Paths, func(p string) bool { return matchPath(p, q.path) })
	}
	return r.covers(q) &&
		(r.Namespace == "" || r.Namespace == q.namespace) &&
		(!r.OwnNamespace || q.workload != "" && q.namespace == q.workload) &&
		(!r.OwnName || q.name == q.node || q.name == "" && q.verb == "create")
}

// covers matches the resource alone.
func (r *Rule) covers(q *query) bool {
	resource := q.resource
	if q.subresource != "" {
		resource += "/" + q.subresource
	}
	has := func(list []string, s string) bool { return slices.Contains(list, s) || slices.Contains(list, "*") }
	return has(r.APIGroups, q.apiGroup) && has(r.Resources, resource) && !slices.Contains(r.Except, q.resource)
}

// matchPath: a trailing star stands for any rest that does not climb up.
func matchPath(pattern, path string) bool {
	prefix, star := strings.CutSuffix(pattern, "*")
	if !star {
		return pattern == path
	}
	return strings.HasPrefix(path, prefix) && !strings.Contains(path, "/..")
}

// Document prints the table as Markdown.
func Document() string {
	var b strings.Builder
	b.WriteString("| Who | May | On | Why |\n|---|---|---|---|\n")
	for _, r := range Rules() {
		var on []string
		for _, res := range r.Resources {
			group := strings.Join(r.APIGroups, ", ")
			if group != "" && group != "*" {
				res += " (" + strings.TrimPrefix(group, ", ") + ")"
			}
			on = append(on, "`"+res+"`")
		}
		for _, p := range r.Paths {
			on = append(on, "`"+p+"`")
		}
		where := strings.Join(on, ", ")
		if len(r.Except) > 0 {
			where += " except `" + strings.Join(r.Except, "`, `") + "`"
		}
		if r.Namespace != "" {
			where += " in namespace `" + r.Namespace + "`"
		}
		if r.OwnNamespace {
			where += " in its own namespace"
		}
		if r.OwnName {
			where += ", its own only"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Group, strings.ReplaceAll(strings.Join(r.Verbs, ", "), "*", "everything"), where, r.Why)
	}
	return b.String()
}
