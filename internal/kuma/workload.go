package kuma

import (
	"math"
	"net/url"
	"strconv"
	"strings"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

func (o *object) limit(conf *node) *mesh.RateLimit {
	local := conf.child("local")
	r := &mesh.RateLimit{}
	if h := local.child("http"); h != nil && !h.flag("disabled") {
		rate := h.child("requestRate")
		r.HTTP = &mesh.HTTPRateLimit{}
		if n, per := rate.number("num"), rate.duration("interval"); n != nil && per != nil {
			r.HTTP.Requests, r.HTTP.Per = *n, *per
		}
		r.HTTP.Status = h.child("onRateLimit").number("status")
	}
	if t := local.child("tcp"); t != nil && !t.flag("disabled") {
		rate := t.child("connectionRate")
		r.TCP = &mesh.TCPRateLimit{}
		if n, per := rate.number("num"), rate.duration("interval"); n != nil && per != nil {
			r.TCP.Connections, r.TCP.Per = *n, *per
		}
	}
	if r.HTTP == nil && r.TCP == nil {
		return nil // all are disabled: no limit
	}
	return r
}

func (o *object) meshRateLimit() {
	inbound := o.inboundOf()
	if o.spec.has("to") {
		o.eachTo(func(spec *mesh.BackendPolicySpec, conf *node) {
			if r := o.limit(conf); r != nil {
				spec.RateLimit = append(spec.RateLimit, *r)
			}
		})
	}
	o.eachFrom(func(from []mesh.PolicySource, conf *node) {
		if r := o.limit(conf); r != nil {
			r.From = from
			if r.TCP != nil && len(from) > 0 {
				o.refuse("spec.from", "connections are limited for all callers together")
				r.TCP = nil
			}
			if r.HTTP != nil || r.TCP != nil {
				spec := inbound()
				spec.RateLimit = append(spec.RateLimit, *r)
			}
		}
	})
}

// faults of one item: each kind of fault has a percentage of its own in Kuma.
func (o *object) faults(conf *node, from []mesh.PolicySource) (out []mesh.Fault) {
	one := func(key string, set func(f *mesh.Fault, n *node)) {
		n := conf.child(key)
		if n == nil {
			return
		}
		f := mesh.Fault{From: from, Percent: n.fraction("percentage")}
		set(&f, n)
		if f.Abort != nil && f.Abort.HTTPStatus != nil || f.Delay != nil || f.Bandwidth != nil {
			out = append(out, f)
		}
	}
	one("abort", func(f *mesh.Fault, n *node) { f.Abort = &mesh.FaultAbort{HTTPStatus: n.number("httpStatus")} })
	one("delay", func(f *mesh.Fault, n *node) { f.Delay = n.duration("value") })
	one("responseBandwidth", func(f *mesh.Fault, n *node) { f.Bandwidth = o.bandwidth(n) })
	return out
}

// bandwidth in kbit/s of a text such as 50 Mbps.
func (o *object) bandwidth(n *node) *int32 {
	number, unit, _ := strings.Cut(n.text("limit"), " ")
	factor, ok := map[string]float64{"kbps": 1, "Mbps": 1e3, "Gbps": 1e6}[unit]
	value, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(value*factor >= 1 && value*factor <= math.MaxInt32) {
		o.refuse(n.at("limit"), "must be a number of kbps, Mbps or Gbps")
		return nil
	}
	kbits := int32(value * factor)
	return &kbits
}

func (o *object) meshFaultInjection() {
	inbound := o.inboundOf()
	if o.spec.has("to") {
		o.eachTo(func(spec *mesh.BackendPolicySpec, conf *node) {
			for _, f := range conf.list("http") {
				spec.Faults = append(spec.Faults, o.faults(f, nil)...)
			}
		})
	}
	o.eachFrom(func(from []mesh.PolicySource, conf *node) {
		for _, f := range conf.list("http") {
			spec := inbound()
			spec.Faults = append(spec.Faults, o.faults(f, from)...)
		}
	})
}

func (o *object) meshTLS() {
	inbound := o.inbound()
	o.eachFrom(func(from []mesh.PolicySource, conf *node) {
		o.everybody(from, "TLS settings")
		tls := &mesh.WorkloadTLS{Mode: conf.text("mode"), Ciphers: conf.texts("tlsCiphers")}
		v := conf.child("tlsVersion")
		for _, bound := range []struct {
			key string
			to  *string
		}{{"min", &tls.Min}, {"max", &tls.Max}} {
			switch text := v.text(bound.key); text {
			case "", "TLSAuto":
			case "TLS12":
				*bound.to = "1.2"
			case "TLS13":
				*bound.to = "1.3"
			default:
				o.refuse(v.at(bound.key), text+" is not supported: TLS12 and TLS13 are")
			}
		}
		inbound().TLS = tls
	})
}

func (o *object) meshPassthrough() {
	conf := o.spec.child("default")
	spec := o.inbound()()
	spec.Passthrough = &mesh.WorkloadPassthrough{Mode: conf.text("passthroughMode")}
	for _, m := range conf.list("appendMatch") {
		match := mesh.PassthroughMatch{Type: m.text("type"), Value: m.text("value")}
		if p := m.number("port"); p != nil {
			match.Port = *p
		}
		switch protocol := m.text("protocol"); protocol {
		case "", "tcp", "tls", "http":
			match.Protocol = strings.ToUpper(protocol)
		case "http2", "grpc":
			match.Protocol = "HTTP"
		case "mysql":
			match.Protocol = "TCP"
		default:
			o.refuse(m.at("protocol"), protocol+" is no protocol of passthrough")
		}
		spec.Passthrough.Match = append(spec.Passthrough.Match, match)
	}
	if spec.Passthrough.Mode != mesh.PassthroughMatched && spec.Passthrough.Match != nil {
		o.refuse(conf.at("appendMatch"), "counts with mode Matched alone")
		spec.Passthrough.Match = nil
	}
}

// format of a log: a line; JSON is an object of ours in none.
func (o *object) format(backend *node) string {
	f := backend.child("format")
	f.refuse("json", "a line is a text with Envoy's operators: write it as spec.accessLog[].format")
	f.text("type")
	return f.text("plain")
}

func (o *object) logs(conf *node) (out []mesh.AccessLog) {
	for _, b := range conf.list("backends") {
		var log mesh.AccessLog
		switch kind := b.text("type"); kind {
		case "Tcp":
			t := b.child("tcp")
			log.TCP, log.Format = &mesh.TCPLog{Address: t.text("address")}, o.format(t)
		case "File":
			f := b.child("file")
			log.File, log.Format = &mesh.FileLog{Path: f.text("path")}, o.format(f)
			if log.File.Path == "/dev/stdout" {
				log.Stdout, log.File = &mesh.StdoutLog{}, nil
			}
		case "OpenTelemetry":
			log.OTLP = &mesh.OTLPEndpoint{Address: b.child("openTelemetry").text("endpoint")}
		default:
			o.refuse(b.at("type"), kind+" is no log of a WorkloadPolicy")
			continue
		}
		out = append(out, log)
	}
	return out
}

// meshAccessLog: ours are of both directions.
func (o *object) meshAccessLog() {
	spec := o.inbound()()
	seen := 0
	for _, direction := range []string{"to", "from", "rules"} {
		for _, item := range o.spec.list(direction) {
			if ref := item.child("targetRef"); !o.wholeTarget(ref) {
				o.refuse(item.at("targetRef"), "a log is of all connections of the workload")
				for key := range ref.values {
					ref.raw(key)
				}
			}
			if logs := o.logs(item.child("default")); seen == 0 {
				spec.AccessLog, seen = logs, 1
			} else if len(logs) > 0 {
				seen++
			}
		}
	}
	if !o.spec.has("to") || !o.spec.has("from") && !o.spec.has("rules") {
		o.refuse("spec", "it logs one direction; a WorkloadPolicy logs both")
	}
}

func (o *object) meshTrace() {
	conf := o.spec.child("default")
	spec := o.inbound()()
	t := &mesh.WorkloadTracing{}
	spec.Tracing = t
	for i, b := range conf.list("backends") {
		if i > 0 {
			o.refuse(b.path, "spans go to one backend")
			break
		}
		switch kind := b.text("type"); kind {
		case "Zipkin":
			z := b.child("zipkin")
			host, path := o.address(z, "url", "9411")
			t.Zipkin = &mesh.ZipkinEndpoint{Address: host, Path: path}
			if v := z.text("apiVersion"); v != "" && v != "httpJson" {
				o.refuse(z.at("apiVersion"), "spans are sent as JSON of version 2")
			}
		case "Datadog":
			t.Datadog = &mesh.DatadogEndpoint{}
			t.Datadog.Address, _ = o.address(b.child("datadog"), "url", "8126")
		case "OpenTelemetry":
			t.OTLP = &mesh.OTLPEndpoint{Address: b.child("openTelemetry").text("endpoint")}
		default:
			o.refuse(b.at("type"), kind+" is no backend of tracing")
		}
	}
	if s := conf.child("sampling"); s != nil {
		t.Sample = s.fraction("overall")
	}
	for _, tag := range conf.list("tags") {
		one := mesh.TracingTag{Name: tag.text("name"), Value: tag.text("literal")}
		if h := tag.child("header"); h != nil {
			one.Header, one.Value = h.text("name"), h.text("default")
		}
		t.Tags = append(t.Tags, one)
	}
}

// address of a URL, with the port that it means.
func (o *object) address(n *node, key, port string) (host, path string) {
	u, err := url.Parse(n.text(key))
	if err != nil || u.Host == "" {
		o.refuse(n.at(key), "is no URL with a host")
		return "", ""
	}
	if host = u.Host; u.Port() == "" {
		host += ":" + port
	}
	return host, u.Path
}

func (o *object) meshMetric() {
	conf := o.spec.child("default")
	spec := o.inbound()()
	m := &mesh.WorkloadMetrics{}
	spec.Metrics = m
	for _, app := range conf.list("applications") {
		one := mesh.MetricsApp{Name: app.text("name"), Path: app.text("path")}
		if p := app.number("port"); p != nil {
			one.Port = *p
		}
		m.Apps = append(m.Apps, one)
	}
	for _, b := range conf.list("backends") {
		if kind := b.text("type"); kind != "Prometheus" {
			o.refuse(b.path, kind+" pushes metrics: a collector can scrape the proxies instead")
			b.raw("openTelemetry")
			continue
		}
		p := b.child("prometheus")
		m.Port, m.Path = p.number("port"), p.text("path")
		switch mode := p.child("tls").text("mode"); mode {
		case "", "Disabled":
		case "ActiveMTLSBackend":
			m.MTLS = true
		default:
			o.refuse(p.at("tls.mode"), mode+" is not supported: ActiveMTLSBackend and Disabled are")
		}
	}
	if profiles := conf.child("sidecar").child("profiles"); profiles != nil {
		m.Include, m.Exclude = o.names(profiles, "include"), o.names(profiles, "exclude")
	}
}

// names of metrics as one regular expression.
func (o *object) names(profiles *node, key string) string {
	var all []string
	for _, s := range profiles.list(key) {
		match := s.text("match")
		switch kind := s.text("type"); kind {
		case "Regex":
		case "Exact":
			match = "^" + match + "$"
		case "Prefix":
			match = "^" + match
		case "Contains":
		default:
			o.refuse(s.at("type"), kind+" is no comparison of names")
		}
		all = append(all, match)
	}
	return strings.Join(all, "|")
}
