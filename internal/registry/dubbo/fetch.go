package dubbo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
)

// Of the instance metadata, which providers write.
const (
	keyServiceParams  = "dubbo.metadata-service.url-params"
	keyServiceVersion = "meta-v"
	serviceVersion2   = "2.0.0"
)

const (
	// methodV2 is that of metadata_service_v2.proto of Dubbo.
	methodV2 = "/org.apache.dubbo.metadata.MetadataServiceV2/GetMetadataInfo"
	// maxMetadata is the most that a provider may answer, in bytes: that of an entry of the configuration.
	maxMetadata = 1 << 20
)

// endpointOf the MetadataServiceV2 of an instance; ok is false if it has none: it is of another version,
// or of another protocol than Triple.
func endpointOf(in *registry.Instance) (at netip.AddrPort, ok bool) {
	if in.Metadata[keyServiceVersion] != serviceVersion2 {
		return at, false
	}
	var params map[string]string
	if json.Unmarshal([]byte(in.Metadata[keyServiceParams]), &params) != nil || params["protocol"] != "tri" {
		return at, false
	}
	port, err := strconv.ParseUint(params["port"], 10, 16)
	return netip.AddrPortFrom(in.Address, uint16(port)), err == nil && port != 0
}

// fetch the metadata of a revision from a provider.
func fetch(ctx context.Context, at netip.AddrPort, application, revision string) (*registry.ApplicationMetadata, error) {
	conn, err := grpc.NewClient("passthrough:///"+at.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawgrpc.Codec{}), grpc.MaxCallRecvMsgSize(maxMetadata)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	in, out := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), revision), []byte(nil)
	ctx = metadata.AppendToOutgoingContext(ctx, "tri-service-group", application, "tri-service-version", serviceVersion2)
	if err := conn.Invoke(ctx, methodV2, &in, &out); err != nil {
		return nil, err
	}
	m, err := decode(out)
	switch {
	case err != nil:
		return nil, err
	case m.Application != application:
		return nil, fmt.Errorf("it has metadata of application %.100q", m.Application)
	}
	m.Revision = revision
	return m, nil
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

// decodeService reads an entry of the map: name = 1, group = 2, version = 3, protocol = 4, path = 6,
// params = 7. The port (5) is that of the instance.
func decodeService(b []byte) (key string, s registry.RPCService, err error) {
	s.Params = map[string]string{}
	err = rawgrpc.Fields(b, func(number protowire.Number, value []byte) error {
		if number == 1 {
			key = string(value)
		}
		if number != 2 {
			return nil
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
