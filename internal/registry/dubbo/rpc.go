package dubbo

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
)

// The MetadataServices of Dubbo.
const (
	serviceV1     = "org.apache.dubbo.metadata.MetadataService"
	serviceV2     = "org.apache.dubbo.metadata.MetadataServiceV2"
	version1      = "1.0.0"
	version2      = "2.0.0"
	methodV1      = "getMetadataInfo"
	methodV2      = "GetMetadataInfo"
	serialization = "hessian2"
)

// maxMetadata is the most that a provider may answer, in bytes: that of an entry of the configuration.
const maxMetadata = 1 << 20

// triple calls a method by Triple: gRPC, with the group and the version in headers.
func triple(ctx context.Context, at netip.AddrPort, application, version, method string, in []byte) ([]byte, error) {
	conn, err := grpc.NewClient("passthrough:///"+at.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawgrpc.Codec{}), grpc.MaxCallRecvMsgSize(maxMetadata)), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	var out []byte
	ctx = metadata.AppendToOutgoingContext(ctx, "tri-service-group", application, "tri-service-version", version)
	err = conn.Invoke(ctx, method, &in, &out)
	return out, err
}

// tripleV2 asks MetadataServiceV2 (metadata_service_v2.proto of Dubbo).
func tripleV2(ctx context.Context, at netip.AddrPort, application, revision string) (*registry.ApplicationMetadata, error) {
	out, err := triple(ctx, at, application, version2, "/"+serviceV2+"/"+methodV2, field(nil, 1, []byte(revision)))
	if err != nil {
		return nil, err
	}
	return decode(out)
}

// tripleV1 asks MetadataService, whose arguments and result are of Hessian, in a TripleRequestWrapper and a
// TripleResponseWrapper (triple_wrapper.proto of Dubbo).
func tripleV1(ctx context.Context, at netip.AddrPort, application, revision string) (*registry.ApplicationMetadata, error) {
	in := field(nil, 1, []byte(serialization))
	in = field(in, 2, appendHessianString(nil, revision))
	in = field(in, 3, []byte("java.lang.String"))
	out, err := triple(ctx, at, application, version1, "/"+serviceV1+"/"+methodV1, in)
	if err != nil {
		return nil, err
	}
	var data []byte
	if err := rawgrpc.Fields(out, func(number protowire.Number, value []byte) error {
		if number == 2 {
			data = value
		}
		return nil
	}); err != nil {
		return nil, err
	}
	r := &hessianReader{left: data}
	return metadataOf(r.value(), r.err)
}

func field(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// The protocol dubbo (https://cn.dubbo.apache.org/en/overview/reference/protocols/tcp/): a header of 16 bytes,
// and a body of Hessian.
const (
	dubboMagic   = 0xdabb
	dubboVersion = "2.0.2"
	headerLength = 16
	flagRequest  = 0x80
	flagTwoWay   = 0x40
	flagEvent    = 0x20
	ofHessian    = 2
	maskCodec    = 0x1f
	statusOK     = 20
	requestID    = 1
	// maxEvents is how many heartbeats may come before the answer.
	maxEvents = 16
)

// What follows in the body of an answer.
const (
	hasException = 0
	hasValue     = 1
	isNull       = 2
	// withAttachments is added where they follow.
	withAttachments = 3
)

// dubboV1 asks MetadataService by the protocol dubbo.
func dubboV1(ctx context.Context, at netip.AddrPort, application, revision string) (*registry.ApplicationMetadata, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write(request(application, revision)); err != nil {
		return nil, ended(ctx, err)
	}
	status, body, err := answer(conn)
	if err != nil {
		return nil, ended(ctx, err)
	}
	return decodeAnswer(status, body)
}

// ended is why a connection failed: that of the context, if it has ended.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// request is a call of getMetadataInfo.
func request(application, revision string) []byte {
	b := []byte{dubboMagic >> 8, dubboMagic & 0xff, flagRequest | flagTwoWay | ofHessian, 0}
	b = binary.BigEndian.AppendUint64(b, requestID)
	b = append(b, 0, 0, 0, 0)
	for _, s := range []string{dubboVersion, serviceV1, version1, methodV1, "Ljava/lang/String;", revision} {
		b = appendHessianString(b, s)
	}
	b = appendHessianMap(b, [2]string{"path", serviceV1}, [2]string{"interface", serviceV1}, [2]string{"version", version1}, [2]string{"group", application})
	binary.BigEndian.PutUint32(b[headerLength-4:], uint32(len(b)-headerLength))
	return b
}

// answer reads the one to the request.
func answer(from io.Reader) (status byte, body []byte, err error) {
	for range maxEvents {
		var head [headerLength]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return 0, nil, err
		}
		flags, n := head[2], binary.BigEndian.Uint32(head[headerLength-4:])
		switch {
		case binary.BigEndian.Uint16(head[:]) != dubboMagic:
			return 0, nil, errors.New("it does not speak the protocol dubbo")
		case n > maxMetadata:
			return 0, nil, fmt.Errorf("it answers %d bytes; at most %d are read", n, maxMetadata)
		}
		// The buffer grows as bytes come, not as they are announced.
		var b bytes.Buffer
		if _, err := io.CopyN(&b, from, int64(n)); err != nil {
			return 0, nil, err
		}
		if flags&(flagEvent|flagRequest) != 0 || binary.BigEndian.Uint64(head[4:]) != requestID {
			continue
		}
		if codec := flags & maskCodec; codec != ofHessian {
			return 0, nil, fmt.Errorf("it answers by serialization %d, not by that of Hessian", codec)
		}
		return head[3], b.Bytes(), nil
	}
	return 0, nil, errors.New("it sends heartbeats instead of an answer")
}

