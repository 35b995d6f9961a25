package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

const (
	endpointsPerSlice = 10
	// workers that create objects and join agents.
	workers = 8
	// patience with all agents.
	patience = 5 * time.Minute
)

// fleetFigures are what was measured with a number of agents.
type fleetFigures struct {
	Agents int `json:"agents"`
	// Memory of the control plane, in bytes.
	Memory float64 `json:"memory"`
	// Change is the median time from the request of one change until the last agent has it,
	// Slowest the longest; ChangeCPU is CPU time of the control plane per change and agent.
	Change, Slowest time.Duration
	ChangeCPU       time.Duration
	// IdleCPU is CPU time of the control plane per agent and second, when nothing changes.
	IdleCPU time.Duration
	// Back is the time from the end of the control plane until all agents are up to date by its
	// successor, of which Start passed before that served; BackCPU is its CPU time per agent, and
	// AgentCPU that of a simulated agent.
	Back, Start       time.Duration
	BackCPU, AgentCPU time.Duration
	// Writes are the changes of objects per agent meanwhile, renewals of Leases among them.
	Writes float64
}

// zone is a control plane with Services and a fleet.
type zone struct {
	plan   plan
	binary string
	dir    string
	ports  []string // of API and gRPC
	p      *process
	client resource.Client
	slice  *discoveryv1.EndpointSlice
	fleet  *fleet
	ctx    context.Context //nolint:containedctx // that of the fleet
}

// measureAgents measures with each number of agents in turn.
func measureAgents(ctx context.Context, binary string, plan plan) (out []fleetFigures, err error) {
	dir, err := os.MkdirTemp("", "proxima-scale-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	z := &zone{plan: plan, binary: binary, dir: dir}
	if z.ports, err = freePorts(2); err != nil {
		return nil, err
	}
	if err := z.start(ctx); err != nil {
		return nil, err
	}
	defer func() { z.p.kill() }()
	if err := z.fill(ctx); err != nil {
		return nil, err
	}
	z.fleet, z.ctx = newFleet(ctx, "127.0.0.1:"+z.ports[0], filepath.Join(dir, "agents"), wire.ResourceName(z.slice.Namespace, z.slice.Name))
	defer z.fleet.end()
	for _, n := range plan.agents {
		f, err := z.measure(ctx, n)
		if err != nil {
			return out, fmt.Errorf("%d agents: %w", n, err)
		}
		out = append(out, f)
	}
	return out, nil
}

func (z *zone) start(ctx context.Context) (err error) {
	z.p, err = start(ctx, z.binary, filepath.Join(z.dir, "plane"), "--store", "sqlite:", "--service-cidr", "127.96.0.0/16",
		"--api-address", "127.0.0.1:"+z.ports[0], "--grpc-port", z.ports[1])
	if err != nil {
		return err
	}
	z.client, err = z.p.client()
	return err
}

// fill creates Services, each with a slice.
func (z *zone) fill(ctx context.Context) error {
	err := each(z.plan.services, func(i int) error {
		name := fmt.Sprintf("service-%d", i)
		_, err := z.client.Create(ctx, kind.Service, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		})
		if err == nil {
			_, err = z.client.Create(ctx, kind.EndpointSlice, slice(name, i))
		}
		return err
	})
	if err != nil {
		return err
	}
	object, err := z.client.Get(ctx, kind.EndpointSlice, resource.Key{Namespace: metav1.NamespaceDefault, Name: "service-0"})
	if err == nil {
		z.slice = object.(*discoveryv1.EndpointSlice)
	}
	return err
}

func slice(name string, n int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "bench"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for i := range endpointsPerSlice {
		at := n*endpointsPerSlice + i
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 1+at>>16, at>>8&255, at&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			Zone:       new(zoneName),
		})
	}
	return s
}

// measure with n agents.
func (z *zone) measure(ctx context.Context, n int) (f fleetFigures, err error) {
	f.Agents = n
	if err := z.grow(ctx, n); err != nil {
		return f, fmt.Errorf("join: %w", err)
	}
	if err := z.fleet.wait(ctx, &z.fleet.complete, n, patience); err != nil {
		return f, fmt.Errorf("first state: %w", err)
	}
	if f.Memory, err = z.p.settled(ctx, z.plan.settle); err != nil {
		return f, err
	}
	if f.IdleCPU, err = z.idle(ctx, n); err != nil {
		return f, err
	}
	if err := z.changes(ctx, n, &f); err != nil {
		return f, fmt.Errorf("change: %w", err)
	}
	if err := z.restart(ctx, n, &f); err != nil {
		return f, fmt.Errorf("restart: %w", err)
	}
	return f, nil
}

