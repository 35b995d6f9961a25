package crd

import "maps"

// Patterns of names, as Kubernetes checks them (k8s.io/apimachinery/pkg/util/validation).
const (
	dnsLabel     = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	dnsSubdomain = dnsLabel + `(\.` + dnsLabel + `)*`
	labelValue   = `([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]`
	// qualified is a name with an optional domain before a slash.
	qualified = `(` + dnsSubdomain + `/)?` + labelValue
	// portName has a letter, and no two hyphens in a row (RFC 6335, 5.1).
	portName = `([a-z0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*`
	// domainLabel is a DNS label with its limit, where the whole is a name of many.
	domainLabel = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	// meshLabel is one of a name below "mesh" (package meshname).
	meshLabel = `[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?`
)

// Lengths of names.
const (
	maxLabel     = 63
	maxSubdomain = 253
	maxQualified = maxSubdomain + 1 + maxLabel
	maxPortName  = 15
	// maxIP is the length of the longest IPv6 address in text.
	maxIP = 45
	// maxMeshHost is what a name below "mesh" has before its end (package meshname).
	maxMeshHost = maxSubdomain - int64(len(".mesh"))
)

// nameForm is what the name of an object of a kind must look like.
type nameForm struct{ pattern string }

// names of kinds that are stricter than DNS subdomains.
var names = map[string]nameForm{
	"Mesh":            {"^" + dnsLabel + "$"},
	"Zone":            {"^" + dnsLabel + "$"},
	"ZoneInsight":     {"^" + dnsLabel + "$"},
	"ExternalService": {"^[a-z]([-a-z0-9]*[a-z0-9])?$"},
}

// limits of types and fields, by TYPE or TYPE.FIELD.
func limits() map[string]Schema {
	out := map[string]Schema{}
	for _, part := range []map[string]Schema{
		commonLimits(), meshLimits(), externalLimits(), dataplaneLimits(), zoneLimits(), registryLimits(), plannerLimits(), exportLimits(),
		policyLimits(), backendPolicyLimits(), workloadPolicyLimits(),
	} {
		maps.Copy(out, part)
	}
	return out
}

func text(pattern string, most int64) Schema {
	return Schema{Pattern: "^" + pattern + "$", MaxLength: ptr(most)}
}

// optional text may be empty, which means the same as missing.
func optional(pattern string, most int64) Schema { return text("("+pattern+")?", most) }

// between is a range of numbers.
func between(low, high float64) Schema { return Schema{Minimum: ptr(low), Maximum: ptr(high)} }

func atLeast(low float64) Schema { return Schema{Minimum: ptr(low)} }

func atMost(items int64) Schema { return Schema{MaxItems: ptr(items)} }

func notEmpty() Schema { return Schema{MinLength: ptr[int64](1)} }

// choice is one of several words. Where "" is one, it means the default.
func choice(words ...string) Schema { return Schema{Enum: words} }

func rules(all ...Rule) Schema { return Schema{Rules: all} }

// with adds to a schema.
func with(base Schema, more Schema) Schema {
	overlay(&more, &base)
	return base
}

// items are the limits of a list's items.
func items(limit Schema, of Schema) Schema {
	limit.Items = &of
	return limit
}

func values(of Schema) Schema { return Schema{AdditionalProperties: &of} }

func port() Schema { return between(1, 65535) }

// canonicalIP is an address in its one textual form.
func canonicalIP() Schema {
	return Schema{MaxLength: ptr[int64](maxIP), Rules: []Rule{{
		"isIP(self) && ip.isCanonical(self)", "must be an IP address in canonical form (10.9.8.7, 2001:db8::ffff)",
	}}}
}

// qualifiedName checks the lengths of both parts, too.
func qualifiedName() Schema {
	return Schema{MaxLength: ptr[int64](maxQualified), Rules: []Rule{{
		"!format.qualifiedName().validate(self).hasValue()", "must be NAME or DOMAIN/NAME, as of a label",
	}}}
}

// commonLimits are those of types that several kinds have.
func commonLimits() map[string]Schema {
	return map[string]Schema{
		// metav1.Condition, as ValidateConditions checks it.
		"Condition.type":               {Pattern: "^" + qualified + "$", MaxLength: ptr[int64](maxQualified), MinLength: ptr[int64](1)},
		"Condition.status":             choice("True", "False", "Unknown"),
		"Condition.observedGeneration": atLeast(0),
		"Condition.reason":             {Pattern: "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", MinLength: ptr[int64](1), MaxLength: ptr[int64](1024)},
		"Condition.message":            {MaxLength: ptr[int64](32768)},

		"PolicyZoneStatus.zone": text(dnsLabel, maxLabel),
		"PolicyStatus.services": atLeast(0),

		"DataSource": rules(Rule{
			"(has(self.inline) && self.inline.size() > 0) != has(self.secretRef)", "must specify one of `inline` and `secretRef`",
		}),
		"SecretKeyReference.kind": choice("", "Secret", "GlobalSecret"),
		"SecretKeyReference.name": with(text(dnsSubdomain, maxSubdomain), notEmpty()),
		"SecretKeyReference.key": {
			Pattern: "^[-._a-zA-Z0-9]*$", MaxLength: ptr[int64](maxSubdomain),
			Rules: []Rule{{"self != '.' && !self.startsWith('..')", "must not be `.`, and not begin with `..`"}},
		},
	}
}
