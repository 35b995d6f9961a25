package kube_test

import "strings"

// balancers are Services of type LoadBalancer: of Proxima's classes, of another provider's, and
// of none.
const balancers = `
apiVersion: mesh.proxima.dev/v1alpha1
kind: IPAddressPool
metadata: {name: public}
spec: {addresses: [10.96.0.0/31, 192.0.2.8/31]}
---
apiVersion: v1
kind: Service
metadata: {name: of-pool, namespace: shop}
spec: {type: LoadBalancer, loadBalancerClass: proxima.dev/pool, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: of-nodes, namespace: shop}
spec: {type: LoadBalancer, loadBalancerClass: proxima.dev/node, ports: [{port: 8123}]}
---
apiVersion: v1
kind: Service
metadata: {name: of-kubelet, namespace: shop}
spec: {type: LoadBalancer, loadBalancerClass: proxima.dev/node, ports: [{port: 10250}]}
---
apiVersion: v1
kind: Service
metadata: {name: of-another, namespace: shop}
spec: {type: LoadBalancer, loadBalancerClass: example.com/lb, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: of-none, namespace: shop}
spec: {type: LoadBalancer, ports: [{port: 80}]}
`

// assignsAddresses: Services of Proxima's classes get addresses, but none of the cluster's virtual
// IPs, and no port that Kubernetes needs on nodes; those of others are left alone.
func (b *bench) assignsAddresses() {
	b.t.Helper()
	b.kubectl("", "patch", "node", "node-00", "--subresource=status", "-p", `{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.10"}]}}`)
	b.kubectl(balancers, "apply", "-f", "-")
	get := func(name, path string) string {
		return b.kubectl("", "--namespace", "shop", "get", "service", name, "-o", "jsonpath={.status"+path+"}")
	}
	b.until("addresses are assigned", func() bool {
		return strings.HasPrefix(get("of-pool", ".loadBalancer.ingress[*].ip"), "192.0.2.") && get("of-nodes", ".loadBalancer.ingress[*].ip") == "10.0.0.10" &&
			get("of-kubelet", ".conditions[?(@.type=='proxima.dev/LoadBalancer')].reason") == "PortInUse" &&
			b.kubectl("", "get", "ipaddresspool", "public", "-o", "jsonpath={.status.assigned}") == "1"
	})
	for _, name := range []string{"of-another", "of-none"} {
		if got := get(name, ".conditions[?(@.type=='proxima.dev/LoadBalancer')].reason") + get(name, ".loadBalancer"); got != "" && got != "{}" {
			b.t.Errorf("service %s has %s", name, got)
		}
	}
	if got := b.kubectl("", "--namespace", "shop", "get", "events", "--field-selector", "involvedObject.name=of-kubelet"); !strings.Contains(got, "PortInUse") {
		b.t.Errorf("events of a Service without an address:\n%s", got)
	}
	b.kubectl(balancers, "delete", "-f", "-")
}
