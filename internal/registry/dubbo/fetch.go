package dubbo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
)

// Of the instance metadata, which providers write.
const (
	keyServiceParams  = "dubbo.metadata-service.url-params"
	keyServiceVersion = "meta-v"
)

const (
	protocolDubbo  = "dubbo"
	protocolTriple = "tri"
	// minPort is the least one that is connected to: below are those of services of the system, which a client
	// could have the control plane speak to.
	minPort = 1024
	// maxServices is the most that an application may have.
	maxServices = 4096
	// maxRevision in bytes. That of dubbo-go has 128.
	maxRevision = 512
)

// errNoService: the instance names no MetadataService.
var errNoService = errors.New("the instance names no MetadataService")

// ask a MetadataService at an address for the metadata of a revision.
type ask func(ctx context.Context, at netip.AddrPort, application, revision string) (*registry.ApplicationMetadata, error)

// serviceOfInstance is the MetadataService of an instance, and how it is asked. It is at the address of the
// instance, whatever else the metadata say: loopback addresses only if it is on this machine.
func serviceOfInstance(in *registry.Instance, onThisMachine bool) (at netip.AddrPort, how ask, err error) {
	params := paramsOf(in.Metadata[keyServiceParams])
	if params == nil {
		return at, nil, errNoService
	}
	port, err := strconv.ParseUint(params["port"], 10, 16)
	address := in.Address.Unmap()
	switch {
	case err != nil || port < minPort:
		return at, nil, fmt.Errorf("port %.20q of its MetadataService is not from %d to %d", params["port"], minPort, math.MaxUint16)
	case address.IsLoopback() && !onThisMachine:
		return at, nil, fmt.Errorf("address %s is of another machine", address)
	case !address.IsLoopback() && !address.IsGlobalUnicast():
		return at, nil, fmt.Errorf("address %s is not one of a machine", address)
	}
	at = netip.AddrPortFrom(address, uint16(port))
	switch protocol := params["protocol"]; {
	case protocol == protocolTriple && in.Metadata[keyServiceVersion] == version2:
		return at, tripleV2, nil
	case protocol == protocolTriple:
		return at, tripleV1, nil
	case protocol == protocolDubbo:
		return at, dubboV1, nil
	default:
		return at, nil, fmt.Errorf("protocol %.20q of its MetadataService is neither %s nor %s", protocol, protocolTriple, protocolDubbo)
	}
}

// paramsOf a MetadataService: an object of strings, or, until Dubbo 2.7.9, one for each protocol.
func paramsOf(text string) map[string]string {
	var flat map[string]string
	if json.Unmarshal([]byte(text), &flat) == nil && flat["port"] != "" {
		return flat
	}
	var nested map[string]map[string]string
	if json.Unmarshal([]byte(text), &nested) != nil {
		return nil
	}
	for _, protocol := range []string{protocolDubbo, protocolTriple} {
		if params := nested[protocol]; params["port"] != "" {
			params["protocol"] = protocol
			return params
		}
	}
	return nil
}

// check what a provider answered, and complete it.
func check(m *registry.ApplicationMetadata, application, revision string) error {
	switch {
	case m.Application != application:
		return fmt.Errorf("it has metadata of application %.100q", m.Application)
	case len(m.Services) > maxServices:
		return fmt.Errorf("it has %d services; at most %d are stored", len(m.Services), maxServices)
	}
	ports := map[string]int32{}
	several := false // one protocol is served at several ports
	for key, s := range m.Services {
		if s.Name == "" || s.Protocol == "" {
			return fmt.Errorf("its service %.100q has no name or no protocol", key)
		}
		if port, ok := ports[s.Protocol]; ok && port != s.Port {
			several = true
		}
		ports[s.Protocol] = s.Port
	}
	if !several { // the endpoints of an instance say where it is, which may be elsewhere for consumers of another site
		for key, s := range m.Services {
			s.Port = 0
			m.Services[key] = s
		}
	}
	m.Revision = revision
	return nil
}

// decode a MetadataInfoV2: app = 1, services = 3, a map of ServiceInfoV2.
func decode(b []byte) (*registry.ApplicationMetadata, error) {
	m := &registry.ApplicationMetadata{Services: map[string]registry.RPCService{}}
	err := rawgrpc.Fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			m.Application = string(value)
		case 3:
			key, service, err := decodeService(value)
			if err != nil {
				return err
			}
			m.Services[key] = service
		}
		return nil
	})
	return m, err
}

// decodeService reads an entry of the map: name = 1, group = 2, version = 3, protocol = 4, port = 5,
// path = 6, params = 7.
func decodeService(b []byte) (key string, s registry.RPCService, err error) {
	s.Params = map[string]string{}
	err = rawgrpc.Fields(b, func(number protowire.Number, value []byte) error {
		if number == 1 {
			key = string(value)
		}
		if number != 2 {
			return nil
		}
		port, err := rawgrpc.Uint(value, 5)
		if err != nil {
			return err
		}
		if port <= math.MaxUint16 {
			s.Port = int32(port)
		}
		return rawgrpc.Fields(value, func(number protowire.Number, value []byte) error {
			switch number {
			case 1:
				s.Name = string(value)
			case 2:
				s.Group = string(value)
			case 3:
				s.Version = string(value)
			case 4:
				s.Protocol = string(value)
			case 6:
				s.Path = string(value)
			case 7:
				var pair [2]string
				if err := rawgrpc.Fields(value, func(number protowire.Number, value []byte) error {
					if number == 1 || number == 2 {
						pair[number-1] = string(value)
					}
					return nil
				}); err != nil {
					return err
				}
				s.Params[pair[0]] = pair[1]
			}
			return nil
		})
	})
	return key, s, err
}
