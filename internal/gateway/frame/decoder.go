package frame

// Decoder splits a stream of bytes into frames, however it is cut. The zero value is
// ready. Not safe for concurrent use.
type Decoder struct {
	header [HeaderSize]byte
	have   int // bytes of header
	typ    Type
	left   int    // bytes of the body that are missing
	body   []byte // of a frame other than Data, so far
}

// Next decodes from p up to the end of a frame, or of p if that comes first, and
// returns how many bytes that were.
//
// For Data, data is the part of the body that is in p (a slice of p), so one frame
// may be returned in several parts. For other types, data is the whole body; it is
// valid until the next call. Type 0 means that p ended within a header or body: call
// again with more. After an error the Decoder is of no use.
func (d *Decoder) Next(p []byte) (t Type, data []byte, n int, err error) {
	if d.have < HeaderSize {
		n = copy(d.header[d.have:], p)
		if d.have += n; d.have < HeaderSize {
			return 0, nil, n, nil
		}
		if err := d.begin(); err != nil {
			return 0, nil, n, err
		}
	}
	part := p[n:min(len(p), n+d.left)]
	n += len(part)
	d.left -= len(part)
	if d.typ == Data {
		if d.left == 0 {
			d.have = 0
		}
		if len(part) == 0 {
			return 0, nil, n, nil
		}
		return Data, part, n, nil
	}
	d.body = append(d.body, part...)
	if d.left > 0 {
		return 0, nil, n, nil
	}
	d.have = 0
	return d.typ, d.body, n, nil
}

// begin checks a header that is complete.
func (d *Decoder) begin() error {
	d.typ, d.left = Type(d.header[0]), int(d.header[1])<<16|int(d.header[2])<<8|int(d.header[3])
	least, most, ok := d.typ.bounds()
	if !ok {
		return malformed("unknown %s", d.typ)
	}
	if d.left < least || d.left > most {
		return malformed("%s with a body of %d bytes, want %d to %d", d.typ, d.left, least, most)
	}
	d.body = d.body[:0]
	return nil
}

// Between reports whether the bytes so far end with a whole frame.
func (d *Decoder) Between() bool { return d.have == 0 }
