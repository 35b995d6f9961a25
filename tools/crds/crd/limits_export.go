package crd

// maxAvailableHosts of an export (package v1beta1 of multicluster).
const maxAvailableHosts = 1000

// protocolOf a port in an expression: empty is TCP.
func protocolOf(name string) string {
	return "(" + name + ".?protocol.orValue('') == '' ? 'TCP' : " + name + ".protocol)"
}

// importPorts are ports of an exported or imported service: a name, also the empty one,
// and a number are there once.
func importPorts() Schema {
	return Schema{MaxItems: ptr[int64](maxExternalPorts), Rules: []Rule{
		{
			"self.all(p, self.exists_one(q, (has(q.name) ? q.name : '') == (has(p.name) ? p.name : '')))", "names of ports must differ",
		},
		{
			"self.all(p, self.exists_one(q, q.port == p.port && " + protocolOf("q") + " == " + protocolOf("p") + "))",
			"ports of a protocol must differ",
		},
	}}
}

func exportLimits() map[string]Schema {
	return map[string]Schema{
		"ServiceExportSpec.exportedLabels": values(optional(labelValue, maxLabel)),
		"AvailableService.mesh":            text(dnsLabel, maxLabel),
		"AvailableService.zone":            optional(dnsLabel, maxLabel),
		"AvailableService.type":            choice("ClusterSetIP", "Headless"),
		"AvailableService.ports":           importPorts(),
		"AvailableService.instances":       atLeast(0),
		"AvailableService.toZones":         items(Schema{}, text(dnsLabel, maxLabel)),
		"AvailableService.serviceAccounts": items(Schema{}, text(dnsSubdomain, maxSubdomain)),
		"AvailableEndpoints.addressType":   choice("IPv4", "IPv6"),
		"AvailableEndpoints.hosts":         atMost(maxAvailableHosts),
		"AvailableHost.hostname":           optional(dnsLabel, maxLabel),
		"ServiceImportSpec.type":           choice("ClusterSetIP", "Headless"),
		"ServiceImportSpec.ports":          importPorts(),
		"ServiceImportSpec.ipFamilies":     items(atMost(maxFamilies), choice("IPv4", "IPv6")),
		"ServiceImportSpec.ips":            items(atMost(maxFamilies), canonicalIP()),
		"ServicePort.name":                 optional(dnsLabel, maxLabel),
		"ServicePort.port":                 port(),
		"ServicePort.protocol":             {Enum: []string{"", "TCP", "UDP", "SCTP"}, MaxLength: ptr[int64](4)},
		"ClusterStatus.cluster":            text(dnsLabel, maxLabel),
	}
}
