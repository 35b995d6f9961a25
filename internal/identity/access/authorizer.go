package access

import (
	"context"
	"fmt"
	"slices"

	"github.com/proxima-mesh/proxima/internal/identity"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Authorizer applies the rule table. Safe for concurrent use; no I/O.
type Authorizer struct {
	byGroup map[string][]Rule
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// NewAuthorizer uses the table of Rules.
func NewAuthorizer() *Authorizer {
	a := &Authorizer{byGroup: map[string][]Rule{}}
	for _, r := range Rules() {
		a.byGroup[r.Group] = append(a.byGroup[r.Group], r)
	}
	return a
}

// Authorize implements authorizer.Authorizer. What no rule allows is NoOpinion,
// so that it can be chained with other authorizers; alone it is a denial.
// The reason names the fix.
func (a *Authorizer) Authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	u := attrs.GetUser()
	if u == nil {
		return authorizer.DecisionDeny, "the request has no user", nil
	}
	q := &query{
		verb: attrs.GetVerb(), apiGroup: attrs.GetAPIGroup(), resource: attrs.GetResource(), subresource: attrs.GetSubresource(),
		namespace: attrs.GetNamespace(), name: attrs.GetName(), path: attrs.GetPath(), isResource: attrs.IsResourceRequest(),
	}
	node, isNode := identity.NodeName(u.GetName(), u.GetGroups())
	workload, _, isWorkload := identity.WorkloadName(u.GetName(), u.GetGroups())
	q.node, q.workload = node, workload
	for _, g := range u.GetGroups() {
		if g == identity.GroupNodes && !isNode || g == identity.GroupWorkloads && !isWorkload {
			continue // the group alone is not a node, and not a workload
		}
		for i := range a.byGroup[g] {
			if a.byGroup[g][i].allows(q) {
				return authorizer.DecisionAllow, "", nil
			}
		}
	}
	return authorizer.DecisionNoOpinion, a.explain(u, q), nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer: there are no
// conditions, the answer is that of Authorize.
func (a *Authorizer) ConditionsAwareAuthorize(ctx context.Context, attrs authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

// EvaluateConditions implements authorizer.Authorizer; it is never needed.
func (a *Authorizer) EvaluateConditions(
	context.Context,
	authorizer.ConditionsAwareDecision,
	authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// explain returns the fix for a denied request.
func (a *Authorizer) explain(u user.Info, q *query) string {
	const byAdmin = "use a token of an admin (proxima token create --kind admin --name NAME)"
	groups := u.GetGroups()
	switch {
	case slices.Contains(groups, user.AllUnauthenticated):
		return "no token or certificate was sent; anonymous sees health and version only: " +
			"give a token (proxima token create --kind read-only --name NAME) or the kubeconfig of the data directory"
	case slices.Contains(groups, identity.GroupReadOnly) && q.isResource && (q.resource == "secrets" || q.resource == "globalsecrets"):
		return "a read-only token does not see secrets: " + byAdmin
	case slices.Contains(groups, identity.GroupReadOnly):
		return "a read-only token reads only: " + byAdmin
	case slices.Contains(groups, identity.GroupNodes):
		return a.explainNode(q) + ": " + byAdmin
	case slices.Contains(groups, identity.GroupWorkloads):
		return fmt.Sprintf("a workload's identity registers workloads of namespace %s, and reads the Services there: %s", q.workload, byAdmin)
	case slices.Contains(groups, identity.GroupZones):
		return "a zone's identity serves for federation and its own certificate only: " + byAdmin
	}
	return fmt.Sprintf("no rule is for %s: %s", u.GetName(), byAdmin)
}

func (a *Authorizer) explainNode(q *query) string {
	for _, r := range a.byGroup[identity.GroupNodes] {
		switch {
		case !q.isResource || !r.covers(q) || !slices.Contains(r.Verbs, q.verb):
		case r.Namespace != "" && r.Namespace != q.namespace:
			return fmt.Sprintf("a node touches %s in namespace %s only", q.resource, r.Namespace)
		case r.OwnName && q.node != "":
			return fmt.Sprintf("node %s touches the %s of its own name only, not %q", q.node, q.resource, q.name)
		}
	}
	return "a node reads what it needs to route, and writes its own Node, Lease, Dataplanes and events"
}

// RulesFor implements authorizer.RuleResolver, for kubectl auth can-i --list.
func (a *Authorizer) RulesFor(
	_ context.Context,
	u user.Info,
	namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	incomplete := false
	node, isNode := identity.NodeName(u.GetName(), u.GetGroups())
	workload, _, isWorkload := identity.WorkloadName(u.GetName(), u.GetGroups())
	for _, g := range u.GetGroups() {
		if g == identity.GroupNodes && !isNode || g == identity.GroupWorkloads && !isWorkload {
			continue
		}
		for _, r := range a.byGroup[g] {
			if len(r.Paths) > 0 {
				paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: r.Verbs, NonResourceURLs: r.Paths})
				continue
			}
			if r.Namespace != "" && r.Namespace != namespace || r.OwnNamespace && workload != namespace {
				continue
			}
			info := &authorizer.DefaultResourceRuleInfo{Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources}
			if r.OwnName {
				info.ResourceNames = []string{node}
			}
			incomplete = incomplete || len(r.Except) > 0 // exceptions cannot be listed
			resources = append(resources, info)
		}
	}
	return resources, paths, incomplete, nil
}
