package wire

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func encodeScope(s proxy.Scope) *nodev1.Scope {
	if s.Mesh == "" {
		return nil
	}
	m := &nodev1.Scope{Exported: s.Exported}
	if s.Mesh != meshv1alpha1.DefaultMesh { // most Services are of it
		m.Mesh = s.Mesh
	}
	return m
}

func decodeScope(m *nodev1.Scope) (proxy.Scope, error) {
	if m == nil {
		return proxy.Scope{}, nil
	}
	s := proxy.Scope{Mesh: orDefault(m.GetMesh()), Exported: m.GetExported()}
	if s.Mesh == proxy.SeveralMeshes || slices.ContainsFunc(s.Exported, func(name string) bool { return name == "" || name == proxy.SeveralMeshes }) {
		return proxy.Scope{}, fmt.Errorf("scope: %q and %q are not names of meshes", s.Mesh, s.Exported)
	}
	slices.Sort(s.Exported)
	return s, nil
}

func orDefault(mesh string) string {
	if mesh == "" {
		return meshv1alpha1.DefaultMesh
	}
	return mesh
}

// EncodeMesh marshals what agents know of a mesh.
func EncodeMesh(m *proxy.Mesh) ([]byte, error) {
	b, err := marshal(&nodev1.Mesh{Name: m.Name, Closed: m.Closed})
	if err != nil {
		return nil, fmt.Errorf("marshal mesh %s: %w", m.Name, err)
	}
	return b, nil
}

// DecodeMesh reads a mesh from the body of the resource of that name.
func DecodeMesh(name string, body []byte) (*proxy.Mesh, error) {
	var m nodev1.Mesh
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if name == "" || name == proxy.SeveralMeshes || m.GetName() != name {
		return nil, fmt.Errorf("content is of mesh %q", m.GetName())
	}
	return &proxy.Mesh{Name: name, Closed: m.GetClosed()}, nil
}

// EncodeWorkload marshals a workload.
func EncodeWorkload(w *proxy.Workload) ([]byte, error) {
	m := &nodev1.Workload{Namespace: w.Name.Namespace, Name: w.Name.Name, Node: w.Node, Addresses: rawAddresses(w.Addrs)}
	if w.Mesh != meshv1alpha1.DefaultMesh {
		m.Mesh = w.Mesh
	}
	b, err := marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal workload %s: %w", w.Name, err)
	}
	return b, nil
}

// DecodeWorkload reads a workload from the body of the resource of that name.
func DecodeWorkload(name string, body []byte) (*proxy.Workload, error) {
	var m nodev1.Workload
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if err := checkName(name, m.GetNamespace(), m.GetName()); err != nil {
		return nil, err
	}
	w := &proxy.Workload{
		Name: proxy.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()}, Mesh: orDefault(m.GetMesh()), Node: m.GetNode(),
	}
	if w.Mesh == proxy.SeveralMeshes {
		return nil, errNoMesh
	}
	var err error
	if w.Addrs, err = decodeAddresses(m.GetAddresses()); err != nil {
		return nil, err
	}
	if len(w.Addrs) == 0 {
		return nil, errors.New("no address")
	}
	return w, nil
}
