package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// measureChange: changes written to a control plane's API, and certificates, until a real sidecar
// behaves accordingly.
func measureChange(ctx context.Context, p plan, out io.Writer) error {
	s, err := newScene(ctx, p)
	if err != nil {
		return err
	}
	defer s.end()
	fmt.Fprintf(out, "%d services, SQLite, supervisor and Envoy, mutual TLS; %d rounds, p50 / p99 in ms\n", p.services, p.rounds)
	for _, m := range []struct {
		name, goal string
		once       func(ctx context.Context, round int) ([]time.Duration, error)
	}{
		{"endpoint written → held by a stream; → new connection", "p50 ≤ 10, p99 ≤ 50", s.endpoint},
		{"policy written → new connection refused", "≤ 20", s.policy},
		{"certificate renewed → in a new handshake", "≤ 20", s.leaf},
		{"another root → its clients are let in", "≤ 20", s.root},
	} {
		var all []times
		for round := 1; round <= p.rounds; round++ {
			if err := pause(ctx, settle); err != nil {
				return err
			}
			took, err := m.once(ctx, round)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", m.name, round, err)
			}
			for i, t := range took {
				if len(all) <= i {
					all = append(all, nil)
				}
				all[i] = append(all[i], t)
			}
		}
		fmt.Fprintf(out, "%s:", m.name)
		for _, t := range all {
			fmt.Fprintf(out, " %s / %s;", ms(t.quantile(0.5)), ms(t.quantile(0.99)))
		}
		fmt.Fprintf(out, " goal %s\n", m.goal)
	}
	return nil
}

// scene is a sidecar with a port for the first Service, and one in front of an application.
type scene struct {
	*world
	greeters          greeters
	sidecar           *supervised
	stream            *crowd
	outbound, inbound string
}

func newScene(ctx context.Context, p plan) (_ *scene, err error) {
	s := &scene{}
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	if s.world, err = newWorld(ctx, p, p.services); err != nil {
		return nil, err
	}
	if s.greeters, err = newGreeters(); err != nil {
		return nil, err
	}
	dp, err := s.dataplane("client", 1)
	if err != nil {
		return nil, err
	}
	dp.Spec.Ports[0].TargetPort = new(int32(s.greeters.port(0)))
	s.outbound = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(dp.Spec.Proxy.Outbound[0].Port)))
	s.inbound = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(dp.Spec.Ports[0].Port)))
	if _, err = s.control.client.Create(ctx, kind.Dataplane, dp); err != nil {
		return nil, err
	}
	if err = s.write(ctx, 0); err != nil {
		return nil, err
	}
	if err = s.trusted(ctx, "client"); err != nil {
		return nil, err
	}
	if s.sidecar, err = supervise(ctx, p, s.control, s.agent, s.dir, nodeID("client")); err != nil {
		return nil, err
	}
	s.stream = newCrowd(ctx, adsMethod, clusterOf(0))
	s.stream.add(s.control.xds, sidecarAsks(nodeID("client"), []int{0}), grpc.WithTransportCredentials(credentials.NewTLS(s.control.tls)))
	if err = s.stream.wait(&s.stream.complete, 1); err != nil {
		return nil, err
	}
	if _, err = until(ctx, func() bool { return greeting(s.outbound) == letter(0) && greeting(s.inbound) == letter(0) }); err != nil {
		err = fmt.Errorf("the first connections: outbound says %q, inbound %q: %w", greeting(s.outbound), greeting(s.inbound), err)
	}
	return s, err
}

func (s *scene) end() {
	if s.stream != nil {
		s.stream.end()
	}
	if s.sidecar != nil {
		s.sidecar.end()
	}
	s.greeters.close()
	if s.world != nil {
		s.world.end()
	}
}

// write the endpoint of a round.
func (s *scene) write(ctx context.Context, round int) error {
	slice, err := s.greeters.slice(round)
	if err == nil {
		_, err = s.control.client.Update(ctx, kind.EndpointSlice, slice)
	}
	return err
}

func (s *scene) endpoint(ctx context.Context, round int) ([]time.Duration, error) {
	held, connected, err := turn(ctx, s.stream, func() error { return s.write(ctx, round) }, s.outbound, letter(round%2))
	return []time.Duration{held, connected}, err
}

// policy denies everybody, until a connection is refused, and then goes.
func (s *scene) policy(ctx context.Context, round int) ([]time.Duration, error) {
	if _, err := until(ctx, func() bool { return greeting(s.inbound) == letter(0) }); err != nil {
		return nil, fmt.Errorf("before: %w", err)
	}
	key := resource.Key{Namespace: namespace, Name: fmt.Sprint("nobody-", round)}
	begin := time.Now()
	_, err := s.control.client.Create(ctx, kind.TrafficPermission, &meshv1alpha1.TrafficPermission{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec:       meshv1alpha1.TrafficPermissionSpec{Deny: []meshv1alpha1.PermissionRule{{From: []meshv1alpha1.PolicySource{{Addresses: []string{"0.0.0.0/0"}}}}}},
	})
	if err != nil {
		return nil, err
	}
	_, err = until(ctx, func() bool { return greeting(s.inbound) == 0 })
	took := time.Since(begin)
	if err != nil {
		return nil, err
	}
	return []time.Duration{took}, s.control.client.Delete(ctx, kind.TrafficPermission, key, resource.Preconditions{})
}

// leaf of the workload is another one, until a handshake has it.
func (s *scene) leaf(ctx context.Context, _ int) ([]time.Duration, error) {
	config, err := s.agent.authority.client()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := s.agent.renew(); err != nil {
		return nil, err
	}
	_, err = until(ctx, func() bool { return s.serial(config) == s.agent.serial })
	return []time.Duration{time.Since(begin)}, err
}

// serial number of the certificate that the sidecar shows.
func (s *scene) serial(config *tls.Config) string {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", s.inbound, config)
	if err != nil {
		return ""
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Text(16)
}

// root is a second authority, until a client with its certificate is served.
func (s *scene) root(ctx context.Context, _ int) ([]time.Duration, error) {
	if _, err := until(ctx, func() bool { return greeting(s.inbound) == letter(0) }); err != nil {
		return nil, fmt.Errorf("before: %w", err)
	}
	other, err := newAuthority()
	if err != nil {
		return nil, err
	}
	config, err := other.client()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := s.agent.renew(other.cert); err != nil {
		return nil, err
	}
	_, err = until(ctx, func() bool {
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", s.inbound, config)
		if err != nil {
			return false
		}
		defer c.Close()
		return said(c) == letter(0)
	})
	return []time.Duration{time.Since(begin)}, err
}
