package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// errDamaged: the bytes are no message of protocol buffers.
var errDamaged = errors.New("damaged message")

// fields calls f for each field of a message, in order. raw is the field with its tag, value what
// is in a field of type bytes; number is that of a varint.
func fields(message []byte, f func(num protowire.Number, value []byte, number uint64, raw []byte) error) error {
	for len(message) > 0 {
		num, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("%w: %w", errDamaged, protowire.ParseError(n))
		}
		m := protowire.ConsumeFieldValue(num, typ, message[n:])
		if m < 0 {
			return fmt.Errorf("%w: %w", errDamaged, protowire.ParseError(m))
		}
		var value []byte
		var number uint64
		switch typ {
		case protowire.BytesType:
			value, _ = protowire.ConsumeBytes(message[n:])
			if value == nil {
				value = []byte{}
			}
		case protowire.VarintType:
			number, _ = protowire.ConsumeVarint(message[n:])
		}
		if err := f(num, value, number, message[:n+m]); err != nil {
			return err
		}
		message = message[n+m:]
	}
	return nil
}

// without is a message without some of its fields. It is the message itself if it has none.
func without(message []byte, drop ...protowire.Number) ([]byte, error) {
	out := make([]byte, 0, min(len(message), 1024))
	err := fields(message, func(num protowire.Number, _ []byte, _ uint64, raw []byte) error {
		for _, d := range drop {
			if num == d {
				return nil
			}
		}
		out = append(out, raw...)
		return nil
	})
	return out, err
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendBytes(b []byte, num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), value)
}

// EachField calls f for each field of a message, in order, with what is in a field of type bytes,
// or the number of a varint.
func EachField(message []byte, f func(num protowire.Number, value []byte, number uint64) error) error {
	return fields(message, func(num protowire.Number, value []byte, number uint64, _ []byte) error { return f(num, value, number) })
}

// Fields calls f for each field of type bytes of a message, in order.
func Fields(message []byte, f func(num protowire.Number, value []byte) error) error {
	return fields(message, func(num protowire.Number, value []byte, _ uint64, _ []byte) error {
		if value == nil {
			return nil
		}
		return f(num, value)
	})
}
