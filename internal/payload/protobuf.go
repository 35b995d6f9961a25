package payload

import (
	"bytes"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// envelope precedes what Kubernetes sends as protobuf (k8s.io/apimachinery,
// runtime/serializer/protobuf).
var envelope = []byte("k8s\x00")

// maxNesting of bytes that may be messages; those of Kubernetes are nested about 20
// deep.
const maxNesting = 64

// Protobuf counts the fields of a protobuf body, with or without Kubernetes'
// envelope, and fails where there are more than Limits.Values. Which bytes are a
// message and which are text is not known without the schema: what can be read as a
// message counts as one, so text may count for more than one value, but never for
// more than one in eleven bytes. Like JSON it does not check the syntax.
func Protobuf(body []byte, l Limits) (values int, err error) {
	w := walker{limit: l.Values, depth: min(l.Depth, maxNesting)}
	values = 1 + w.fields(bytes.TrimPrefix(body, envelope), 1)
	switch {
	case w.tooDeep:
		return values, tooDeep(Limits{Depth: w.depth})
	case values > l.Values:
		return values, tooMany(l)
	}
	return values, nil
}

type walker struct {
	limit, depth int
	tooDeep      bool
}

// fields counts those of a message up to the first mistake.
func (w *walker) fields(body []byte, depth int) (n int) {
	if depth > w.depth {
		w.tooDeep = true
		return 0
	}
	for len(body) > 0 && n <= w.limit && !w.tooDeep {
		_, kind, length := protowire.ConsumeTag(body)
		if length < 0 {
			return n
		}
		body = body[length:]
		n++
		switch kind {
		case protowire.StartGroupType, protowire.EndGroupType:
			continue // what is between them counts as if it were outside
		case protowire.BytesType:
			value, size := protowire.ConsumeBytes(body)
			if size < 0 {
				return n
			}
			n += w.nested(value, depth+1)
			length = size
		default:
			if length = protowire.ConsumeFieldValue(1, kind, body); length < 0 {
				return n
			}
		}
		body = body[length:]
	}
	return n
}

// minTextMessage is the least size of a message in a list of messages that is all
// text: a tag, a length, which is at least that of a tab, and so many bytes.
const minTextMessage = 2 + '\t'

// nested counts what may be a message. Text such as "xxxx" can be read as one with a
// field in every two bytes. Fields of numbers take no memory to speak of, so text
// counts for no more than the messages that can be in it.
func (w *walker) nested(value []byte, depth int) int {
	n := w.fields(value, depth)
	if most := len(value) / minTextMessage; n > most && isText(value) {
		return most
	}
	return n
}

func isText(value []byte) bool {
	return utf8.Valid(value) && !bytes.ContainsFunc(value, func(r rune) bool {
		return unicode.IsControl(r) && r != '\t' && r != '\n' && r != '\r'
	})
}
