package crd

// maxDataplanePorts: rules of each port, and among them, must have a bounded cost.
const maxDataplanePorts = 256

// probePort is a rule for the port of a probe: a number, or the name of a port.
func probePort(action string) Rule {
	at := "self.readiness." + action + ".port"
	return Rule{
		"!has(self.readiness) || !has(self.readiness." + action + ") || (type(" + at + ") == int ? " + at + " >= 1 && " + at + " <= 65535 : " +
			"has(self.ports) && self.ports.exists(p, has(p.name) && p.name != '' && p.name == " + at + "))",
		"`readiness." + action + ".port` must be from 1 to 65535, or the name of one of `ports`",
	}
}

func dataplaneLimits() map[string]Schema {
	address := Schema{MaxLength: ptr[int64](maxIP), Rules: []Rule{{
		"isIP(self) && ip.isCanonical(self) && (ip(self).isGlobalUnicast() || ip(self).isLoopback())",
		"must be an IP address in canonical form that is not unspecified, link-local, multicast or broadcast",
	}}}
	return map[string]Schema{
		"DataplaneSpec":                rules(probePort("httpGet"), probePort("tcpSocket")),
		"DataplaneSpec.mesh":           optional(dnsLabel, maxLabel),
		"DataplaneSpec.nodeName":       optional(dnsSubdomain, maxSubdomain),
		"DataplaneSpec.serviceAccount": optional(dnsSubdomain, maxSubdomain),
		"DataplaneSpec.addresses": items(Schema{MinItems: ptr[int64](1), MaxItems: ptr[int64](2), Rules: []Rule{oneOfEachFamily()}},
			address),
		"DataplaneSpec.ports":        {MaxItems: ptr[int64](maxDataplanePorts), Rules: []Rule{uniqueNames()}},
		"DataplaneSpec.drainSeconds": with(atLeast(0), Schema{Default: 30}),
		"DataplaneSpec.weight":       between(0, 1000),
		"DataplaneSpec.hostname":     optional(dnsLabel, maxLabel),
		"DataplaneSpec.subdomain":    optional(dnsLabel, maxLabel),
		"DataplanePort.name":         optional(portName, maxPortName),
		"DataplanePort.port":         port(),
		"DataplanePort.protocol":     choice("TCP", "UDP", "SCTP"),
		"DataplanePort.appProtocol":  qualifiedName(),
		"DataplanePort.targetPort":   port(),
		"DataplanePort.tags":         values(optional(labelValue, maxLabel)),
		"Probe": rules(Rule{
			"[has(self.httpGet), has(self.tcpSocket), has(self.grpc), has(self.exec)].exists_one(set, set)", "must specify exactly one handler type",
		}),
		"Probe.initialDelaySeconds":      atLeast(0),
		"Probe.periodSeconds":            with(atLeast(0), Schema{Default: 10}),
		"Probe.timeoutSeconds":           with(atLeast(0), Schema{Default: 1}),
		"Probe.successThreshold":         with(atLeast(0), Schema{Default: 1}),
		"Probe.failureThreshold":         with(atLeast(0), Schema{Default: 3}),
		"HTTPGetAction.path":             {Default: "/"},
		"HTTPGetAction.scheme":           with(choice("", "HTTP", "HTTPS"), Schema{Default: "HTTP"}),
		"GRPCAction.port":                port(),
		"ExecAction.command":             {MinItems: ptr[int64](1)},
		"DataplaneLease.durationSeconds": atLeast(1),
	}
}

// oneOfEachFamily of IP addresses. Texts that are none are refused elsewhere.
func oneOfEachFamily() Rule {
	return Rule{
		"self.size() != 2 || !self.all(a, isIP(a)) || ip(self[0]).family() != ip(self[1]).family()",
		"may specify no more than one IP for each IP family",
	}
}
