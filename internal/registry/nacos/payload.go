package nacos

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
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

// fields calls f for each field of a message that has bytes; others are skipped.
func fields(b []byte, f func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errPayload
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return errPayload
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return errPayload
		}
		b = b[n:]
		if err := f(number, value); err != nil {
			return err
		}
	}
	return nil
}

// decode a payload. It refers to b.
func decode(b []byte) (*payload, error) {
	p := &payload{headers: map[string]string{}}
	err := fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case fieldMetadata:
			return fields(value, p.setMetadata)
		case fieldBody:
			return fields(value, func(number protowire.Number, value []byte) error {
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
		err := fields(value, func(number protowire.Number, value []byte) error {
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

// raw is a gRPC codec whose messages are *[]byte.
type raw struct{}

// Name of the codec: that of the encoding that clients name.
func (raw) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
