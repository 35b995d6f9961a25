package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	endpointPort = 9100
	// endpointAddress is that of node a-1 of every lab.
	endpointAddress = "10.200.1.11"
	productService  = "bench"
	// patience with the lab.
	patience = time.Minute
)

// task of the client's process.
type task struct {
	Plan plan
	Ways []way
}

// client measures, in the namespace that it was started in.
func client(in io.Reader, out io.Writer) error {
	var t task
	if err := json.NewDecoder(in).Decode(&t); err != nil {
		return fmt.Errorf("task: %w", err)
	}
	runtime.GOMAXPROCS(1)
	return measureAll(out, t.Plan, t.Ways)
}

// runProduct measures the processes of the product.
func runProduct(out io.Writer, p plan, binary, mode string) (err error) {
	b, err := newBench(out)
	if err != nil {
		return err
	}
	defer b.close()
	program, err := b.wrapped(binary)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := lab.Start(ctx, lab.Spec{
		Name: fmt.Sprintf("g%d", os.Getpid()%10_000_000), Zones: 2, Nodes: 1, Mode: mode, Global: true, IPv4Only: true,
		Executable: program, Temporary: true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	if limit := listener.DescriptorShare(p.Idle+spare, tunnelShare) - spare; p.Idle > limit {
		fmt.Fprintf(out, "the limit of file descriptors allows the agent's tunnel %d connections: so many are idle, not %d\n",
			limit, p.Idle)
		p.Idle = limit
	}
	from, err := b.startProduct(ctx, l)
	if err != nil {
		return err
	}
	defer from.Close()
	path, err := os.Executable()
	if err != nil {
		return err
	}
	body, err := json.Marshal(task{p, b.ways})
	if err != nil {
		return err
	}
	cmd := b.command(clientCore, path, "-role", "client")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(body), out, os.Stderr
	if err := from.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// tunnelShare of the file descriptors are connections of a tunnel (package app); some are left for
// what else is measured.
const tunnelShare, spare = 0.1, 100

// wrapped is a script that runs the product on the proxies' core.
func (b *bench) wrapped(binary string) (string, error) {
	program, err := filepath.Abs(binary)
	if err != nil {
		return "", err
	}
	pin := ""
	if b.pinned {
		pin = "taskset -c " + proxyCore + " "
	}
	script := filepath.Join(b.dir, "proxima")
	return script, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec %s%q \"$@\"\n", pin, program), 0o700) //nolint:gosec // it is run
}

// startProduct starts the endpoint and the peers in a lab, and returns the client's namespace when
// every way works from it.
func (b *bench) startProduct(ctx context.Context, l *lab.Lab) (*netns.NS, error) {
	open := map[string]*netns.NS{}
	for _, place := range []string{"client-b", "b-1", "gateway-a", "a-1"} {
		ns, err := netns.Open(l.Namespace(place))
		if err != nil {
			return nil, err
		}
		open[place] = ns
	}
	vip, gateway, err := b.export(ctx, l)
	if err != nil {
		return nil, err
	}
	b.at = &machine{open["a-1"], endpointAddress}
	b.serverSide, b.clientSide = &machine{open["gateway-a"], gateway}, &machine{open["b-1"], "10.200.2.11"}
	if _, b.endpoint, err = b.self(b.at, clientCore, "endpoint", ""); err != nil {
		return nil, err
	}
	agent, ingress := l.Process("b-1-agent"), l.Process("gateway-a")
	if agent == 0 || ingress == 0 {
		return nil, errors.New("the lab has no agent or no ingress")
	}
	b.ways = []way{{Name: "direct", Addr: b.endpoint}, {"proxima", net.JoinHostPort(vip, strconv.Itoa(endpointPort)), []int{agent, ingress}}}
	if err := b.startPackages(); err != nil {
		return nil, err
	}
	if err := b.startPeers(); err != nil {
		return nil, err
	}
	client := &machine{ns: open["client-b"]}
	return client.ns, await(ctx, "an answer over the tunnel", func() bool {
		c, err := client.dial(b.ways[1].Addr)
		if err != nil {
			return false
		}
		defer c.Close()
		if err := errors.Join(c.SetDeadline(time.Now().Add(time.Second)), request(c, askDownload, 1)); err != nil {
			return false
		}
		return discard(c, 1) == nil
	})
}

// startPackages starts the ends that this program has, on the same machines: what the processes of
// the product take more is the redirection, and what else they do.
func (b *bench) startPackages() error {
	in, at, err := b.self(b.serverSide, proxyCore, "ingress", b.endpoint)
	if err != nil {
		return err
	}
	node, at, err := b.self(b.clientSide, proxyCore, "node", at)
	if err == nil {
		b.ways = append(b.ways, way{"packages", at, []int{node.Process.Pid, in.Process.Pid}})
	}
	return err
}

// export creates the endpoint's Service in the first zone, and returns its virtual IP in the second
// one and the address of the first one's ingress.
func (b *bench) export(ctx context.Context, l *lab.Lab) (vip, gateway string, err error) {
	here, err := l.Client("zone-a")
	if err != nil {
		return "", "", err
	}
	away, err := l.Client("zone-b")
	if err != nil {
		return "", "", err
	}
	key := resource.Key{Namespace: metav1.NamespaceDefault, Name: productService}
	meta := metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}
	labels := map[string]string{"app": productService}
	for _, o := range []struct {
		kind   *resource.Descriptor
		object resource.Object
	}{
		{kind.Service, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Selector: labels, Ports: []corev1.ServicePort{{Name: "bench", Port: endpointPort}},
		}}},
		{kind.ServiceExport, &mcs.ServiceExport{ObjectMeta: meta}},
	} {
		if _, err := here.Create(ctx, o.kind, o.object); err != nil {
			return "", "", err
		}
	}
	made, err := here.Create(ctx, kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "bench-1", Labels: labels},
		Spec: meshv1alpha1.DataplaneSpec{
			NodeName: "a-1", Addresses: []string{endpointAddress}, Ports: []meshv1alpha1.DataplanePort{{Name: "bench", Port: endpointPort}},
		},
	})
	if err != nil {
		return "", "", err
	}
	workload := made.(*meshv1alpha1.Dataplane)
	workload.Status.Conditions = []metav1.Condition{{
		Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Benchmark", LastTransitionTime: metav1.Now(),
	}}
	if _, err := here.UpdateStatus(ctx, kind.Dataplane, workload); err != nil {
		return "", "", err
	}
	err = await(ctx, "an import and an ingress", func() bool {
		object, err := away.Get(ctx, kind.ServiceImport, key)
		if err != nil || len(object.(*mcs.ServiceImport).Spec.IPs) == 0 {
			return false
		}
		vip = object.(*mcs.ServiceImport).Spec.IPs[0]
		all, _, err := here.List(ctx, kind.ZoneIngress, resource.ListOptions{})
		for _, one := range all {
			if one.GetLabels()[meshv1alpha1.LabelZone] == "" {
				gateway = one.(*meshv1alpha1.ZoneIngress).Spec.Address
			}
		}
		return err == nil && gateway != ""
	})
	return vip, gateway, err
}

func await(ctx context.Context, what string, there func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("not seen: "+what))
	defer cancel()
	for !there() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}
