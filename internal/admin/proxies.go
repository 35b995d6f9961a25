package admin

// ProxiesStatus sums up the proxies, and gRPC programs, that follow their configuration.
type ProxiesStatus struct {
	Connected int `json:"connected"`
	// Behind are those that have not answered something that they were sent.
	Behind int `json:"behind"`
	// Rejecting are those that do not have a resource as it is now, as they, or proxies like them,
	// rejected it.
	Rejecting int `json:"rejecting"`
	// Rejected are the first of these resources, at most MaxProxyRejections.
	Rejected []ProxyRejection `json:"rejected,omitempty"`
	// Missing are Pods that should have a sidecar and have none, and Without the first of them
	// (NAMESPACE/NAME), at most MaxProxyRejections.
	Missing int      `json:"missing,omitempty"`
	Without []string `json:"without,omitempty"`
	// Unredirected are Pods whose connections are not led to their sidecars, as the agents of their
	// nodes say that follow this instance, and Waiting the first of them, at most MaxProxyRejections.
	Unredirected int          `json:"unredirected,omitempty"`
	Waiting      []WaitingPod `json:"waiting,omitempty"`
}

// WaitingPod waits for its connections to be led to its sidecar.
type WaitingPod struct {
	// Pod, NAMESPACE/NAME, and the node that it is on.
	Pod    string `json:"pod"`
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// ProxyRejection is a resource that a proxy does not have as it is now.
type ProxyRejection struct {
	// Dataplane, NAMESPACE/NAME.
	Dataplane string `json:"dataplane"`
	// Type of the resource, as Cluster.
	Type   string `json:"type"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// MaxProxyRejections are listed in ProxiesStatus.Rejected.
const MaxProxyRejections = 20

// Trim leaves out rejections and Pods that are too many.
func (p *ProxiesStatus) Trim() {
	p.Rejected = p.Rejected[:min(len(p.Rejected), MaxProxyRejections)]
	p.Waiting = p.Waiting[:min(len(p.Waiting), MaxProxyRejections)]
}

// plus adds those of another instance. Either may be nil.
func (p *ProxiesStatus) plus(other *ProxiesStatus) *ProxiesStatus {
	if p == nil || other == nil {
		if p == nil {
			return other
		}
		return p
	}
	p.Connected, p.Behind, p.Rejecting = p.Connected+other.Connected, p.Behind+other.Behind, p.Rejecting+other.Rejecting
	p.Rejected = append(p.Rejected, other.Rejected...)
	p.Trim()
	return p
}
