package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
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

// nodeTimeout is how long the start waits for the agent's Node where its
// settings depend on it; the node may be joining at the same time.
const nodeTimeout = 2 * time.Minute

// learnNode takes from the Node object what the settings leave to it.
func (a *agent) learnNode(ctx context.Context) error {
	c := a.cfg.Cluster
	if !c.NodeCIDR && !c.Primary {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
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
		a.cfg.NodePortAddresses = internalAddresses(n)
		if len(a.cfg.NodePortAddresses) == 0 {
			return fmt.Errorf("node %s has no internal address for nodePortAddresses \"primary\"", n.Name)
		}
	}
	return nil
}

// awaitNode reads the Node, and waits while there is none, or no pod range yet. It asks as the agent follows its
// Node later, by a list of that name: the role of the chart does not allow get.
func (a *agent) awaitNode(ctx context.Context) (*corev1.Node, error) {
	client, err := kubeclient.New(a.restConfig(), kind.All())
	if err != nil {
		return nil, err
	}
	nodes := kubeclient.NewStreamed(client, func(resource.Object) {})
	named := resource.ListOptions{Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, a.cfg.Name)}
	for logged := false; ; logged = true {
		found, _, err := nodes.List(ctx, kind.Node, named)
		var why string
		switch {
		case err == nil && len(found) == 0:
			why = "the API has no node of this name"
		case err == nil && a.cfg.Cluster.NodeCIDR && len(found[0].(*corev1.Node).Spec.PodCIDRs) == 0:
			why = "it has no pod range yet"
		case err == nil:
			return found[0].(*corev1.Node), nil
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			return nil, fmt.Errorf("node %s: %w", a.cfg.Name, err)
		default:
			why = err.Error()
		}
		if !logged {
			a.log.Info("waiting for this machine's node", "node", a.cfg.Name, "why", why)
		}
		select {
		case <-ctx.Done():
			return nil, &problem.Error{
				Code: problem.NodeNotFound,
				Err:  fmt.Errorf("node %s: %s", a.cfg.Name, why),
				Hint: "check --node-name: it must be the name that kubectl get nodes shows",
			}
		case <-time.After(time.Second):
		}
	}
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
func internalAddresses(n *corev1.Node) []netip.Prefix {
	var out []netip.Prefix
	seen := map[bool]bool{}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || a.Type != corev1.NodeInternalIP || seen[ip.Is4()] {
			continue
		}
		seen[ip.Is4()] = true
		out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
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
