package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/diag"
	identity "github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func newExplainConnection(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "connection [NAMESPACE/]CLIENT [NAMESPACE/]TARGET[:PORT]",
		Short: "Say whether one workload may call another, which policy refuses it, and what would let it in",
		Long: `Explain connection says of each TCP port of a workload, or of one, whether its proxy
lets another workload in: by the mode of mutual TLS (Strict or Permissive), by
TrafficPermissions, and by the Mesh's defaultAccess. Of a workload without a proxy it
says whether its node does, by the client's address. It names what decides, and what to
change. CLIENT is a Dataplane or a Pod; TARGET is one, or a Service, whose workloads are
all explained. It computes this from the objects as they are now, by the code by which
proxies get their rules, and makes no connection.

Exit status 1: a port refuses the client.`,
		Example: "  proxima explain connection shop/web-1 shop/api-1:8080\n  proxima explain connection web-1 api -o json", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			all, err := s.explainConnection(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				err = printValue(s.io.Out, all, output)
			} else {
				printConnections(s.io.Out, all)
			}
			if err == nil && slices.ContainsFunc(all, refuses) {
				return &exitError{code: 1}
			}
			return err
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func refuses(c diag.Access) bool {
	return slices.ContainsFunc(c.Ports, func(p diag.AccessPort) bool { return !p.Allowed })
}

func printConnections(out io.Writer, all []diag.Access) {
	for i := range all {
		c := &all[i]
		who := "without a certificate"
		if c.Identity != "" {
			who = "as " + c.Identity
		}
		fmt.Fprintf(out, "%s to %s, from %s %s\n", c.Client, c.Target, orNone(c.Address), who)
		for _, p := range c.Ports {
			mode := ""
			if p.Mode != "" {
				mode = " (" + p.Mode + ")"
			}
			verdict := "refused"
			if p.Allowed {
				verdict = "allowed"
			}
			fmt.Fprintf(out, "  port %d%s: %s: %s\n", p.Port, mode, verdict, p.Why)
			if p.Fix != "" {
				fmt.Fprintf(out, "    fix: %s\n", p.Fix)
			}
		}
		for _, n := range c.Notes {
			fmt.Fprintf(out, "  note: %s\n", n)
		}
	}
}

func (s *settings) explainConnection(ctx context.Context, client, target string) ([]diag.Access, error) {
	cfg, namespace, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	c, err := kubeclient.New(cfg, kind.All())
	if err != nil {
		return nil, err
	}
	target, port, err := targetPort(target)
	if err != nil {
		return nil, err
	}
	from, err := namedKey(namespace, client)
	if err != nil {
		return nil, err
	}
	to, err := namedKey(namespace, target)
	if err != nil {
		return nil, err
	}
	w, err := readAccess(ctx, c, from.Namespace, to.Namespace)
	if err != nil {
		return nil, explainAPI(cfg, err)
	}
	who, ok := w.peer(from)
	if !ok {
		return nil, &problem.Error{Code: problem.ObjectNotFound, Err: fmt.Errorf("there is no Dataplane or Pod %s", from), Hint: "see \"proxima get dataplanes -A\""}
	}
	var out []diag.Access
	for _, key := range w.targets(to) {
		if p, ok := w.peer(key); ok {
			out = append(out, diag.ExplainAccess(w.index, w.meshes[p.Mesh], who, p, port))
		}
	}
	if len(out) == 0 {
		return nil, &problem.Error{
			Code: problem.ObjectNotFound, Err: fmt.Errorf("there is no Dataplane or Pod %s, and no Service of that name that selects one", to),
			Hint: "see \"proxima get dataplanes,services -A\"",
		}
	}
	if port != 0 && !slices.ContainsFunc(out, func(c diag.Access) bool { return len(c.Ports) > 0 }) {
		return nil, usagef("%s has no TCP port %d: give a port of the workload, not of the Service", to, port)
	}
	return out, nil
}

