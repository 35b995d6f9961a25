package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/node/fromkube"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// ClusterConfig lets an agent follow any Kubernetes API, as kube-proxy does: instead of a
// control plane of ours, or while that is not there.
type ClusterConfig struct {
	// REST reaches the API.
	REST *rest.Config
	// NodeCIDR: the workload ranges are the pod ranges of the Node object.
	NodeCIDR bool
	// Primary: node ports answer on the addresses of the Node object.
	Primary bool
	// Conntrack are settings that the agent makes in a kernel mode.
	Conntrack fromkube.Conntrack
}

// ClusterREST is the configuration to reach a Kubernetes API with: a kubeconfig,
// or (none given) the service account of the pod that this runs in.
func ClusterREST(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, &problem.Error{
				Code: problem.KubeconfigMissing,
				Err:  errors.New("no kubeconfig was given, and this is not a pod"),
				Hint: "name one with --kubeconfig, or in clientConnection.kubeconfig of the kube-proxy configuration",
			}
		}
		return cfg, err
	}
	if _, err := os.Stat(kubeconfig); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	return cfg, nil
}

const (
	// nodeTimeout is how long the start waits for the agent's Node where its settings depend on it; the node may be
	// joining at the same time. A Node that is there is waited for without a bound until it has what is needed.
	nodeTimeout = 2 * time.Minute
	// nodeEvery is how often the Node is asked for, and nodeLogEvery how often the log repeats what is waited for.
	nodeEvery    = time.Second
	nodeLogEvery = 5 * time.Minute
)

// learnNode takes from the Node object what the settings leave to it, and waits until the Node has it.
func (a *agent) learnNode(ctx context.Context) error {
	c := a.cfg.Cluster
	if !c.NodeCIDR && !c.Primary {
		return nil
	}
	n, err := a.awaitNode(ctx)
	if err != nil {
		return err
	}
	if c.NodeCIDR {
		ranges, err := podRanges(n)
		if err != nil {
			return err
		}
		a.cfg.WorkloadCIDRs = ranges
	}
	if c.Primary {
		a.learnAddresses(n)
		if !byNftables(a.cfg.Mode) || a.cfg.Mode == ipvsMode { // which follows them, but for what may take the place of IPVS
			for _, ip := range *a.ofNode.Load() {
				a.cfg.NodePortAddresses = append(a.cfg.NodePortAddresses, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	return nil
}

// learnAddresses takes the internal addresses of the Node, and reports whether they are others than before. A Node
// without any changes nothing.
func (a *agent) learnAddresses(n *corev1.Node) bool {
	own := internalAddresses(n)
	if len(own) == 0 {
		return false
	}
	last := a.ofNode.Swap(&own)
	return last == nil || !slices.Equal(*last, own)
}

// followAddresses applies internal addresses of the Node that have changed to node ports.
func (a *agent) followAddresses(n *corev1.Node) {
	if !a.learnAddresses(n) {
		return
	}
	if mode, ok := a.mode.(proxy.Addressed); ok {
		mode.AddressesChanged()
	}
	fixed := a.cfg.Cluster.Primary && a.cfg.NodePortAddresses != nil
	if fixed && !slices.EqualFunc(a.cfg.NodePortAddresses, *a.ofNode.Load(), func(p netip.Prefix, ip netip.Addr) bool { return p.Addr() == ip }) {
		a.log.Warn("the internal addresses of this machine's node have changed: node ports stay on the former ones until the agent is restarted",
			"node", n.Name, "addresses", *a.ofNode.Load(), "served", a.cfg.NodePortAddresses)
	}
}

// awaitNode reads the Node, and waits while there is none, or it lacks what the settings need. Meanwhile health and status
// say so. It asks as the agent follows its Node later, by a list of that name: the role of the chart does not allow get.
func (a *agent) awaitNode(ctx context.Context) (*corev1.Node, error) {
	client, err := kubeclient.New(a.restConfig(), kind.All())
	if err != nil {
		return nil, err
	}
	nodes := kubeclient.NewStreamed(client, func(resource.Object) {})
	named := resource.ListOptions{Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, a.cfg.Name)}
	var w *waiting
	defer func() { w.close() }()
	absentSince, logged, logAfter := time.Now(), "", time.Time{}
	for {
		found, _, err := nodes.List(ctx, kind.Node, named)
		why, detail := "", ""
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			return nil, fmt.Errorf("node %s: %w", a.cfg.Name, err)
		case err != nil:
			why, detail = "the API cannot be read", ": "+err.Error()
		case len(found) == 0:
			why = "the API has no node of this name"
		default:
			n := found[0].(*corev1.Node)
			if why = a.lacks(n); why == "" {
				return n, nil
			}
			absentSince = time.Now()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if time.Since(absentSince) > nodeTimeout {
			hint := "check --node-name: it must be the name that kubectl get nodes shows"
			if err != nil {
				hint = "check that this machine reaches the API of the cluster, and the kubeconfig"
			}
			return nil, &problem.Error{Code: problem.NodeNotFound, Err: fmt.Errorf("node %s: %s%s", a.cfg.Name, why, detail), Hint: hint}
		}
		if why != logged || time.Now().After(logAfter) {
			logged, logAfter = why, time.Now().Add(nodeLogEvery)
			a.log.Info("waiting for this machine's node", "node", a.cfg.Name, "why", why+detail)
		}
		if w == nil {
			if w, err = a.serveWaiting(); err != nil {
				return nil, err
			}
		}
		w.set(fmt.Sprintf("node %s: %s%s", a.cfg.Name, why, detail))
		select {
		case <-ctx.Done():
		case <-time.After(nodeEvery):
		}
	}
}

// lacks says what a Node has not yet that the settings need; empty: nothing.
func (a *agent) lacks(n *corev1.Node) string {
	switch {
	case a.cfg.Cluster.NodeCIDR && len(n.Spec.PodCIDRs) == 0:
		return "it has no pod range yet, which detectLocalMode NodeCIDR needs"
	case a.cfg.Cluster.Primary && len(internalAddresses(n)) == 0:
		return "it has no address of type InternalIP yet, which nodePortAddresses \"primary\" needs"
	}
	return ""
}

func podRanges(n *corev1.Node) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("node %s: pod range: %w", n.Name, err)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// internalAddresses of a Node: the first of each family.
func internalAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	seen := map[bool]bool{}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || a.Type != corev1.NodeInternalIP || seen[ip.Is4()] {
			continue
		}
		seen[ip.Is4()] = true
		out = append(out, ip)
	}
	return out
}

// clusterComponents follow a Kubernetes API.
func (a *agent) clusterComponents() (out []component, err error) {
	a.cluster, err = fromkube.New(fromkube.Config{
		REST: a.watchConfig(), Node: a.cfg.Name, Names: a.wantsNames(),
		Update: a.apply, OnNode: a.learnOwn, Logger: a.log.With("component", "cluster"),
	})
	if err != nil {
		return nil, err
	}
	return []component{{Name: "cluster", Run: a.cluster.Run}}, nil
}

// learnOwn applies the Node object. Without one, the last state stays: a Node that
// was deleted by mistake must not redirect traffic.
func (a *agent) learnOwn(n *corev1.Node) {
	if n == nil {
		a.log.Warn("the API has no node of this name; its zone is unknown, or the last one is kept", "node", a.cfg.Name)
		return
	}
	a.learn(n)
}
