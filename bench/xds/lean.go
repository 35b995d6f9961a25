package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// measureLean: a real sidecar that uses some of very many Services.
func measureLean(ctx context.Context, p plan, out io.Writer) error {
	w, err := newWorld(ctx, p, p.large)
	if err != nil {
		return err
	}
	defer w.end()
	dp, err := w.dataplane("lean", p.used)
	if err != nil {
		return err
	}
	if _, err := w.control.client.Create(ctx, kind.Dataplane, dp); err != nil {
		return err
	}
	if err := w.trusted(ctx, "lean"); err != nil {
		return err
	}
	const starts = 5
	var start times
	var last *supervised
	for i := range starts {
		dir := filepath.Join(w.dir, strconv.Itoa(i)) // nothing on disk
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		s, err := supervise(ctx, p, w.control, w.agent, dir, nodeID("lean"))
		if err != nil {
			return err
		}
		start = append(start, s.ready)
		if i < starts-1 {
			s.end()
		} else {
			last = s
		}
	}
	defer last.end()
	pid, err := last.envoy()
	if err != nil {
		return err
	}
	envoy, err := settled(ctx, pid, p.settle)
	if err != nil {
		return err
	}
	supervisor, err := settled(ctx, last.cmd.Process.Pid, p.settle)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d services, of which one sidecar uses %d, with mutual TLS: supervisor and Envoy ready after p50 %s, max %s ms; "+
		"memory: Envoy %.1f MB, supervisor %.1f MB\n", p.large, p.used, ms(start.quantile(0.5)), ms(start.quantile(1)), envoy/1e6, supervisor/1e6)
	return nil
}

// world is a control plane, and an agent by whose certificates its mesh works.
type world struct {
	plan    plan
	dir     string
	control *control
	agent   *agent
}

func newWorld(ctx context.Context, p plan, services int) (_ *world, err error) {
	w := &world{plan: p}
	defer func() {
		if err != nil {
			w.end()
		}
	}()
	if w.dir, err = os.MkdirTemp("", "xds"); err != nil {
		return nil, err
	}
	if w.control, err = startControl(ctx, p, w.dir, services); err != nil {
		return nil, err
	}
	a, err := newAuthority()
	if err != nil {
		return nil, err
	}
	if err := a.enable(ctx, w.control); err != nil {
		return nil, fmt.Errorf("mutual TLS: %w", err)
	}
	w.agent, err = newAgent(a, w.dir)
	return w, err
}

func (w *world) end() {
	if w.agent != nil {
		w.agent.server.Stop()
	}
	if w.control != nil {
		w.control.stop()
	}
	if w.dir != "" {
		_ = os.RemoveAll(w.dir) // a temporary folder
	}
}

// dataplane whose proxy has a port for each of the first Services.
func (w *world) dataplane(name string, used int) (*meshv1alpha1.Dataplane, error) {
	ports, err := freePorts(used + 1)
	if err != nil {
		return nil, err
	}
	d := newDataplane(name, "127.0.0.1", nil)
	d.Annotations = nil
	for i := range used {
		port, err := strconv.Atoi(ports[i])
		if err != nil {
			return nil, err
		}
		d.Spec.Proxy.Outbound = append(d.Spec.Proxy.Outbound, meshv1alpha1.DataplaneOutbound{
			Port: int32(port), Service: serviceName(i), ServicePort: servicePort,
		})
	}
	inbound, err := strconv.Atoi(ports[used])
	if err != nil {
		return nil, err
	}
	d.Spec.Ports = []meshv1alpha1.DataplanePort{{Name: "main", Port: int32(inbound), TargetPort: new(int32(9))}}
	return d, nil
}

// trusted waits until the control plane takes the certificates of the agent.
func (w *world) trusted(ctx context.Context, name string) error {
	config, err := w.agent.authority.client()
	if err != nil {
		return err
	}
	config.NextProtos = []string{"h2"}
	_, err = until(ctx, func() bool {
		c := newCrowd(ctx, adsMethod, "")
		defer c.end()
		c.add(w.control.xds, sidecarAsks(nodeID(name), []int{0}), grpc.WithTransportCredentials(credentials.NewTLS(config.Clone())))
		return c.wait(&c.complete, 1) == nil
	})
	return err
}
