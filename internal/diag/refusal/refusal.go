// Package refusal finds out what the proxy of a workload refuses, from the statistics of its Envoy and the
// state of its supervisor.
//
// Enter at Read, with both answers of "proxima proxy", and compare two readings with Since. It does no I/O, and
// knows nothing of policies: who refuses by which is for those to say who have them.
package refusal

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Cause is why connections or calls are refused.
type Cause string

// The causes.
const (
	// Permission: a TrafficPermission, or Mesh.spec.defaultAccess, does not let the caller in.
	Permission Cause = "permission"
	// Plain: the port is in mode Strict, and the client has begun no mutual TLS of the mesh, or with a
	// certificate that does not hold.
	Plain Cause = "strict"
	// Bypass: the port is in mode Strict, and the connection would have come past the proxy.
	Bypass Cause = "bypass"
	// Outside: the workload has called an address outside the mesh, and may not.
	Outside Cause = "passthrough"
)

// Count of what was refused since the proxy started.
type Count struct {
	Cause Cause `json:"cause"`
	// Port of the workload; 0: the statistics do not say, or it is about what the workload calls.
	Port  uint16 `json:"port,omitempty"`
	Count uint64 `json:"count"`
}

// Read the refusals of a proxy from its statistics, in the text format of Prometheus, and the state of its
// supervisor in JSON, which may be empty. What cannot be read is left out: both are for people, and another
// version may write them in another way.
func Read(statistics, state []byte) []Count {
	type at struct {
		cause Cause
		port  uint16
	}
	sums := map[at]uint64{}
	for line := range strings.Lines(string(statistics)) {
		name, labels, value, ok := sample(strings.TrimSpace(line))
		if !ok {
			continue
		}
		switch {
		case permissionDenied(name, labels["envoy_rbac_http_prefix"]):
			sums[at{Permission, 0}] += value
		case name == "envoy_listener_ssl_connection_error" || name == "envoy_listener_ssl_fail_verify_no_cert" ||
			name == "envoy_listener_ssl_fail_verify_error" || name == "envoy_listener_ssl_fail_verify_san":
			if port, ok := portOf(labels["envoy_listener_address"]); ok {
				sums[at{Plain, port}] += value
			}
		case name == "envoy_cluster_upstream_cx_none_healthy" && labels["envoy_cluster_name"] == "blackhole":
			sums[at{Outside, 0}] += value
		}
	}
	var own struct {
		Refused map[uint16]uint64 `json:"refused"`
	}
	if json.Unmarshal(state, &own) == nil {
		for port, n := range own.Refused {
			sums[at{Bypass, port}] += n
		}
	}
	var out []Count
	for of, n := range sums {
		if n > 0 {
			out = append(out, Count{of.cause, of.port, n})
		}
	}
	slices.SortFunc(out, func(a, b Count) int {
		if c := strings.Compare(string(a.Cause), string(b.Cause)); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	})
	return out
}

// permissionDenied reports a counter of what permissions refuse; those of shadows, which refuse nothing, are
// none. Of HTTP filters Envoy makes their prefix a label.
func permissionDenied(name, prefix string) bool {
	return name == "envoy_permission_deny_rbac_denied" || name == "envoy_permission_allow_rbac_denied" ||
		name == "envoy_http_rbac_denied" && strings.HasPrefix(prefix, "permission_")
}

// sample of the text format: a name, labels in braces, and a number.
func sample(line string) (name string, labels map[string]string, value uint64, ok bool) {
	if line == "" || line[0] == '#' {
		return "", nil, 0, false
	}
	cut := strings.LastIndexByte(line, ' ')
	if cut < 0 {
		return "", nil, 0, false
	}
	number, err := strconv.ParseFloat(line[cut+1:], 64)
	if err != nil || !(number >= 0 && number < 1<<63) {
		return "", nil, 0, false
	}
	name, rest, _ := strings.Cut(line[:cut], "{")
	labels = map[string]string{}
	for rest != "" {
		key, after, found := strings.Cut(rest, `="`)
		text, more, closed := strings.Cut(after, `"`)
		if !found || !closed {
			break
		}
		labels[strings.TrimLeft(key, ", ")] = text
		rest = strings.TrimSuffix(more, "}")
	}
	return strings.TrimSpace(name), labels, uint64(number), true
}

// portOf the address of a listener, as Envoy writes it: 10.0.0.1_8080.
func portOf(address string) (uint16, bool) {
	_, port, _ := strings.Cut(address[strings.LastIndexByte(address, '_')+1:], "]")
	if port == "" {
		port = address[strings.LastIndexByte(address, '_')+1:]
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return uint16(n), err == nil && n > 0
}

// Since an earlier reading of the same proxy: what was refused meanwhile. A proxy that has started again
// counts from 0.
func Since(before, now []Count) []Count {
	var out []Count
	for _, c := range now {
		i := slices.IndexFunc(before, func(b Count) bool { return b.Cause == c.Cause && b.Port == c.Port })
		if i >= 0 && before[i].Count <= c.Count {
			c.Count -= before[i].Count
		}
		if c.Count > 0 {
			out = append(out, c)
		}
	}
	return out
}
