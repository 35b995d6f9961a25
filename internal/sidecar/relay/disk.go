package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// The file is "magic", messages of the form of protocol buffers and, at its end, the CRC-32C of
// all before, 4 bytes. Fields of the file: 1 node ID, 2 type. Fields of a type: 1 URL, 2 flags,
// 3 subscribed name, 4 resource, 5 resource that was asked for by name.
const (
	magic = "proxima-relay-1\n"

	flagWildcard = 1
	flagAnswered = 2

	// maxFile bounds what is read back, in bytes: 10,000 services have 20 MB.
	maxFile = 256 << 20
	// stateMode: secrets may have keys, for the TLS of services outside the mesh, and so may configurations.
	stateMode = 0o600
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errFile: the file is not one that Encode made.
var errFile = errors.New("damaged file")

// Encode writes what an Envoy of the node needs to start without a control plane.
func (c *Core) Encode(node string) []byte {
	out := appendField([]byte(magic), 1, []byte(node))
	for _, url := range c.typeURLs() {
		out = appendField(out, 2, c.types[url].encode())
	}
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

func (t *resources) encode() []byte {
	flags := uint64(0)
	if t.wildcard {
		flags |= flagWildcard
	}
	if t.answered {
		flags |= flagAnswered
	}
	out := appendField(nil, 1, []byte(t.typeURL))
	out = protowire.AppendVarint(protowire.AppendTag(out, 2, protowire.VarintType), flags)
	for name := range t.names {
		if !t.isOwn(name) {
			out = appendField(out, 3, []byte(name))
		}
	}
	for name, e := range t.accepted {
		if t.isOwn(name) {
			continue
		}
		num := protowire.Number(4)
		if e.onDemand {
			num = 5
		}
		out = appendField(out, num, e.Raw)
	}
	return out
}

func appendField(b []byte, num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), value)
}

// Decode replaces what is held by what Encode wrote for the same node, before SetOwn. Names count as asked for
// until now. An error leaves the Core as it was.
func (c *Core) Decode(data []byte, node string, now time.Time) error {
	body := len(data) - crc32.Size
	if body < len(magic) || string(data[:len(magic)]) != magic {
		return fmt.Errorf("%w: it has another form", errFile)
	}
	if crc32.Checksum(data[:body], castagnoli) != binary.BigEndian.Uint32(data[body:]) {
		return fmt.Errorf("%w: its checksum is another", errFile)
	}
	types := map[string]*resources{}
	err := wire.EachField(data[len(magic):body], func(num protowire.Number, value []byte, _ uint64) error {
		switch num {
		case 1:
			if string(value) != node {
				return fmt.Errorf("it is of node %q, not of %q", value, node)
			}
		case 2:
			t, err := decodeType(value, now)
			if err != nil {
				return err
			}
			types[t.typeURL] = t
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.types = types
	return nil
}

func decodeType(data []byte, now time.Time) (*resources, error) {
	t := &resources{accepted: map[string]*entry{}, names: map[string]time.Time{}}
	err := wire.EachField(data, func(num protowire.Number, value []byte, number uint64) error {
		switch num {
		case 1:
			t.typeURL = string(value)
		case 2:
			t.wildcard, t.answered = number&flagWildcard != 0, number&flagAnswered != 0
		case 3:
			t.names[string(value)] = now
		case 4, 5:
			return t.decodeEntry(value, num == 5)
		}
		return nil
	})
	return t, err
}

func (t *resources) decodeEntry(raw []byte, onDemand bool) error {
	r, err := wire.ParseResource(slices.Clone(raw))
	if err != nil {
		return err
	}
	e := &entry{Resource: r, onDemand: onDemand}
	if t.typeURL == wire.Cluster {
		service, ok, err := wire.ServiceOf(r)
		if err != nil {
			return err
		}
		if ok {
			e.service = service
		}
	}
	t.accepted[r.Name] = e
	return nil
}

// load what an earlier run left. A file that is not there is no error.
func (c *Core) load(path, node string, now time.Time) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("%w: it has %d bytes", errFile, info.Size())
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		err = c.Decode(data, node, now)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func save(path string, data []byte) error { return atomicfile.Write(path, data, stateMode) }
