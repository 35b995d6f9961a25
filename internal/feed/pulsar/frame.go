package pulsar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
)

// maxFrame bounds what a client sends, in bytes: the longest are lists of message IDs.
const maxFrame = 1 << 20

// checksummed is the magic number before the checksum of a message (Pulsar, binary protocol, "Payload commands").
const checksummed = 0x0e01

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readCommand reads one frame. An unknown command is one with a type and nothing else.
func readCommand(r io.Reader) (*wire.Command, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes: 4 to %d are allowed", size, maxFrame)
	}
	frame := make([]byte, size)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	return decode(frame)
}

// decode a frame without its total size. What follows the command, as the payload of a message that is sent, is not looked at.
func decode(frame []byte) (*wire.Command, error) {
	if len(frame) < 4 {
		return nil, errors.New("a frame ends before its command")
	}
	size := binary.BigEndian.Uint32(frame)
	if uint64(size) > uint64(len(frame)-4) {
		return nil, fmt.Errorf("a command of %d bytes in a frame of %d", size, len(frame))
	}
	cmd := &wire.Command{}
	if err := proto.Unmarshal(frame[4:4+size], cmd); err != nil {
		return nil, fmt.Errorf("a command cannot be decoded: %w", err)
	}
	fields := cmd.ProtoReflect()
	field := fields.Descriptor().Fields().ByNumber(protowire.Number(cmd.GetType()))
	if field != nil && (field.Number() == 1 || !fields.Has(field)) {
		return nil, fmt.Errorf("a command of type %d is empty", cmd.GetType())
	}
	return cmd, nil
}

// appendCommand appends the frame of a command without payload.
func appendCommand(b []byte, cmd *wire.Command) ([]byte, error) {
	size := proto.Size(cmd)
	b = binary.BigEndian.AppendUint32(b, uint32(size+4))
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, cmd)
}

// messageFrame is the frame of a command with a message.
func messageFrame(cmd *wire.Command, meta *wire.Metadata, payload []byte) ([]byte, error) {
	command, err := proto.Marshal(cmd)
	if err != nil {
		return nil, err
	}
	metadata, err := proto.Marshal(meta)
	if err != nil {
		return nil, err
	}
	body := 4 + len(metadata) + len(payload) // that the checksum is of
	total := 4 + len(command) + 6 + body
	b := make([]byte, 0, 4+total)
	b = binary.BigEndian.AppendUint32(b, uint32(total))
	b = binary.BigEndian.AppendUint32(b, uint32(len(command)))
	b = append(b, command...)
	b = binary.BigEndian.AppendUint16(b, checksummed)
	sum := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(metadata)))
	b = append(b, metadata...)
	b = append(b, payload...)
	binary.BigEndian.PutUint32(b[sum:], crc32.Checksum(b[sum+4:], castagnoli))
	return b, nil
}
