package crd

// maxBackends of a Mesh: rules of each, and among them, must have a bounded cost.
const maxBackends = 64

// secretOfNamespace is a rule for objects of no namespace.
func secretOfNamespace(field string) Rule {
	return Rule{
		"!(has(self." + field + ") && has(self." + field + ".secretRef) && self." + field + ".secretRef.?kind.orValue('') == 'Secret')",
		"`" + field + ".secretRef.kind` must be 'GlobalSecret': this object is in no namespace",
	}
}

// isType is a rule for the part of a backend that goes with its type.
func isType(field, word string) Rule {
	return Rule{"(self.?type.orValue('') == '" + word + "') == has(self." + field + ")", "`" + field + "` must be set exactly when `type` is '" + word + "'"}
}

func meshLimits() map[string]Schema {
	domain := "self.?spec.?mtls.?trustDomain.orValue('') == '' ? self.metadata.name + '.mesh' : self.spec.mtls.trustDomain"
	return map[string]Schema{
		"Mesh": rules(Rule{
			"(" + domain + ") == (oldSelf.?spec.?mtls.?trustDomain.orValue('') == '' ? oldSelf.metadata.name + '.mesh' : oldSelf.spec.mtls.trustDomain)",
			"`spec.mtls.trustDomain` is immutable: every certificate has it; make another mesh",
		}),
		"MeshMTLS.trustDomain": {
			Pattern: "^(" + domainLabel + `(\.` + domainLabel + ")*)?$", MaxLength: ptr[int64](maxSubdomain),
			Rules: []Rule{{"!isIP(self)", "must be a DNS name, not an IP address"}},
		},
		"MeshMTLS": rules(Rule{
			"self.?enabledBackend.orValue('') == '' || (has(self.backends) && self.backends.exists(b, b.name == self.enabledBackend))",
			"`enabledBackend` must name one of `backends`",
		}),
		"MeshMTLS.enabledBackend":                 {MaxLength: ptr[int64](maxLabel)},
		"MeshMTLS.backends":                       atMost(maxBackends),
		"MeshCertificateBackend.name":             text(dnsLabel, maxLabel),
		"MeshCertificateBackend.type":             choice("", "Builtin", "Provided", "External"),
		"MeshCertificateBackend.mode":             choice("", "Strict", "Permissive"),
		"MeshCertificateBackend":                  rules(isType("provided", "Provided"), isType("external", "External")),
		"MeshWorkloadCertificate.validitySeconds": between(60, 31536000),
		"MeshProvidedAuthority": rules(
			Rule{
				"has(self.files) ? !has(self.certificate) && !has(self.key) && !has(self.roots) : has(self.certificate) && has(self.key)",
				"must have `certificate` and `key`, or `files` alone",
			},
			Rule{"!has(self.key) || has(self.key.secretRef)", "`key` must come from a secret: name it in `key.secretRef`"},
			secretOfNamespace("certificate"), secretOfNamespace("key"), secretOfNamespace("roots"),
		),
		"MeshAuthorityFiles.certificate": {Pattern: "^/"},
		"MeshAuthorityFiles.key":         {Pattern: "^/"},
		"MeshAuthorityFiles.roots":       {Pattern: "^(/|$)"},
		"MeshExternalAuthority":          rules(secretOfNamespace("roots")),
		"MeshExternalAuthority.signerName": {
			Pattern: "^" + dnsLabel + `(\.` + dnsLabel + `)+\.?/.+$`,
			Rules:   []Rule{{"!self.startsWith('kubernetes.io/')", "the signers of kubernetes.io sign for Kubernetes itself"}},
		},
		"MeshOutbound.passthrough":  {Default: true},
		"MeshOutbound.scope":        choice("", "OnDemand", "All", "Declared"),
		"MeshMTLS.outbound":         choice("", "Auto", "Always"),
		"MeshSpec.defaultAccess":    choice("", "Allow", "Deny"),
		"MeshRouting.localityAware": {Default: true},
		"MeshRouting.zoneEgress":    {Default: false},
		"MeshRouting.export":        with(choice("", "Exported", "All"), Schema{Default: "Exported"}),
		"MeshRouting.topologyMode":  {Pattern: "^([Aa]uto|[Dd]isabled|[^/]+/.+)?$"},
	}
}