// targetPort splits TARGET[:PORT]; 0: there is no port.
func targetPort(text string) (target string, port int32, err error) {
	target, number, given := strings.Cut(text, ":")
	if !given {
		return target, 0, nil
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return "", 0, usagef("%q: want [NAMESPACE/]NAME:PORT, with a port from 1 to 65535", text)
	}
	return target, int32(n), nil
}

func namedKey(namespace, text string) (resource.Key, error) {
	name := text
	if ns, rest, ok := strings.Cut(text, "/"); ok {
		namespace, name = ns, rest
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return resource.Key{}, usagef("%q: want NAME or NAMESPACE/NAME", text)
	}
	return resource.Key{Namespace: namespace, Name: name}, nil
}

// accessRules are the objects that decide who may call whom.
type accessRules struct {
	index      *policy.Index
	meshes     map[string]*meshv1alpha1.Mesh
	namespaces map[string]*corev1.Namespace
	dataplanes map[resource.Key]*meshv1alpha1.Dataplane
	services   map[resource.Key]*corev1.Service
	nodes      map[string]*corev1.Node
	pods       map[resource.Key]*corev1.Pod
}

// readAccess lists what decides, of Pods those of some namespaces. Kinds that are not served, or that this
// user may not read, but for Dataplanes, are left out.
func readAccess(ctx context.Context, c resource.Client, podsOf ...string) (*accessRules, error) {
	w := &accessRules{
		index: policy.NewIndex(), meshes: map[string]*meshv1alpha1.Mesh{}, namespaces: map[string]*corev1.Namespace{},
		dataplanes: map[resource.Key]*meshv1alpha1.Dataplane{}, services: map[resource.Key]*corev1.Service{},
		nodes: map[string]*corev1.Node{}, pods: map[resource.Key]*corev1.Pod{},
	}
	list := func(d *resource.Descriptor, o resource.ListOptions) ([]resource.Object, error) {
		objects, _, err := c.List(ctx, d, o)
		if err != nil && (d == kind.Dataplane || !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err)) {
			return nil, err
		}
		return objects, nil
	}
	for _, d := range []*resource.Descriptor{kind.Dataplane, kind.Namespace, kind.Mesh, kind.Service, kind.Node, kind.TrafficPermission, kind.WorkloadPolicy} {
		objects, err := list(d, resource.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, obj := range objects {
			w.index.Set(obj)
			switch o := obj.(type) {
			case *meshv1alpha1.Mesh:
				w.meshes[o.Name] = o
			case *corev1.Namespace:
				w.namespaces[o.Name] = o
			case *meshv1alpha1.Dataplane:
				w.dataplanes[resource.KeyOf(o)] = o
			case *corev1.Service:
				w.services[resource.KeyOf(o)] = o
			case *corev1.Node:
				w.nodes[o.Name] = o
			}
		}
	}
	slices.Sort(podsOf)
	for _, namespace := range slices.Compact(podsOf) {
		objects, err := list(kind.Pod, resource.ListOptions{Namespace: namespace})
		if err != nil {
			return nil, err
		}
		for _, obj := range objects {
			p := obj.(*corev1.Pod)
			w.pods[resource.KeyOf(p)] = p
			w.index.SetPod(w.index.PodWorkload(p, w.servicesOf(p.Namespace, p.Labels)))
		}
	}
	return w, nil
}

