package nacos

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
)

// payload is the one message of the protocol:
//
//	message Metadata { string type = 3; map<string, string> headers = 7; string clientIp = 8; }
//	message Payload  { Metadata metadata = 2; google.protobuf.Any body = 3; }
//
// The value of the body is JSON, and its type is in the metadata.
type payload struct {
	kind     string
	clientIP string
	headers  map[string]string
	body     []byte
}

const (
	fieldMetadata = 2
	fieldBody     = 3
	fieldType     = 3
	fieldHeaders  = 7
	fieldClientIP = 8
	// Of google.protobuf.Any, and of an entry of a map.
	fieldValue    = 2
	fieldMapKey   = 1
	fieldMapValue = 2
)

// maxHeaders of a message.
const maxHeaders = 64

var errPayload = errors.New("not a Payload of Nacos")

// decode a payload. It refers to b.
func decode(b []byte) (*payload, error) {
	p := &payload{headers: map[string]string{}}
	err := rawgrpc.Fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case fieldMetadata:
			return rawgrpc.Fields(value, p.setMetadata)
		case fieldBody:
			return rawgrpc.Fields(value, func(number protowire.Number, value []byte) error {
				if number == fieldValue {
					p.body = value
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if p.kind == "" {
		return nil, fmt.Errorf("%w: it has no type", errPayload)
	}
	return p, nil
}

func (p *payload) setMetadata(number protowire.Number, value []byte) error {
	switch number {
	case fieldType:
		p.kind = string(value)
	case fieldClientIP:
		p.clientIP = string(value)
	case fieldHeaders:
		if len(p.headers) == maxHeaders {
			return fmt.Errorf("%w: more than %d headers", errPayload, maxHeaders)
		}
		var key, text string
		err := rawgrpc.Fields(value, func(number protowire.Number, value []byte) error {
			switch number {
			case fieldMapKey:
				key = string(value)
			case fieldMapValue:
				text = string(value)
			}
			return nil
		})
		p.headers[key] = text
		return err
	}
	return nil
}

// encode a message of a type.
func encode(kind string, message any) ([]byte, error) {
	var body [][]byte
	var err error
	if w, ok := message.(withInfo); ok {
		body, err = w.parts()
	} else {
		body = make([][]byte, 1)
		body[0], err = json.Marshal(message)
	}
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", kind, err)
	}
	return appendPayload(nil, kind, nil, body...), nil
}

// appendPayload with a body in parts.
func appendPayload(out []byte, kind string, headers map[string]string, body ...[]byte) []byte {
	size := 0
	for _, part := range body {
		size += len(part)
	}
	metadata := protowire.AppendString(protowire.AppendTag(nil, fieldType, protowire.BytesType), kind)
	for key, value := range headers {
		entry := protowire.AppendString(protowire.AppendTag(nil, fieldMapKey, protowire.BytesType), key)
		entry = protowire.AppendString(protowire.AppendTag(entry, fieldMapValue, protowire.BytesType), value)
		metadata = protowire.AppendBytes(protowire.AppendTag(metadata, fieldHeaders, protowire.BytesType), entry)
	}
	value := protowire.SizeTag(fieldValue) + protowire.SizeBytes(size)
	out = slices.Grow(out, protowire.SizeTag(fieldMetadata)+protowire.SizeBytes(len(metadata))+protowire.SizeTag(fieldBody)+protowire.SizeBytes(value))
	out = protowire.AppendBytes(protowire.AppendTag(out, fieldMetadata, protowire.BytesType), metadata)
	out = protowire.AppendTag(out, fieldBody, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(value))
	out = protowire.AppendTag(out, fieldValue, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(size))
	for _, part := range body {
		out = append(out, part...)
	}
	return out
}

// withInfo is a message, which is an object of JSON that is not empty, with the serviceInfo of a service.
type withInfo struct {
	message any
	info    []byte
}

// parts of the body.
func (w withInfo) parts() ([][]byte, error) {
	head, err := json.Marshal(w.message)
	if err != nil {
		return nil, err
	}
	return [][]byte{head[:len(head)-1], []byte(`,"serviceInfo":`), w.info, []byte("}")}, nil
}
