package mesh

import "maps"

// maxExact is how many identities are compared one by one. Behind a Service with more
// the namespaces are compared instead, so that configurations stay small.
const maxExact = 32

// Matcher is a set of acceptable identities. The zero value matches none. Immutable.
type Matcher struct {
	exact      map[ID]bool
	namespaces map[namespaceOf]bool
}

type namespaceOf struct {
	domain    Domain
	namespace string
}

// Exactly matches these identities, by the whole URI name of the certificate.
func Exactly(ids ...ID) Matcher {
	m := Matcher{exact: make(map[ID]bool, len(ids))}
	for _, id := range ids {
		if !id.IsZero() {
			m.exact[id] = true
		}
	}
	return m
}

// Accounts matches the identities of the service accounts behind a Service: exactly,
// or, of more than 32, all accounts of the namespaces that they are of.
func Accounts(ids ...ID) Matcher {
	m := Exactly(ids...)
	if len(m.exact) <= maxExact {
		return m
	}
	namespaces := map[namespaceOf]bool{}
	for id := range m.exact {
		if id.kind == WorkloadID {
			namespaces[namespaceOf{id.domain, id.scope}] = true
			delete(m.exact, id)
		}
	}
	m.namespaces = namespaces
	return m
}

// Match reports whether an identity is accepted.
func (m Matcher) Match(id ID) bool {
	return m.exact[id] || id.kind == WorkloadID && m.namespaces[namespaceOf{id.domain, id.scope}]
}

// Empty reports whether no identity is accepted.
func (m Matcher) Empty() bool { return len(m.exact) == 0 && len(m.namespaces) == 0 }

// Exact lists the identities that are compared as a whole, in no order.
func (m Matcher) Exact() []ID {
	out := make([]ID, 0, len(m.exact))
	for id := range maps.Keys(m.exact) {
		out = append(out, id)
	}
	return out
}

// Prefixes lists the beginnings of URI names that are acceptable besides those of
// Exact, in no order: "spiffe://DOMAIN/ns/NAMESPACE/sa/".
func (m Matcher) Prefixes() []string {
	out := make([]string, 0, len(m.namespaces))
	for n := range m.namespaces {
		out = append(out, n.domain.IDString()+"/ns/"+n.namespace+"/sa/")
	}
	return out
}
