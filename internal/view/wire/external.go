package wire

import (
	"errors"
	"fmt"
	"math"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/sites"
)

func encodeExternal(e *sites.External) *nodev1.External {
	if e == nil {
		return nil
	}
	m := &nodev1.External{}
	for _, p := range e.Places {
		m.Places = append(m.Places, &nodev1.Place{Host: p.Host, Port: uint32(p.Port), Weight: p.Weight, Near: p.Near})
	}
	if t := e.TLS; t != nil {
		m.Tls = &nodev1.ExternalTLS{
			ServerName: t.ServerName, SkipAuthority: t.SkipAuthority, SkipName: t.SkipName, MinVersion: uint32(t.MinVersion),
			MaxVersion: uint32(t.MaxVersion), Renegotiation: t.Renegotiation, Roots: t.Roots, Secrets: t.Secrets, Generation: t.Generation,
		}
		for _, n := range t.Names {
			m.Tls.Names = append(m.Tls.Names, &nodev1.NameMatch{Value: n.Value, Prefix: n.Prefix})
		}
	}
	return m
}

var errVersion = errors.New("external service: a version of TLS is invalid")

func decodeExternal(m *nodev1.External) (*sites.External, error) {
	if m == nil {
		return nil, nil
	}
	e := &sites.External{}
	for _, p := range m.GetPlaces() {
		port, err := decodePort(p.GetPort(), true)
		if err != nil || p.GetHost() == "" {
			return nil, fmt.Errorf("external service: host %q or port %d is invalid", p.GetHost(), p.GetPort())
		}
		e.Places = append(e.Places, sites.Place{Host: p.GetHost(), Port: port, Weight: p.GetWeight(), Near: p.GetNear()})
	}
	t := m.GetTls()
	if t == nil {
		return e, nil
	}
	if t.GetMinVersion() > math.MaxUint16 || t.GetMaxVersion() > math.MaxUint16 {
		return nil, errVersion
	}
	e.TLS = &sites.ExternalTLS{
		ServerName: t.GetServerName(), SkipAuthority: t.GetSkipAuthority(), SkipName: t.GetSkipName(), MinVersion: uint16(t.GetMinVersion()),
		MaxVersion: uint16(t.GetMaxVersion()), Renegotiation: t.GetRenegotiation(), Roots: t.GetRoots(), Secrets: t.GetSecrets(), Generation: t.GetGeneration(),
	}
	for _, n := range t.GetNames() {
		e.TLS.Names = append(e.TLS.Names, sites.NameMatch{Value: n.GetValue(), Prefix: n.GetPrefix()})
	}
	return e, nil
}