// servicesOf a workload, by name.
func (w *accessRules) servicesOf(namespace string, set map[string]string) []*corev1.Service {
	var out []*corev1.Service
	for _, s := range w.services {
		if s.Namespace == namespace && selectsLabels(s.Spec.Selector, set) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// nodeOf a workload.
func (w *accessRules) nodeOf(name string) diag.PeerNode {
	out := diag.PeerNode{Name: name}
	if n := w.nodes[name]; n != nil {
		out.Mode = n.Labels[meshv1alpha1.LabelProxyMode]
		for _, a := range n.Status.Addresses {
			out.Addresses = append(out.Addresses, a.Address)
		}
	}
	does, _ := modes.AbilityOf(out.Mode)
	out.ByAddress = does.Addresses
	return out
}

// workload of a Dataplane, or of a Pod as if it were one; nil: there is neither.
func (w *accessRules) workload(key resource.Key) (p *diag.Peer, account string) {
	namespace := w.namespaces[key.Namespace]
	if d, ok := w.dataplanes[key]; ok {
		return &diag.Peer{
			Ref: policy.Ref{Kind: "Dataplane", Key: key}, Mesh: kind.DataplaneMesh(d, namespace), Dataplane: d, Proxied: proxied(d),
			Node: w.nodeOf(d.Spec.NodeName),
		}, kind.DataplaneAccount(d)
	}
	pod, ok := w.pods[key]
	if !ok {
		return nil, ""
	}
	sidecar, err := inject.SidecarOf(pod)
	p = &diag.Peer{
		Ref: policy.Ref{Kind: "Pod", Key: key}, Mesh: kind.PodMesh(pod, namespace), Proxied: sidecar != nil && err == nil,
		Dataplane: w.index.PodWorkload(pod, w.servicesOf(key.Namespace, pod.Labels)), Node: w.nodeOf(pod.Spec.NodeName),
	}
	if pod.Spec.HostNetwork { // nobody tells its connections from those of the node
		p.Node.ByAddress = false
	}
	return p, kind.DataplaneAccount(p.Dataplane)
}

// peer of a Dataplane or Pod; false: there is none.
func (w *accessRules) peer(key resource.Key) (*diag.Peer, bool) {
	p, account := w.workload(key)
	if p == nil {
		return nil, false
	}
	if m := w.meshes[p.Mesh]; m != nil && m.Spec.MTLS != nil && m.Spec.MTLS.EnabledBackend != "" {
		if domain, err := identity.DomainOf(m.Name, m.Spec.MTLS.TrustDomain); err == nil {
			if id, err := identity.Workload(domain, key.Namespace, account); err == nil {
				p.Identity = id.String()
			}
		}
	}
	p.Services = w.servicesOf(key.Namespace, p.Dataplane.Labels)
	return p, true
}

// proxied reports whether a workload's ports have a proxy: from its first stream on. A gRPC program is none.
func proxied(d *meshv1alpha1.Dataplane) bool {
	c := meta.FindStatusCondition(d.Status.Conditions, meshv1alpha1.DataplaneProxyConnected)
	return c != nil && c.Reason != meshv1alpha1.ReasonProgram
}

func selectsLabels(selector, set map[string]string) bool {
	return len(selector) > 0 && labels.SelectorFromValidatedSet(selector).Matches(labels.Set(set))
}

// targets that a name stands for: a Dataplane or Pod, else those that the Service of the name selects.
func (w *accessRules) targets(key resource.Key) []resource.Key {
	if _, ok := w.dataplanes[key]; ok {
		return []resource.Key{key}
	}
	if _, ok := w.pods[key]; ok {
		return []resource.Key{key}
	}
	service, ok := w.services[key]
	if !ok {
		return nil
	}
	var out []resource.Key
	for at, d := range w.dataplanes {
		if at.Namespace == key.Namespace && selectsLabels(service.Spec.Selector, d.Labels) {
			out = append(out, at)
		}
	}
	for at, p := range w.pods {
		if at.Namespace == key.Namespace && selectsLabels(service.Spec.Selector, p.Labels) {
			out = append(out, at)
		}
	}
	slices.SortFunc(out, func(a, b resource.Key) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// refusers are the policies by which a workload refuses callers, as KIND NAMESPACE/NAME, and the Mesh where
// that denies by default.
func (w *accessRules) refusers(key resource.Key) []string {
	var out []string
	d := w.dataplanes[key]
	if d == nil {
		return nil
	}
	add := func(text string) {
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	for i := range d.Spec.Ports {
		p, _ := w.index.Permission(policy.Ref{Kind: "Dataplane", Key: key}, d.Spec.Ports[i].Port)
		for _, r := range slices.Concat(p.Deny, p.Allow) {
			add(r.Source.Kind + " " + r.Source.Key.String())
		}
		if p.Refuse && len(p.Allow) == 0 {
			add("Mesh " + kind.DataplaneMesh(d, w.namespaces[key.Namespace]) + " (defaultAccess)")
		}
	}
	return out
}
