package wire

import "fmt"

// Frame is a message of gRPC as bytes.
type Frame []byte

// Codec is a codec for grpc.ForceCodec and grpc.ForceServerCodec that leaves messages as they
// are. Messages are *Frame.
type Codec struct{}

// Marshal implements encoding.Codec.
func (Codec) Marshal(v any) ([]byte, error) {
	f, ok := v.(*Frame)
	if !ok {
		return nil, fmt.Errorf("cannot send a %T: want a *wire.Frame", v)
	}
	return *f, nil
}

// Unmarshal implements encoding.Codec. data is a copy that belongs to the message.
func (Codec) Unmarshal(data []byte, v any) error {
	f, ok := v.(*Frame)
	if !ok {
		return fmt.Errorf("cannot receive into a %T: want a *wire.Frame", v)
	}
	*f = data
	return nil
}

// Name implements encoding.Codec: the content type is that of protocol buffers.
func (Codec) Name() string { return "proto" }
