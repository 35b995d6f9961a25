package dubbo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// Hessian 2.0 (http://hessian.caucho.com/doc/hessian-serialization.html), as Dubbo uses it: what a call of a
// MetadataService and its answer need. Values are nil, bool, int64, float64, string, []byte, []any and
// *hessianMap, which is also what an object is.

// Limits of a message, whose length is limited already.
const (
	// maxHessianValues is the most values of a message. One byte of it makes a value of some 50.
	maxHessianValues = 1 << 17
	// maxHessianDepth is how deep values may be nested. Metadata have a depth of 4.
	maxHessianDepth = 32
)

// hessianMap is a map, or an object, whose fields are strings. Of equal keys the first one counts.
type hessianMap struct {
	kind string // the class; empty: none is named
	keys []any
	// values are of the keys at the same index.
	values []any
}

// get the value of a string.
func (m *hessianMap) get(key string) any {
	for i, k := range m.keys {
		if k == key {
			return m.values[i]
		}
	}
	return nil
}

// text of a key; empty: it is missing, or another value.
func (m *hessianMap) text(key string) string {
	s, _ := m.get(key).(string)
	return s
}

// errHessian: the bytes are no message of Hessian 2, or one that exceeds the limits.
var errHessian = errors.New("not a message of Hessian 2")

type hessianClass struct {
	name   string
	fields []any
}

// hessianReader reads the values of a message, one after the other. After an error all reads fail.
type hessianReader struct {
	left  []byte
	err   error
	depth int
	count int
	// What the message refers to by its index.
	values  []any
	classes []hessianClass
	types   []string
}

func (r *hessianReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{errHessian}, args...)...)
	}
	r.left = nil
}

// take n bytes; nil after an error.
func (r *hessianReader) take(n int) []byte {
	if n < 0 || n > len(r.left) {
		r.fail("it ends too early")
		return nil
	}
	out := r.left[:n]
	r.left = r.left[n:]
	return out
}