// grow the fleet to n agents.
func (z *zone) grow(ctx context.Context, n int) error {
	have := len(z.fleet.agents)
	tokens := make([]string, n-have)
	err := each(len(tokens), func(i int) (err error) {
		tokens[i], err = z.token(ctx, fmt.Sprintf("agent-%d", have+i))
		return err
	})
	if err != nil {
		return err
	}
	return each(len(tokens), func(i int) error { return z.fleet.add(z.ctx, fmt.Sprintf("agent-%d", have+i), tokens[i]) })
}

// token of a node.
func (z *zone) token(ctx context.Context, node string) (string, error) {
	return newToken(ctx, z.p, identity.Node, node)
}

func newToken(ctx context.Context, p *process, k identity.Kind, name string) (string, error) {
	client, url, err := p.http()
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(access.TokenRequest{Kind: k, Name: name})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+access.TokensPath, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("token of %s: %s", name, resp.Status)
	}
	var answer access.TokenAnswer
	return answer.Token, errors.Join(json.NewDecoder(resp.Body).Decode(&answer), nil)
}

// idle measures the CPU time when nothing changes but Leases.
func (z *zone) idle(ctx context.Context, n int) (time.Duration, error) {
	before, err := z.p.cpu()
	if err != nil {
		return 0, err
	}
	if err := pause(ctx, z.plan.idle); err != nil {
		return 0, err
	}
	after, err := z.p.cpu()
	return time.Duration(float64(after-before) / z.plan.idle.Seconds() / float64(n)), err
}

// changes measures changes of one slice.
func (z *zone) changes(ctx context.Context, n int, f *fleetFigures) error {
	before, err := z.p.cpu()
	if err != nil {
		return err
	}
	var times durations
	for i := range z.plan.changes {
		z.fleet.changed.Store(0)
		change := z.slice.DeepCopy()
		change.ResourceVersion = ""
		change.Endpoints[0].Addresses = []string{fmt.Sprintf("10.200.%d.%d", n>>4&255, i+1)}
		began := time.Now()
		if _, err := z.client.Update(ctx, kind.EndpointSlice, change); err != nil {
			return err
		}
		if err := z.fleet.wait(ctx, &z.fleet.changed, n, patience); err != nil {
			return err
		}
		times = append(times, time.Since(began))
	}
	after, err := z.p.cpu()
	f.Change, f.Slowest = times.quantile(0.5), times.quantile(1)
	f.ChangeCPU = (after - before) / time.Duration(z.plan.changes*n)
	return err
}

// restart ends the control plane without a farewell, and starts its successor.
func (z *zone) restart(ctx context.Context, n int, f *fleetFigures) error {
	before, err := z.revision(ctx)
	if err != nil {
		return err
	}
	began, own := time.Now(), ownCPU()
	z.p.kill()
	z.fleet.forget()
	if err := z.start(ctx); err != nil {
		return err
	}
	f.Start = time.Since(began)
	if err := z.fleet.wait(ctx, &z.fleet.complete, n, patience); err != nil {
		return err
	}
	f.Back = time.Since(began)
	cpu, err := z.p.cpu()
	if err != nil {
		return err
	}
	f.BackCPU, f.AgentCPU = cpu/time.Duration(n), (ownCPU()-own)/time.Duration(n)
	after, err := z.revision(ctx)
	f.Writes = float64(after-before) / float64(n)
	return err
}

// revision of the store: it rises by one with each change of an object.
func (z *zone) revision(ctx context.Context) (int64, error) {
	_, version, err := z.client.List(ctx, kind.Namespace, resource.ListOptions{})
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(version, 10, 64)
}

// forget which agents are up to date, as their control plane has ended.
func (f *fleet) forget() {
	for _, a := range f.agents {
		a.mu.Lock()
		clear(a.fresh)
		a.mu.Unlock()
	}
	f.complete.Store(0)
}

// each calls f for the numbers below n, some at a time.
func each(n int, f func(i int) error) error {
	next := make(chan int)
	errs := make([]error, workers)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := range next {
				if errs[w] == nil {
					errs[w] = f(i)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	running.Wait()
	return errors.Join(errs...)
}
