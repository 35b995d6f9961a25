package xds_test

import "fmt"

// permissionCases are of TrafficPermissions. Calls to "secured" have a certificate of the account
// shop/default; those to the workload's own ports have none.
func permissionCases() []fieldCase {
	mesh, plain := answers("secured", "/", 200), entering("http", "/", 200)
	noMesh, noPlain := answers("secured", "/", 403), entering("http", "/", 403)
	meshTCP, plainTCP := answers("securedtcp", "/", 200), entering("tcp", "/", 200)
	noMeshTCP, noPlainTCP := answers("securedtcp", "/", 0), entering("tcp", "/", 0)
	denied := func(from string) string { return tp("deny: [{from: [" + from + "]}]") }
	allowed := func(from string) string { return tp("allow: [{from: [" + from + "]}]") }
	return []fieldCase{
		{name: "deny namespaces", objects: denied("{namespaces: [shop]}"), quick: true, effect: all(noMesh, plain, noMeshTCP, plainTCP)},
		{name: "deny serviceAccounts", objects: denied("{serviceAccounts: [shop/default]}"), effect: all(noMesh, plain, noMeshTCP, plainTCP)},
		{name: "deny spiffe", objects: denied("{spiffe: [{type: Exact, value: spiffe://default.mesh/ns/shop/sa/default}]}"), effect: all(noMesh, plain, noMeshTCP)},
		{name: "deny spiffe prefix", objects: denied("{spiffe: [{type: Prefix, value: spiffe://default.mesh/ns/sho}]}"), effect: all(noMesh, plain)},
		{name: "deny labels", objects: denied("{labels: {matchLabels: {app: client}}}"), effect: all(noMesh, plain, noMeshTCP)},
		{name: "deny mesh", objects: denied("{mesh: default}"), effect: all(noMesh, plain, noMeshTCP)},
		{name: "deny addresses", objects: denied("{addresses: [127.0.0.0/8]}"), quick: true, effect: all(noMesh, noPlain, noMeshTCP, noPlainTCP)},
		{name: "deny everybody", objects: tp("deny: [{}]"), effect: all(noMesh, noPlain, noMeshTCP, noPlainTCP)},
		{name: "deny ports", objects: tp("ports: [http]\ndeny: [{}]"), effect: all(noMesh, noPlain, meshTCP, plainTCP)},

		{name: "allow namespaces", objects: allowed("{namespaces: [shop]}"), quick: true, effect: all(mesh, noPlain, meshTCP, noPlainTCP)},
		{name: "allow serviceAccounts", objects: allowed("{serviceAccounts: [shop/default]}"), effect: all(mesh, noPlain, meshTCP, noPlainTCP)},
		{name: "allow others", objects: allowed("{serviceAccounts: [shop/other]}"), effect: all(noMesh, noPlain, noMeshTCP, noPlainTCP)},
		{name: "allow spiffe", objects: allowed("{spiffe: [{value: spiffe://default.mesh/ns/shop/sa/default}]}"), effect: all(mesh, noPlain)},
		{name: "allow labels", objects: allowed("{labels: {matchLabels: {app: client}}}"), effect: all(mesh, noPlain)},
		{name: "allow addresses", objects: allowed("{addresses: [192.0.2.0/24]}"), effect: all(noMesh, noPlain, noMeshTCP)},
		{name: "allow mesh", objects: allowed("{mesh: default}"), effect: all(mesh, noPlain)},
		{name: "deny before allow", objects: tp("deny: [{from: [{namespaces: [shop]}]}]\nallow: [{}]"), quick: true, effect: all(noMesh, plain)},

		{name: "to methods", objects: tp("deny: [{to: [{methods: [POST]}]}]"), effect: all(entering("http", "/", 403, ":method", "POST"), plain, mesh, plainTCP)},
		{name: "to paths exact", objects: tp("deny: [{to: [{paths: [{type: Exact, value: /admin}]}]}]"), quick: true,
			effect: all(entering("http", "/admin?x=1", 403), entering("http", "/admin/x", 200))},
		{name: "to paths prefix", objects: tp("deny: [{to: [{paths: [{type: Prefix, value: /admin}]}]}]"), effect: all(entering("http", "/admin/x", 403), plain)},
		{name: "to paths regex", objects: tp("deny: [{to: [{paths: [{type: RegularExpression, value: \"/a[0-9]+\"}]}]}]"),
			effect: all(entering("http", "/a17", 403), entering("http", "/a17/x", 200))},
		{name: "to paths in other spellings", quick: true, objects: tp("deny: [{to: [{paths: [{type: Prefix, value: /admin}]}]}]"),
			effect: all(entering("http", "//admin", 403), entering("http", "/x/../admin", 403), entering("http", "/%61dmin", 403), plain)},
		{name: "to hosts", objects: tp("deny: [{to: [{hosts: [pay.example]}]}]"),
			effect: all(entering("http", "/", 403, ":authority", "Pay.example:8080"), entering("http", "/", 200, ":authority", "pay.example.org"))},
		{name: "allow to", objects: tp("allow: [{from: [{namespaces: [shop]}], to: [{methods: [GET], paths: [{type: Prefix, value: /echo}]}]}]"),
			effect: all(answers("secured", "/echo", 200), noMesh, answers("secured", "/echo", 403, ":method", "POST"), noPlain)},

		{name: "shadow", objects: tp("shadow: true\ndeny: [{}]"), effect: func(s *stage) string {
			before := s.stat("shadow.*denied")
			if saw := all(mesh, plain, meshTCP)(s); saw != "" {
				return saw
			}
			if n := s.stat("shadow.*denied") - before; n < 3 {
				return fmt.Sprint(n, " shadow refusals are counted")
			}
			return ""
		}},
		{name: "Mesh.spec.defaultAccess", effect: all(noMesh, noPlain, noMeshTCP),
			objects: "kind: Mesh\nmetadata: {name: default}\nspec: {defaultAccess: Deny, mtls: {enabledBackend: b, backends: [{name: b, type: Builtin, mode: Permissive}]}}\n"},
		{name: "Mesh.spec.defaultAccess with allow", effect: all(mesh, noPlain), given: allowed("{namespaces: [shop]}"), without: all(mesh, noPlain),
			objects: "kind: Mesh\nmetadata: {name: default}\nspec: {defaultAccess: Deny, mtls: {enabledBackend: b, backends: [{name: b, type: Builtin, mode: Permissive}]}}\n"},
		{name: "of a Mesh", effect: all(noMesh, noPlain), quick: true,
			objects: "kind: TrafficPermission\nmetadata: {name: t, namespace: proxima-system}\nspec: {targetRefs: [{group: mesh.proxima.dev, kind: Mesh, name: default}], deny: [{}]}\n"},
		{name: "of a namespace", objects: "kind: TrafficPermission\nmetadata: {name: t}\nspec: {deny: [{}]}\n", effect: all(noMesh, noPlain)},
	}
}