func (r *hessianReader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// number of n bytes, with its sign.
func (r *hessianReader) number(n int) int64 {
	b := r.take(n)
	if b == nil {
		return 0
	}
	var padded [8]byte
	copy(padded[8-n:], b)
	shift := 64 - 8*n
	return int64(binary.BigEndian.Uint64(padded[:])) << shift >> shift
}

// value is the next one.
func (r *hessianReader) value() any {
	if r.count++; r.count > maxHessianValues {
		r.fail("it has more than %d values", maxHessianValues)
	}
	if r.depth++; r.depth > maxHessianDepth {
		r.fail("its values are nested more than %d times", maxHessianDepth)
	}
	defer func() { r.depth-- }()
	code := r.byte()
	if r.err != nil {
		return nil
	}
	if isString(code) {
		return r.string(code)
	}
	if n, ok := r.integer(code); ok {
		return n
	}
	if f, ok := r.double(code); ok {
		return f
	}
	switch {
	case code == 'N':
		return nil
	case code == 'T', code == 'F':
		return code == 'T'
	case code == 'J': // a date, in milliseconds
		return r.number(8)
	case code == 'K': // a date, in minutes
		return r.number(4)
	case code >= 0x20 && code <= 0x2f, code >= 0x34 && code <= 0x37, code == 'A', code == 'B':
		return r.binary(code)
	case code == 'Q':
		return r.reference()
	case code >= 0x55 && code <= 0x58, code >= 0x70 && code <= 0x7f:
		return r.list(code)
	case code == 'M', code == 'H':
		return r.pairs(code)
	case code == 'C', code == 'O', code >= 0x60 && code <= 0x6f:
		return r.object(code)
	}
	r.fail("code %#x is none", code)
	return nil
}

func isString(code byte) bool {
	return code <= 0x1f || code >= 0x30 && code <= 0x33 || code == 'S' || code == 'R'
}

// integer of 32 or 64 bits.
func (r *hessianReader) integer(code byte) (int64, bool) {
	c := int64(code)
	switch {
	case c >= 0x80 && c <= 0xbf:
		return c - 0x90, true
	case c >= 0xc0 && c <= 0xcf:
		return (c-0xc8)<<8 + int64(r.byte()), true
	case c >= 0xd0 && c <= 0xd7:
		return (c-0xd4)<<16 + r.number(2)&0xffff, true
	case c >= 0xd8 && c <= 0xef:
		return c - 0xe0, true
	case c >= 0xf0:
		return (c-0xf8)<<8 + int64(r.byte()), true
	case c >= 0x38 && c <= 0x3f:
		return (c-0x3c)<<16 + r.number(2)&0xffff, true
	case c == 'I', c == 'Y':
		return r.number(4), true
	case c == 'L':
		return r.number(8), true
	}
	return 0, false
}

func (r *hessianReader) double(code byte) (float64, bool) {
	switch code {
	case 0x5b, 0x5c:
		return float64(code - 0x5b), true
	case 0x5d:
		return float64(r.number(1)), true
	case 0x5e:
		return float64(r.number(2)), true
	case 0x5f:
		return float64(r.number(4)) / 1000, true
	case 'D':
		return math.Float64frombits(uint64(r.number(8))), true
	}
	return 0, false
}

// string in chunks. Lengths are numbers of UTF-16 units, each of which is encoded alone, as Java does it;
// other implementations encode a pair of them as one character of four bytes.
func (r *hessianReader) string(code byte) string {
	var out []byte
	for {
		n, last := 0, code != 'R'
		switch {
		case code <= 0x1f:
			n = int(code)
		case code >= 0x30 && code <= 0x33:
			n = int(code-0x30)<<8 + int(r.byte())
		case code == 'S', code == 'R':
			n = int(r.number(2) & 0xffff)
		default:
			r.fail("code %#x is no part of a string", code)
		}
		out = r.units(out, n)
		if last || r.err != nil {
			return string(out)
		}
		code = r.byte()
	}
}

// units appends n units of UTF-16 to a string.
func (r *hessianReader) units(out []byte, n int) []byte {
	for n > 0 && r.err == nil {
		c, size := r.unit()
		if n -= size; n < 0 {
			r.fail("a string ends in the middle of a character")
		}
		if utf16.IsSurrogate(c) && n > 0 {
			low, _ := r.unit()
			n--
			c = utf16.DecodeRune(c, low)
		}
		out = utf8.AppendRune(out, c)
	}
	return out
}

// unit is a character of 1 to 4 bytes, and how many units it is.
func (r *hessianReader) unit() (rune, int) {
	first := r.byte()
	more, c := 0, rune(first)
	switch {
	case first < 0x80:
		return c, 1
	case first&0xe0 == 0xc0:
		more, c = 1, c&0x1f
	case first&0xf0 == 0xe0:
		more, c = 2, c&0xf
	case first&0xf8 == 0xf0:
		more, c = 3, c&0x7
	default:
		r.fail("byte %#x is none of a string", first)
	}
	for range more {
		b := r.byte()
		if b&0xc0 != 0x80 {
			r.fail("byte %#x is none of a string", b)
		}
		c = c<<6 | rune(b&0x3f)
	}
	if more == 3 {
		return c, 2
	}
	return c, 1
}

func (r *hessianReader) binary(code byte) []byte {
	var out []byte
	for {
		n, last := 0, code != 'A'
		switch {
		case code >= 0x20 && code <= 0x2f:
			n = int(code - 0x20)
		case code >= 0x34 && code <= 0x37:
			n = int(code-0x34)<<8 + int(r.byte())
		case code == 'A', code == 'B':
			n = int(r.number(2) & 0xffff)
		default:
			r.fail("code %#x is no part of bytes", code)
		}
		out = append(out, r.take(n)...)
		if last || r.err != nil {
			return out
		}
		code = r.byte()
	}
}

// length that follows: it is no more than the bytes that are left, as each value has one.
func (r *hessianReader) length() int {
	n, ok := r.integer(r.byte())
	if !ok || n < 0 || n > int64(len(r.left)) {
		r.fail("a length is none")
		return 0
	}
	return int(n)
}

func (r *hessianReader) reference() any {
	n, ok := r.integer(r.byte())
	if !ok || n < 0 || n >= int64(len(r.values)) {
		r.fail("it refers to a value that is not there")
		return nil
	}
	return r.values[n]
}

// kind is the class of a list or a map: its name, or the index of one that was named.
func (r *hessianReader) kind() string {
	code := r.byte()
	if isString(code) && r.err == nil {
		name := r.string(code)
		r.types = append(r.types, name)
		return name
	}
	n, ok := r.integer(code)
	if !ok || n < 0 || n >= int64(len(r.types)) {
		r.fail("it refers to a class that is not there")
		return ""
	}
	return r.types[n]
}

// atEnd takes the mark that ends values whose number is not known.
func (r *hessianReader) atEnd() bool {
	if len(r.left) > 0 && r.left[0] == 'Z' {
		r.left = r.left[1:]
		return true
	}
	return r.err != nil
}

// list of which others refer to the values only when it is read: metadata have none that contain themselves.
func (r *hessianReader) list(code byte) any {
	n := -1
	switch {
	case code == 0x55, code == 'V':
		r.kind()
	case code >= 0x70 && code <= 0x77:
		r.kind()
		n = int(code - 0x70)
	case code >= 0x78:
		n = int(code - 0x78)
	}
	if code == 'V' || code == 'X' {
		n = r.length()
	}
	at := len(r.values)
	r.values = append(r.values, nil)
	var out []any
	for i := 0; r.err == nil && (n >= 0 && i < n || n < 0 && !r.atEnd()); i++ {
		out = append(out, r.value())
	}
	r.values[at] = out
	return out
}

func (r *hessianReader) pairs(code byte) any {
	m := &hessianMap{}
	if code == 'M' {
		m.kind = r.kind()
	}
	r.values = append(r.values, m)
	for !r.atEnd() {
		key := r.value()
		m.keys, m.values = append(m.keys, key), append(m.values, r.value())
	}
	return m
}

func (r *hessianReader) object(code byte) any {
	for code == 'C' && r.err == nil { // the fields of a class
		c := hessianClass{name: r.string(r.byte())}
		for range r.length() {
			if r.err != nil {
				break
			}
			c.fields = append(c.fields, r.string(r.byte()))
		}
		r.classes = append(r.classes, c)
		code = r.byte()
	}
	n, ok := int64(code)-0x60, code >= 0x60 && code <= 0x6f
	if code == 'O' {
		n, ok = r.integer(r.byte())
	}
	if !ok || n < 0 || n >= int64(len(r.classes)) {
		r.fail("it refers to a class that is not there")
		return nil
	}
	class := r.classes[n]
	m := &hessianMap{kind: class.name, keys: class.fields}
	r.values = append(r.values, m)
	for range class.fields {
		if r.err != nil {
			break
		}
		m.values = append(m.values, r.value())
	}
	if r.err != nil {
		m.keys = nil // they have no values
	}
	return m
}

// appendHessianString appends a string in the encoding of Hessian 2. It must be shorter than 32768 units.
func appendHessianString(b []byte, s string) []byte {
	units := utf16.Encode([]rune(s))
	switch n := len(units); {
	case n <= 0x1f:
		b = append(b, byte(n))
	case n <= 0x3ff:
		b = append(b, 0x30+byte(n>>8), byte(n))
	default:
		b = append(b, 'S', byte(n>>8), byte(n))
	}
	for _, u := range units { // each alone, as Java does it
		switch {
		case u < 0x80:
			b = append(b, byte(u))
		case u < 0x800:
			b = append(b, 0xc0|byte(u>>6), 0x80|byte(u&0x3f))
		default:
			b = append(b, 0xe0|byte(u>>12), 0x80|byte(u>>6&0x3f), 0x80|byte(u&0x3f))
		}
	}
	return b
}

// appendHessianMap appends a map of strings, in the order of its pairs.
func appendHessianMap(b []byte, pairs ...[2]string) []byte {
	b = append(b, 'H')
	for _, p := range pairs {
		b = appendHessianString(appendHessianString(b, p[0]), p[1])
	}
	return append(b, 'Z')
}
