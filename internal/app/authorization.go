package app

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/identity/access"
)

// authorization decides who may do what, as a part of the API that can be replaced.
type authorization interface {
	authorizer.UnconditionalAuthorizer
	authorizer.RuleResolver
	// Unoffered are the kinds by which others grant rights, and this one does not.
	Unoffered() []apiserver.Unoffered
}

// byCredential is authorization by the kind of a credential and its bounds: the table of
// package access.
type byCredential struct{ *access.Authorizer }

func newByCredential() authorization { return byCredential{access.NewAuthorizer()} }

// Unoffered implements authorization.
func (byCredential) Unoffered() []apiserver.Unoffered {
	gv := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	const instead = "the kind of a token says what its holder may do; " +
		"use proxima token create --kind admin|read-only|node|zone|workload --name NAME"
	return []apiserver.Unoffered{
		{GVK: gv.WithKind("Role"), Resource: "roles", Singular: "role", Namespaced: true, Instead: instead},
		{GVK: gv.WithKind("RoleBinding"), Resource: "rolebindings", Singular: "rolebinding", Namespaced: true, Instead: instead},
		{GVK: gv.WithKind("ClusterRole"), Resource: "clusterroles", Singular: "clusterrole", Instead: instead},
		{GVK: gv.WithKind("ClusterRoleBinding"), Resource: "clusterrolebindings", Singular: "clusterrolebinding", Instead: instead},
	}
}
