// Package rawgrpc is gRPC without generated code: a codec of messages that are bytes, and the fields of
// such messages. It is for protocols that have one or two messages, of which few fields matter.
package rawgrpc

import (
	"errors"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Codec of gRPC whose messages are *[]byte.
type Codec struct{}

// Name of the encoding that peers name.
func (Codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2. The bytes must not be changed until they are sent.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// ErrMalformed: the bytes are no message of Protocol Buffers.
var ErrMalformed = errors.New("not a message of Protocol Buffers")

// Fields calls f for each field of a message that has a length, with a part of b; others are left out.
// Errors: ErrMalformed, and those of f.
func Fields(b []byte, f func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ErrMalformed
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return ErrMalformed
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return ErrMalformed
		}
		b = b[n:]
		if err := f(number, value); err != nil {
			return err
		}
	}
	return nil
}

// Uint is the number in a field of a message, as the last one that has it; 0: none has.
func Uint(b []byte, field protowire.Number) (out uint64, err error) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, ErrMalformed
		}
		b = b[n:]
		if number == field && kind == protowire.VarintType {
			out, n = protowire.ConsumeVarint(b)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return 0, ErrMalformed
		}
		b = b[n:]
	}
	return out, nil
}
