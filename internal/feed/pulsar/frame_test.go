package pulsar

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
)

func TestFrames(t *testing.T) {
	sent := &wire.Command{Type: ptr(int32(11)), Flow: &wire.Flow{Consumer: ptr(uint64(7)), Permits: ptr(uint32(1000))}}
	frame, err := appendCommand(nil, sent)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readCommand(bytes.NewReader(frame))
	if err != nil || !proto.Equal(got, sent) {
		t.Fatalf("%v, %v", got, err)
	}
	message := &wire.Command{Type: ptr(int32(typeMessage)), Message: &wire.Message{Consumer: ptr(uint64(7)), Id: &wire.MessageId{Ledger: ptr(uint64(1)), Entry: ptr(uint64(2))}}}
	meta := &wire.Metadata{ProducerName: ptr("p"), SequenceId: ptr(uint64(2)), PublishTime: ptr(uint64(3))}
	frame, err = messageFrame(message, meta, []byte("payload"))
	if err != nil {
		t.Fatal(err)
	}
	if int(binary.BigEndian.Uint32(frame)) != len(frame)-4 {
		t.Error("the total size is wrong")
	}
	got, err = decode(frame[4:])
	if err != nil || !proto.Equal(got, message) {
		t.Fatalf("%v, %v", got, err)
	}
	rest := frame[8+binary.BigEndian.Uint32(frame[4:]):]
	if binary.BigEndian.Uint16(rest) != checksummed || binary.BigEndian.Uint32(rest[2:]) != crc32.Checksum(rest[6:], castagnoli) || !bytes.HasSuffix(rest, []byte("payload")) {
		t.Errorf("the message is % x", rest)
	}
	for name, bad := range map[string][]byte{
		"too short":                    {0, 0},
		"a command beyond its frame":   {0, 0, 0, 9, 8, 2},
		"a command without its fields": {0, 0, 0, 2, 8, 11},
		"no type":                      {0, 0, 0, 0},
		"the type of no field":         {0, 0, 0, 2, 8, 1},
	} {
		if cmd, err := decode(bad); err == nil {
			t.Errorf("%s: %v", name, cmd)
		}
	}
	if _, err := readCommand(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff})); err == nil {
		t.Error("a frame of 4 GiB is read")
	}
	if cmd, err := decode([]byte{0, 0, 0, 3, 8, 0xc8, 1}); err != nil || cmd.GetType() != 200 {
		t.Errorf("an unknown command: %v, %v", cmd, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, cmd := range []*wire.Command{
		{Type: ptr(int32(2)), Connect: &wire.Connect{ClientVersion: ptr("c"), AuthMethodName: ptr("token"), AuthData: []byte("x")}},
		{Type: ptr(int32(4)), Subscribe: &wire.Subscribe{Topic: ptr("t"), Subscription: ptr("s"), Type: ptr(wire.Subscribe_SHARED), Consumer: ptr(uint64(1)), Request: ptr(uint64(2))}},
		{Type: ptr(int32(10)), Ack: &wire.Ack{Consumer: ptr(uint64(1)), Type: ptr(int32(0)), Ids: []*wire.MessageId{{Ledger: ptr(uint64(1)), Entry: ptr(uint64(9))}}}},
	} {
		frame, err := appendCommand(nil, cmd)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame[4:])
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		cmd, err := decode(frame)
		if err != nil {
			return
		}
		again, err := appendCommand(nil, cmd)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(again[4:])
		if err != nil || !proto.Equal(got, cmd) {
			t.Fatalf("%v became %v: %v", cmd, got, err)
		}
	})
}
