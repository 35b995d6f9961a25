package workload

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// ServiceEnv is what a process finds of Services in its environment, as
// "NAME=value": the variables that Kubernetes gives to containers, in its words
// and those of Docker links. Services without a virtual IP have none. If two
// Services come by the same variable, the one whose name sorts last has it.
func ServiceEnv(services []*corev1.Service) []string {
	sorted := slices.SortedFunc(slices.Values(services), func(a, b *corev1.Service) int {
		// The API's own, which are set in every namespace, come first, so that a Service of the
		// namespace can take their place, as in Kubernetes.
		return cmp.Or(compareBool(!kind.IsAPI(resource.KeyOf(a)), !kind.IsAPI(resource.KeyOf(b))), cmp.Compare(a.Name, b.Name))
	})
	var env []string
	for _, svc := range sorted {
		if svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone ||
			svc.Spec.Type == corev1.ServiceTypeExternalName || len(svc.Spec.Ports) == 0 {
			continue
		}
		env = append(env, serviceVariables(svc)...)
	}
	return env
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func serviceVariables(svc *corev1.Service) []string {
	prefix, host := variableName(svc.Name), svc.Spec.ClusterIP
	env := []string{
		prefix + "_SERVICE_HOST=" + host,
		prefix + "_SERVICE_PORT=" + strconv.Itoa(int(svc.Spec.Ports[0].Port)),
	}
	for _, p := range svc.Spec.Ports {
		if p.Name != "" {
			env = append(env, prefix+"_SERVICE_PORT_"+variableName(p.Name)+"="+strconv.Itoa(int(p.Port)))
		}
	}
	for i, p := range svc.Spec.Ports {
		protocol, port := cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP)), strconv.Itoa(int(p.Port))
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(host, port)
		if i == 0 {
			env = append(env, prefix+"_PORT="+url)
		}
		link := prefix + "_PORT_" + port + "_" + strings.ToUpper(protocol)
		env = append(env,
			link+"="+url,
			link+"_PROTO="+strings.ToLower(protocol),
			link+"_PORT="+port,
			link+"_ADDR="+host)
	}
	return env
}

// variableName turns a name of a Service or port into part of a variable's.
func variableName(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// Without leaves out of env what is set in the other environment: what a user
// set is never overridden.
func Without(env, set []string) []string {
	have := make(map[string]struct{}, len(set))
	for _, v := range set {
		name, _, _ := strings.Cut(v, "=")
		have[name] = struct{}{}
	}
	var out []string
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if _, taken := have[name]; !taken {
			out = append(out, v)
		}
	}
	return out
}
