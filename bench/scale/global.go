package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
)

// Marks of the Dataplane that all others are made of. Numbers of the same width replace them.
const (
	markName    = "workload-9999999"
	markAddress = "10.199.199.199"
	// perCommit are the objects that are written at once.
	perCommit = 500
)

// globalFigures are what was measured of a global control plane with a number of endpoints.
type globalFigures struct {
	Endpoints int `json:"endpoints"`
	// Memory in bytes, when it has settled; Start is the time until it serves.
	Memory float64 `json:"memory"`
	Start  time.Duration
}

// measureGlobal fills the store of a global control plane with the Dataplanes of zones, and
// starts it on that.
func measureGlobal(ctx context.Context, binary string, plan plan) (out []globalFigures, err error) {
	dir, err := os.MkdirTemp("", "proxima-scale-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	g := &global{binary: binary, dir: filepath.Join(dir, "global"), settle: plan.settle, calm: plan.calm}
	if g.ports, err = freePorts(2); err != nil {
		return nil, err
	}
	if err := g.receive(ctx, filepath.Join(dir, "zone")); err != nil {
		return nil, fmt.Errorf("a Dataplane of a zone: %w", err)
	}
	for _, n := range append([]int{0}, plan.endpoints...) {
		if err := g.grow(ctx, n); err != nil {
			return out, fmt.Errorf("%d Dataplanes: %w", n, err)
		}
		f, err := g.measure(ctx, n)
		if err != nil {
			return out, fmt.Errorf("global with %d Dataplanes: %w", n, err)
		}
		out = append(out, f)
	}
	return out, nil
}

type global struct {
	binary, dir string
	ports       []string
	settle      time.Duration
	calm        int // seconds without work after which a start is complete
	// pattern is the Dataplane that all others are made of; have counts those.
	pattern store.Record
	have    int
}

func (g *global) start(ctx context.Context) (*process, error) {
	return start(ctx, g.binary, g.dir, "--role", "global", "--store", "sqlite:",
		"--api-address", "127.0.0.1:"+g.ports[0], "--grpc-port", g.ports[1])
}

// receive one Dataplane from a real zone, so that the store has a copy as global makes it.
func (g *global) receive(ctx context.Context, dir string) error {
	p, err := g.start(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	client, err := p.client()
	if err != nil {
		return err
	}
	if _, err = client.Create(ctx, kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: zoneName}}); err != nil {
		return err
	}
	token, err := newToken(ctx, p, identity.Zone, zoneName)
	if err != nil {
		return err
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	file := filepath.Join(filepath.Dir(dir), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return err
	}
	z, err := start(ctx, g.binary, dir, "--role", "zone", "--zone", zoneName, "--global", "127.0.0.1:"+g.ports[0], "--token-file", file,
		"--api-address", "127.0.0.1:"+ports[0], "--grpc-port", "0", "--service-cidr", "127.96.0.0/16")
	if err != nil {
		return err
	}
	defer z.stop()
	there, err := z.client()
	if err != nil {
		return err
	}
	made, err := there.Create(ctx, kind.Dataplane, dataplane())
	if err == nil {
		object := made.(*meshv1alpha1.Dataplane)
		object.Status.Conditions = []metav1.Condition{{
			Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Benchmark", LastTransitionTime: metav1.Now(),
		}}
		_, err = there.UpdateStatus(ctx, kind.Dataplane, object)
	}
	if err != nil {
		return err
	}
	late := time.Now().Add(time.Minute)
	for {
		all, _, err := client.List(ctx, kind.Dataplane, resource.ListOptions{})
		if err != nil {
			return err
		}
		if len(all) == 1 && len(all[0].(*meshv1alpha1.Dataplane).Status.Conditions) > 0 {
			return nil
		}
		if time.Now().After(late) {
			return errors.New("it is not at global within a minute")
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func dataplane() *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{
			Name: markName, Namespace: metav1.NamespaceDefault, Labels: map[string]string{"app": "checkout", "version": "v1"},
		},
		Spec: meshv1alpha1.DataplaneSpec{
			NodeName: "node-1", Addresses: []string{markAddress}, Ports: []meshv1alpha1.DataplanePort{{Name: "http", Port: 8080}},
		},
	}
}

// grow writes copies until there are n Dataplanes. Nothing runs meanwhile.
func (g *global) grow(ctx context.Context, n int) (err error) {
	s, err := sqlite.Open(ctx, filepath.Join(g.dir, "store.db"), sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if g.pattern.Key == "" {
		if g.pattern, err = find(ctx, s); err != nil {
			return err
		}
	}
	for g.have < n {
		var txn store.Txn
		for range min(perCommit, n-g.have) {
			txn.Ops = append(txn.Ops, g.next())
		}
		if _, err := s.Commit(ctx, txn); err != nil {
			return err
		}
	}
	return nil
}

// find the Dataplane that the others are made of.
func find(ctx context.Context, s *sqlite.Store) (store.Record, error) {
	page, err := s.List(ctx, store.ListOptions{Prefix: "/registry/"})
	if err != nil {
		return store.Record{}, err
	}
	for _, r := range page.Records {
		if strings.Contains(r.Key, "/dataplanes/") && strings.Contains(r.Key, markName) {
			return r, nil
		}
	}
	return store.Record{}, errors.New("the store of global does not have it")
}

func workloadName(n int) string { return fmt.Sprintf("workload-%07d", n) }

// next makes another Dataplane.
func (g *global) next() store.Op {
	name := workloadName(g.have)
	address := fmt.Sprintf("10.%d.%d.%d", 100+g.have/10000%100, 100+g.have/100%100, 100+g.have%100)
	g.have++
	value := bytes.ReplaceAll(g.pattern.Value, []byte(markName), []byte(name))
	return store.Op{
		Kind: store.Put, Key: strings.ReplaceAll(g.pattern.Key, markName, name),
		Value: bytes.ReplaceAll(value, []byte(markAddress), []byte(address)),
	}
}

func (g *global) measure(ctx context.Context, n int) (f globalFigures, err error) {
	f.Endpoints = n
	began := time.Now()
	p, err := g.start(ctx)
	if err != nil {
		return f, err
	}
	defer p.stop()
	f.Start = time.Since(began)
	client, err := p.client()
	if err != nil {
		return f, err
	}
	// The newest one shows that they are objects of the API.
	newest := g.pattern.Key
	if n > 0 {
		newest = strings.ReplaceAll(newest, markName, workloadName(n-1))
	}
	path := strings.Split(newest, "/")
	if _, err = client.Get(ctx, kind.Dataplane, resource.Key{Namespace: path[len(path)-2], Name: path[len(path)-1]}); err != nil {
		return f, err
	}
	if err := p.quiet(ctx, g.calm); err != nil {
		return f, err
	}
	f.Memory, err = p.settled(ctx, g.settle)
	return f, err
}
