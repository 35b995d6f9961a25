package nacos

import (
	"encoding/json"
	"errors"
	"fmt"

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
	body, err := json.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", kind, err)
	}
	return appendPayload(make([]byte, 0, len(body)+len(kind)+32), kind, body), nil
}

func appendPayload(out []byte, kind string, body []byte) []byte {
	var metadata, anyOf []byte
	metadata = protowire.AppendString(protowire.AppendTag(metadata, fieldType, protowire.BytesType), kind)
	anyOf = protowire.AppendBytes(protowire.AppendTag(anyOf, fieldValue, protowire.BytesType), body)
	out = protowire.AppendBytes(protowire.AppendTag(out, fieldMetadata, protowire.BytesType), metadata)
	return protowire.AppendBytes(protowire.AppendTag(out, fieldBody, protowire.BytesType), anyOf)
}
