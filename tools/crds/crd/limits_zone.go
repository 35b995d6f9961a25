package crd

import "fmt"

// What zones' kinds may hold at most (package kind).
const (
	maxZoneSubscriptions   = 10
	maxClientSubscriptions = 2
	// maxGatewaySubscriptions of the same type, where a gateway has it.
	maxGatewaySubscriptions = 10
	maxCertificates         = 64
	maxShiftReason          = 512
	maxResourceTypes        = 16
	maxRejected             = 16
	maxLearned              = 256
	// maxLearnedPort is a namespace, a name and "/:65535".
	maxLearnedPort    int64 = 2*maxLabel + 7
	maxPoolRanges           = 100
	maxPoolNamespaces       = 100
	maxFamilies             = 2
	// maxSubscriptionID: IDs of a list are compared with each other, at a bounded cost.
	maxSubscriptionID = 253
	// maxPoolRange is the length of two IPv6 addresses with a hyphen and a space on either side of it.
	maxPoolRange = 2*maxIP + 3
)

// gatewayIP is an expression for the address of a gateway, which may be a loopback address:
// several zones can be on one machine.
const gatewayIP = "isIP(self) && ip.isCanonical(self) && !ip(self).isUnspecified() && !ip(self).isLinkLocalUnicast() && !ip(self).isLinkLocalMulticast()"

// same is a rule for a text that never changes; missing is empty.
func same(field string) Rule {
	now, was := "self."+field, "oldSelf."+field
	return Rule{
		// The cost of a comparison has a bound where both are fields with a greatest length.
		"(has(" + now + ") && " + now + " != '') == (has(" + was + ") && " + was + " != '') && (!has(" + now + ") || !has(" + was + ") || " + now + " == " + was + ")",
		"`" + field + "` is immutable",
	}
}

func subscriptions(most int64) Schema {
	return Schema{MaxItems: ptr(most), Rules: []Rule{{"self.all(s, self.exists_one(t, t.id == s.id))", "IDs must differ"}}}
}

func zoneLimits() map[string]Schema {
	return map[string]Schema{
		"Zone":             rules(Rule{"!(self.metadata.name in ['local', 'global'])", "`local` and `global` are reserved: choose another name"}),
		"ZoneSpec.enabled": {Default: true},

		"ZoneInsightStatus.subscriptions":   subscriptions(maxZoneSubscriptions),
		"ClientInsightStatus.subscriptions": subscriptions(maxGatewaySubscriptions),
		"ClientInsightStatus.certificates":  atMost(maxCertificates),
		"DataplaneInsight": rules(Rule{
			fmt.Sprintf("!has(self.status) || !has(self.status.subscriptions) || self.status.subscriptions.size() <= %d", maxClientSubscriptions),
			fmt.Sprintf("status.subscriptions: must have at most %d items", maxClientSubscriptions),
		}),
		"Subscription.id":              {MinLength: ptr[int64](1), MaxLength: ptr[int64](maxSubscriptionID)},
		"Subscription.resources":       atMost(maxResourceTypes),
		"ResourceSync.type":            {MinLength: ptr[int64](1), MaxLength: ptr[int64](maxSubdomain)},
		"ClientInsightStatus.rejected": atMost(maxRejected),
		"ClientInsightStatus.learned":  atMost(maxLearned),
		"LearnedPort.port":             {MinLength: ptr[int64](1), MaxLength: ptr(maxLearnedPort)},
		"TypeSync.type":                notEmpty(),
		"TypeSync.direction":           choice("ToZone", "ToGlobal"),

		"ZoneGatewaySpec.zone": optional(dnsLabel, maxLabel),
		"ZoneGatewaySpec.address": {
			MinLength: ptr[int64](1), MaxLength: ptr[int64](maxIP),
			Rules: []Rule{{gatewayIP, "must be an IP address in canonical form that is not unspecified and not link-local"}},
		},
		"ZoneGatewaySpec.port": port(),
		"ZoneGatewaySpec.advertisedAddress": {
			MaxLength: ptr[int64](maxSubdomain),
			Rules: []Rule{{
				"self == '' || (" + looksLikeIP + " ? " + gatewayIP + " : !format.dns1123Subdomain().validate(self).hasValue())",
				"must be a DNS name, or an IP address in canonical form that is not unspecified and not link-local",
			}},
		},
		"ZoneGatewaySpec.advertisedPort": between(0, 65535),

		"VirtualIPSpec.mesh": text(dnsLabel, maxLabel),
		"VirtualIPSpec.hostname": {
			Pattern: "^" + meshLabel + `(\.` + meshLabel + ")*$", MaxLength: ptr[int64](maxMeshHost),
		},
		"VirtualIPSpec.addresses": items(
			Schema{MinItems: ptr[int64](1), MaxItems: ptr[int64](maxFamilies), Rules: []Rule{oneOfEachFamily()}}, canonicalIP()),
		"VirtualIPSpec.namespace": text(dnsLabel, maxLabel),
		"VirtualIPSpec.service":   text(dnsLabel, maxLabel),
		"VirtualIPSpec.port":      between(0, 65535),

		"IPAddressPoolSpec.addresses": items(Schema{MinItems: ptr[int64](1), MaxItems: ptr[int64](maxPoolRanges)},
			Schema{MaxLength: ptr[int64](maxPoolRange), Rules: poolRules()}),
		"IPAddressPoolSpec.namespaces": items(atMost(maxPoolNamespaces), text(dnsLabel, maxLabel)),
		"IPAddressPoolSpec.autoAssign": {Default: true},

		"ZoneShiftSpec": rules(
			Rule{"(self.?zone.orValue('') == '') != (self.?node.orValue('') == '')", "name a `zone` or a `node`, not both"},
			same("zone"), same("node"),
		),
		"ZoneShiftSpec.zone":   optional(labelValue, maxLabel),
		"ZoneShiftSpec.node":   optional(dnsSubdomain, maxSubdomain),
		"ZoneShiftSpec.reason": {MinLength: ptr[int64](1), MaxLength: ptr[int64](maxShiftReason)},
	}
}

// poolRules of one network, range or address of an IPAddressPool.
func poolRules() []Rule {
	return []Rule{
		{
			"self.contains('/') ? isCIDR(self) && cidr(self).masked() == cidr(self) : self.split('-').size() <= 2 && self.split('-').all(a, isIP(a.trim()))",
			"must be a network (192.0.2.0/28), a range (192.0.2.10-192.0.2.20) or an address",
		},
		{
			"self.contains('/') || !self.split('-').all(a, isIP(a.trim())) || ip(self.split('-')[0].trim()).isGlobalUnicast()",
			"must not be unspecified, loopback, link-local or multicast addresses",
		},
		{
			"!self.contains('/') || !isCIDR(self) || cidr(self).ip().isGlobalUnicast()",
			"must not be unspecified, loopback, link-local or multicast addresses",
		},
	}
}
