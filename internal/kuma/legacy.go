package kuma

import (
	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// matches of sources or destinations; nil: everybody is.
func (o *object) matches(key string) (out []map[string]string) {
	for _, item := range o.spec.list(key) {
		labels := item.labels("match")
		for tag, value := range labels {
			if value == "*" || tag == "kuma.io/protocol" { // what a policy is about says the protocol
				delete(labels, tag)
			}
		}
		if len(labels) == 0 {
			return nil
		}
		out = append(out, labels)
	}
	return out
}

// eachDestination calls f with the policy of each Service, of clients everywhere.
func (o *object) eachDestination(f func(spec *mesh.BackendPolicySpec, conf *node)) {
	conf := o.spec.child("conf")
	if o.matches("sources") != nil {
		o.refuse(o.spec.at("sources"), "a BackendPolicy is for all clients of its backend, or those of a namespace: it cannot select them")
		o.spec.skip("destinations")
		o.spec.skip("conf")
		return
	}
	destinations := o.matches("destinations")
	if destinations == nil {
		f(o.addBackend(o.wholeMesh()), conf)
	}
	for _, labels := range destinations {
		name := labels[tagService]
		if name == "" || len(labels) > 1 {
			o.refuse(o.spec.at("destinations"), "a BackendPolicy is for a Service, named by "+tagService+" alone")
			continue
		}
		f(o.addBackend(o.service(name)), conf)
	}
	if conf == nil {
		o.refuse("conf", "is missing")
	}
}

// eachServer calls f with the target of each destination, and the sources.
func (o *object) eachServer(f func(t target, from []mesh.PolicySource)) {
	var from []mesh.PolicySource
	for _, labels := range o.matches("sources") {
		o.checkTags(o.spec.at("sources"), labels)
		from = append(from, sourceOf(labels)...)
	}
	destinations := o.matches("destinations")
	if destinations == nil {
		f(o.wholeMesh(), from)
	}
	for _, labels := range destinations {
		o.checkTags(o.spec.at("destinations"), labels)
		f(o.selected(labels), from)
	}
}

func (o *object) timeout() {
	o.eachDestination(func(spec *mesh.BackendPolicySpec, conf *node) {
		http, tcp := conf.child("http"), conf.child("tcp")
		t := &mesh.PolicyTimeout{
			Connect: conf.duration("connectTimeout"), Idle: tcp.duration("idleTimeout"), Request: http.duration("requestTimeout"),
			StreamIdle: http.duration("streamIdleTimeout"), MaxStream: http.duration("maxStreamDuration"),
		}
		if d := http.duration("idleTimeout"); d != nil {
			if t.Idle != nil && *t.Idle != *d {
				http.refuse("idleTimeout", "one time is for connections of TCP and HTTP")
			}
			t.Idle = d
		}
		spec.Timeout = t
	})
}

func (o *object) retry() { o.eachDestination(o.retryConf) }

func (o *object) circuitBreaker() {
	o.eachDestination(func(spec *mesh.BackendPolicySpec, conf *node) {
		spec.Limits = limits(conf.child("thresholds"), "maxConnections")
		conf.raw("thresholds")
		spec.Outlier = o.outlier(conf)
	})
}

func (o *object) healthCheck() { o.eachDestination(o.checkConf) }

func (o *object) rateLimit() {
	http := o.spec.child("conf").child("http")
	limit := mesh.HTTPRateLimit{Status: http.child("onRateLimit").number("status")}
	if n, per := http.number("requests"), http.duration("interval"); n != nil && per != nil {
		limit.Requests, limit.Per = *n, *per
	}
	o.eachServer(func(t target, from []mesh.PolicySource) {
		own := limit
		o.addWorkload(t).RateLimit = []mesh.RateLimit{{From: from, HTTP: &own}}
	})
}

func (o *object) faultInjection() {
	conf := o.spec.child("conf")
	o.eachServer(func(t target, from []mesh.PolicySource) {
		o.addWorkload(t).Faults = o.faults(conf, from)
	})
}

func (o *object) trafficPermission() {
	o.eachServer(func(t target, from []mesh.PolicySource) {
		o.addPermission(t).Allow = []mesh.PermissionRule{{From: from}}
	})
}
