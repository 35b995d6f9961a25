package delta

import (
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// Frame is one response, marshalled. Frames are shared between streams and must
// not be changed; they may be kept.
type Frame struct {
	Type string
	// Data is an envoy.service.discovery.v3.DeltaDiscoveryResponse.
	Data []byte
	// Complete: who has the frame and those before has all there was at Position.
	// Otherwise more frames follow at once, and Position is zero.
	Complete bool
	Position Position
	// Resources and Removed count what is inside.
	Resources, Removed int

	// to is the index that the stream has reached with this frame.
	to uint64
}

// Field numbers of envoy/service/discovery/v3/discovery.proto and
// google/protobuf/any.proto.
const (
	responseVersion   = 1
	responseResources = 2
	responseType      = 4
	responseNonce     = 5
	responseRemoved   = 6
	// responseTrace is our own, outside the numbers that the protocol uses: a name, and what is known of a change of it
	// that is followed. Clients that do not know it skip it.
	responseTrace = 1000

	traceName    = 1
	traceContext = 2

	resourceVersion = 1
	resourceBody    = 2
	resourceName    = 3

	anyType  = 1
	anyValue = 2
)

// appendResource appends a resource as a field of a response. Its size is known
// beforehand, so that nothing is copied twice.
func appendResource(b []byte, typ, name, version string, body []byte) []byte {
	inner := sizeBytes(anyType, len(typ))
	if len(body) > 0 {
		inner += sizeBytes(anyValue, len(body))
	}
	size := sizeBytes(resourceVersion, len(version)) + sizeBytes(resourceBody, inner) + sizeBytes(resourceName, len(name))
	if b == nil {
		b = make([]byte, 0, sizeBytes(responseResources, size))
	}
	b = protowire.AppendTag(b, responseResources, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = appendString(b, resourceVersion, version)
	b = protowire.AppendTag(b, resourceBody, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(inner))
	b = appendString(b, anyType, typ)
	if len(body) > 0 {
		b = protowire.AppendTag(b, anyValue, protowire.BytesType)
		b = protowire.AppendBytes(b, body)
	}
	return appendString(b, resourceName, name)
}

func appendString(b []byte, field protowire.Number, s string) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendString(b, s)
}

func sizeBytes(field protowire.Number, n int) int {
	return protowire.SizeTag(field) + protowire.SizeBytes(n)
}

// content collects what goes into a frame.
type content struct {
	limit     int
	size      int
	resources []*entry
	removed   []string
	// traces of the table, of which those past index from are sent.
	traces map[string][]tracedChange
	from   uint64
}

// full reports whether something of this size no longer fits. A frame takes at
// least one thing, however large.
func (c *content) full(size int) bool {
	return c.size > 0 && c.size+size > c.limit
}

// add takes an entry, as resource or removal, unless the frame is full.
func (c *content) add(e *entry) bool {
	if !e.live() {
		return c.addRemoved(e.name)
	}
	if c.full(len(e.field)) {
		return false
	}
	c.size += len(e.field)
	c.resources = append(c.resources, e)
	return true
}

func (c *content) addRemoved(name string) bool {
	size := sizeBytes(responseRemoved, len(name))
	if c.full(size) {
		return false
	}
	c.size += size
	c.removed = append(c.removed, name)
	return true
}

func (c *content) empty() bool { return c.size == 0 }

// frame marshals the content. The nonce names the index that was reached, and
// differs by n where one stream gets several frames that reach the same.
func (c *content) frame(typ string, to uint64, at *Position, n uint64) *Frame {
	f := &Frame{Type: typ, to: to, Resources: len(c.resources), Removed: len(c.removed)}
	var version string
	if at != nil {
		f.Complete, f.Position, version = true, *at, at.String()
	}
	nonce := strconv.FormatUint(to, 10)
	if n > 0 {
		nonce += "." + strconv.FormatUint(n, 10)
	}
	b := make([]byte, 0, c.size+len(version)+len(typ)+len(nonce)+16)
	if version != "" {
		b = appendString(b, responseVersion, version)
	}
	for _, e := range c.resources {
		b = append(b, e.field...)
	}
	b = appendString(b, responseType, typ)
	b = appendString(b, responseNonce, nonce)
	for _, name := range c.removed {
		b = appendString(b, responseRemoved, name)
	}
	f.Data = c.appendTraces(b)
	return f
}

// appendTraces appends what is followed of the changes that are in the frame.
func (c *content) appendTraces(b []byte) []byte {
	if len(c.traces) == 0 {
		return b
	}
	for _, e := range c.resources {
		b = c.appendTrace(b, e.name)
	}
	for _, name := range c.removed {
		b = c.appendTrace(b, name)
	}
	return b
}

func (c *content) appendTrace(b []byte, name string) []byte {
	for _, change := range c.traces[name] {
		if change.index <= c.from {
			continue
		}
		b = protowire.AppendTag(b, responseTrace, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeBytes(traceName, len(name))+sizeBytes(traceContext, len(change.context))))
		b = appendString(b, traceName, name)
		b = appendString(b, traceContext, change.context)
	}
	return b
}

// Traced is a change that is followed, as a response has it.
type Traced struct{ Name, Context string }

// TracedOf reads what responses have beside the fields of the protocol: the unknown fields of a DeltaDiscoveryResponse.
// What it cannot read it leaves out.
func TracedOf(unknown []byte) (out []Traced) {
	eachText(unknown, func(number protowire.Number, message []byte) {
		if number != responseTrace {
			return
		}
		var t Traced
		eachText(message, func(number protowire.Number, value []byte) {
			switch number {
			case traceName:
				t.Name = string(value)
			case traceContext:
				t.Context = string(value)
			}
		})
		out = append(out, t)
	})
	return out
}

// eachText calls f for each field of bytes of a message, until what cannot be read.
func eachText(message []byte, f func(number protowire.Number, value []byte)) {
	for len(message) > 0 {
		number, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(number, typ, message[n:])
		if size < 0 {
			return
		}
		if typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[n:])
			f(number, value)
		}
		message = message[n+size:]
	}
}
