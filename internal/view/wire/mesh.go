package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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
	m.Sets = w.Sets
	for _, p := range w.Ports {
		if protocol, ok := protocolNumbers[p.Protocol]; ok {
			m.Ports = append(m.Ports, &nodev1.GuardedPort{
				Port: uint32(p.Port), Protocol: protocol, Deny: encodeCallers(p.Deny), Allow: encodeCallers(p.Allow), Refuse: p.Refuse,
			})
		}
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
	for _, id := range m.GetSets() {
		if !isSetID(id) {
			return nil, fmt.Errorf("set %.40q", id)
		}
		w.Sets = append(w.Sets, id)
	}
	for _, p := range m.GetPorts() {
		port, err := decodeGuarded(p)
		if err != nil {
			return nil, fmt.Errorf("port %d: %w", p.GetPort(), err)
		}
		w.Ports = append(w.Ports, port)
	}
	return w, nil
}

func encodeCallers(in []proxy.Callers) []*nodev1.Callers {
	var out []*nodev1.Callers
	for _, c := range in {
		m := &nodev1.Callers{Set: c.Set}
		for _, p := range c.Ranges {
			m.Ranges = append(m.Ranges, &nodev1.Prefix{Address: p.Addr().AsSlice(), Bits: uint32(p.Bits())}) //nolint:gosec // at most 128
		}
		out = append(out, m)
	}
	return out
}

func decodeGuarded(m *nodev1.GuardedPort) (out proxy.GuardedPort, err error) {
	out.Refuse = m.GetRefuse()
	if out.Protocol, err = decodeProtocol(m.GetProtocol()); err != nil {
		return out, err
	}
	if out.Port, err = decodePort(m.GetPort(), false); err != nil {
		return out, err
	}
	if out.Deny, err = decodeCallers(m.GetDeny()); err != nil {
		return out, err
	}
	out.Allow, err = decodeCallers(m.GetAllow())
	return out, err
}

func decodeCallers(in []*nodev1.Callers) ([]proxy.Callers, error) {
	var out []proxy.Callers
	for _, m := range in {
		c := proxy.Callers{Set: m.GetSet()}
		if c.Set != "" && !isSetID(c.Set) {
			return nil, fmt.Errorf("set %.40q", c.Set)
		}
		for _, r := range m.GetRanges() {
			p, err := decodePrefix(r)
			if err != nil {
				return nil, err
			}
			c.Ranges = append(c.Ranges, p)
		}
		out = append(out, c)
	}
	return out, nil
}

// isSetID reports whether a text can name a set in a kernel: up to 32 hexadecimal digits.
func isSetID(id string) bool {
	return id != "" && len(id) <= 32 && strings.Trim(id, "0123456789abcdef") == ""
}
