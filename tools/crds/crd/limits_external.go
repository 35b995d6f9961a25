package crd

// What an ExternalService may hold at most (package kind).
const (
	maxExternalHosts     = 100
	maxExternalPorts     = 100
	maxExternalAddresses = 1000
	maxSubjectAltNames   = 100
)

// looksLikeIP is an expression: no top-level domain is a number (RFC 3696, 2).
const looksLikeIP = `(self.contains(':') || self.matches('(^|[.])[0-9]*$'))`

func externalLimits() map[string]Schema {
	return map[string]Schema{
		"ExternalServiceSpec": rules(
			Rule{
				"(has(self.hosts) && self.hosts.size() > 0) || (has(self.addresses) && self.addresses.size() > 0)",
				"must specify `hosts`, `addresses` or both",
			},
			Rule{
				"!has(self.addresses) || self.ports.size() < 2 || self.addresses.all(a, !has(a.port))",
				"`addresses[].port` may only be set where the service has one port",
			},
			Rule{
				"!has(self.tls) || self.tls.?serverName.orValue('') != '' || (has(self.hosts) && self.hosts.size() > 0) || " +
					"(has(self.tls.subjectAltNames) && self.tls.subjectAltNames.size() > 0) || " +
					"self.tls.?verification.orValue('') in ['SkipSAN', 'SkipAll']",
				"`tls.serverName` is needed: there are no hosts to take it from",
			},
		),
		"ExternalServiceSpec.mesh":  optional(dnsLabel, maxLabel),
		"ExternalServiceSpec.hosts": items(atMost(maxExternalHosts), text(dnsSubdomain, maxSubdomain)),
		"ExternalServiceSpec.ports": {
			MinItems: ptr[int64](1), MaxItems: ptr[int64](maxExternalPorts),
			Rules: []Rule{
				{"self.size() < 2 || self.all(p, has(p.name) && p.name != '')", "each of several ports needs a `name`"},
				uniqueNames(),
			},
		},
		"ExternalServiceSpec.addresses":   atMost(maxExternalAddresses),
		"ExternalServiceSpec.zones":       items(Schema{}, text(dnsLabel, maxLabel)),
		"ExternalServicePort.name":        optional(dnsLabel, maxLabel),
		"ExternalServicePort.port":        port(),
		"ExternalServicePort.targetPort":  port(),
		"ExternalServicePort.protocol":    choice("TCP", "UDP"),
		"ExternalServicePort.appProtocol": qualifiedName(),
		"ExternalServiceAddress.address": {
			MinLength: ptr[int64](1), MaxLength: ptr[int64](maxSubdomain),
			Rules: []Rule{{
				looksLikeIP + " ? isIP(self) && ip.isCanonical(self) && ip(self).isGlobalUnicast() : !format.dns1123Subdomain().validate(self).hasValue()",
				"must be a DNS name, or an IP address in canonical form that is not unspecified, loopback, link-local, multicast or broadcast",
			}},
		},
		"ExternalServiceAddress.port":   port(),
		"ExternalServiceAddress.zone":   optional(dnsLabel, maxLabel),
		"ExternalServiceAddress.weight": between(1, 65535),
		"ExternalServiceTLS": rules(
			Rule{"!(self.?minVersion.orValue('') == '1.3' && self.?maxVersion.orValue('') == '1.2')", "`maxVersion` must not be less than `minVersion`"},
			Rule{"!(self.?minVersion.orValue('') == '1.3' && self.?allowRenegotiation.orValue(false))", "there is no renegotiation in TLS 1.3"},
			Rule{"has(self.clientCertificate) == has(self.clientKey)", "`clientCertificate` and `clientKey` must be set together"},
			Rule{"!has(self.clientKey) || has(self.clientKey.secretRef)", "`clientKey` must come from a secret: name it in `clientKey.secretRef`"},
		),
		"ExternalServiceTLS.verification":    with(choice("", "Secured", "SkipSAN", "SkipCA", "SkipAll"), Schema{Default: "Secured"}),
		"ExternalServiceTLS.minVersion":      with(choice("", "1.2", "1.3"), Schema{Default: "1.2"}),
		"ExternalServiceTLS.maxVersion":      choice("", "1.2", "1.3"),
		"ExternalServiceTLS.serverName":      optional(dnsSubdomain, maxSubdomain),
		"ExternalServiceTLS.subjectAltNames": atMost(maxSubjectAltNames),
		"SubjectAltNameMatch.type":           choice("", "Exact", "Prefix"),
		"SubjectAltNameMatch.value":          notEmpty(),
	}
}

// uniqueNames of ports; those without a name do not count.
func uniqueNames() Rule {
	return Rule{
		"self.all(p, p.?name.orValue('') == '' || self.exists_one(q, q.?name.orValue('') == p.name))", "names of ports must differ",
	}
}
