package wire

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// VirtualIPName is the name of the VirtualIP of a hostname of a mesh, in the model and of
// its resource.
func VirtualIPName(mesh, hostname string) proxy.ServiceName {
	return proxy.ServiceName{Namespace: mesh, Name: hostname + "." + meshname.Domain}
}

// EncodeVirtualIP marshals a name below "mesh" and its addresses.
func EncodeVirtualIP(v *proxy.VirtualIP) ([]byte, error) {
	b, err := marshal(&nodev1.VirtualIP{
		Mesh: v.Name.Namespace, Name: v.Name.Name, Addresses: rawAddresses(v.Addresses),
		Namespace: v.Service.Namespace, Service: v.Service.Name, Port: uint32(v.Port),
	})
	if err != nil {
		return nil, fmt.Errorf("marshal virtual IP %s: %w", v.Name, err)
	}
	return b, nil
}

// DecodeVirtualIP reads a name below "mesh" from the body of the resource of that name.
func DecodeVirtualIP(name string, body []byte) (*proxy.VirtualIP, error) {
	var m nodev1.VirtualIP
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if err := checkName(name, m.GetMesh(), m.GetName()); err != nil {
		return nil, err
	}
	if host, ok := strings.CutSuffix(m.GetName(), "."+meshname.Domain); !ok || !meshname.Valid(host) {
		return nil, fmt.Errorf("%q is not a name below %s", m.GetName(), meshname.Domain)
	}
	v := &proxy.VirtualIP{
		Name:    proxy.ServiceName{Namespace: m.GetMesh(), Name: m.GetName()},
		Service: proxy.ServiceName{Namespace: m.GetNamespace(), Name: m.GetService()},
	}
	if v.Service.Namespace == "" || v.Service.Name == "" {
		return nil, errors.New("no service")
	}
	var err error
	if v.Port, err = decodePort(m.GetPort(), true); err != nil {
		return nil, err
	}
	if v.Addresses, err = decodeAddresses(m.GetAddresses()); err != nil {
		return nil, err
	}
	if len(v.Addresses) == 0 {
		return nil, errNoVirtualIP
	}
	return v, nil
}