// decodeAnswer reads the body of an answer.
func decodeAnswer(status byte, body []byte) (*registry.ApplicationMetadata, error) {
	r := &hessianReader{left: body}
	if status != statusOK {
		text, _ := r.value().(string)
		return nil, fmt.Errorf("it answers status %d: %.300q", status, text)
	}
	is, ok := r.value().(int64)
	switch {
	case r.err != nil:
		return nil, r.err
	case !ok, is < 0, is > isNull+withAttachments:
		return nil, fmt.Errorf("%w: it does not say what it answers", errHessian)
	}
	switch is % withAttachments {
	case hasException:
		text := ""
		if m, ok := r.value().(*hessianMap); ok {
			text = m.kind + ": " + m.text("detailMessage")
		}
		return nil, fmt.Errorf("it answers an exception: %.300q", text)
	case isNull:
		return metadataOf(nil, nil)
	}
	return metadataOf(r.value(), r.err)
}

// metadataOf a value of Hessian: a MetadataInfo, or, of older providers, its JSON.
func metadataOf(value any, err error) (*registry.ApplicationMetadata, error) {
	if err != nil {
		return nil, err
	}
	m := &registry.ApplicationMetadata{Services: map[string]registry.RPCService{}}
	switch v := value.(type) {
	case nil:
		return nil, errors.New("it knows no metadata of this revision")
	case string:
		if err := json.Unmarshal([]byte(v), m); err != nil {
			return nil, fmt.Errorf("the JSON of its metadata: %w", err)
		}
	case *hessianMap:
		m.Application = v.text("app")
		services, ok := v.get("services").(*hessianMap)
		if !ok {
			return nil, fmt.Errorf("its metadata, a %.100q, have no services", v.kind)
		}
		read := 0
		for i, key := range services.keys {
			name, ok := key.(string)
			service, isMap := services.values[i].(*hessianMap)
			if !ok || !isMap {
				return nil, errors.New("its metadata have services that are none")
			}
			var err error
			if m.Services[name], err = serviceOf(service, &read); err != nil {
				return nil, err
			}
		}
	default:
		return nil, fmt.Errorf("its metadata are a %T", value)
	}
	return m, nil
}

// serviceOf a ServiceInfo of Hessian. read counts the parameters of all of them: a message can refer to the same
// ones again and again.
func serviceOf(v *hessianMap, read *int) (registry.RPCService, error) {
	s := registry.RPCService{
		Name: v.text("name"), Group: v.text("group"), Version: v.text("version"), Protocol: v.text("protocol"), Path: v.text("path"),
		Params: map[string]string{},
	}
	if port, ok := v.get("port").(int64); ok && port > 0 && port <= math.MaxUint16 {
		s.Port = int32(port)
	}
	params, _ := v.get("params").(*hessianMap)
	if params == nil {
		return s, nil
	}
	if *read += len(params.keys); *read > maxHessianValues {
		return s, fmt.Errorf("%w: its services have more than %d parameters", errHessian, maxHessianValues)
	}
	for i, key := range params.keys {
		name, ok := key.(string)
		text, isText := params.values[i].(string)
		if ok && isText {
			s.Params[name] = text
		}
	}
	return s, nil
}
