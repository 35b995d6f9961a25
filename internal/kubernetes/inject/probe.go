package inject

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Probes of the kubelet come from outside the mesh. The sidecar answers them in its own place,
// without TLS, and asks the container by the loopback interface.

// asked is a probe as the sidecar gets it ("http:8080/healthz") and the action that asks the
// sidecar; ok is false of one that is no connection, or goes elsewhere.
func asked(p *corev1.Probe, c *corev1.Container) (flag string, action corev1.HTTPGetAction, ok bool, err error) {
	kind, tail := "", ""
	var to intstr.IntOrString
	switch {
	case p == nil:
		return "", action, false, nil
	case p.HTTPGet != nil && p.HTTPGet.Host == "":
		kind, to = "http", p.HTTPGet.Port
		if p.HTTPGet.Scheme == corev1.URISchemeHTTPS {
			kind = "https"
		}
		tail = "/" + strings.TrimPrefix(p.HTTPGet.Path, "/")
		if strings.ContainsAny(tail, ", ?#") {
			return "", action, false, fmt.Errorf("the path %q has characters that the sidecar does not pass on", tail)
		}
		if len(p.HTTPGet.HTTPHeaders) > 0 {
			return "", action, false, fmt.Errorf("the sidecar passes no headers on, and the probe of %s has some", tail)
		}
	case p.TCPSocket != nil && p.TCPSocket.Host == "":
		kind, to = "tcp", p.TCPSocket.Port
	case p.GRPC != nil:
		kind, to = "grpc", intstr.FromInt32(p.GRPC.Port)
		if s := p.GRPC.Service; s != nil && *s != "" {
			tail = "/" + *s
		}
	default:
		return "", action, false, nil
	}
	port, err := portOf(to, c)
	if err != nil {
		return "", action, false, err
	}
	action = corev1.HTTPGetAction{Path: fmt.Sprintf("/probe/%s/%d%s", kind, port, tail), Port: intstr.FromInt32(HealthPort), Scheme: corev1.URISchemeHTTP}
	return fmt.Sprintf("%s:%d%s", kind, port, tail), action, true, nil
}

// portOf a probe: its number, or that of the container's port of its name.
func portOf(p intstr.IntOrString, c *corev1.Container) (int32, error) {
	if p.Type == intstr.Int {
		return p.IntVal, nil
	}
	for _, of := range c.Ports {
		if of.Name == p.StrVal {
			return of.ContainerPort, nil
		}
	}
	if n, err := strconv.ParseUint(p.StrVal, 10, 16); err == nil {
		return int32(n), nil
	}
	return 0, fmt.Errorf("container %s has no port %q", c.Name, p.StrVal)
}

// hooked are hooks of a container that connect to it: the kubelet's connections to ports of the
// mesh are refused where it is strict.
func hooked(c *corev1.Container) bool {
	l := c.Lifecycle
	if l == nil {
		return false
	}
	for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
		if h != nil && h.HTTPGet != nil {
			return true
		}
	}
	return false
}
