// Package payload bounds what an encoded object becomes when it is decoded.
//
// A small body can decode to gigabytes: YAML aliases repeat a value any number of
// times, and two bytes of JSON or protobuf make an element of a list that is a
// hundred times larger in memory. The checks here run before the decoder, use
// memory in proportion to the limits only, and count at least what the decoder will
// make. Enter at JSON, YAML and Protobuf. The package never decodes into objects.
package payload

import (
	"encoding/json"
	"fmt"
)

// Limits of one body. All numbers must be positive.
type Limits struct {
	// Depth of nesting: objects and lists within each other.
	Depth int
	// Values are members of objects, elements of lists and the root.
	Values int
	// Members of one object. Decoders that check for duplicate names need time
	// quadratic in their number. Does not count for protobuf.
	Members int
	// Aliases of YAML are allowed, and what they stand for counts each time. Without
	// it they are refused.
	Aliases bool
}

// TooLargeError is a body that would become more than the limits allow.
type TooLargeError struct{ reason string }

func (e *TooLargeError) Error() string { return e.reason }

// AliasError is a YAML body with an alias where none is allowed.
type AliasError struct{ Line int }

func (e *AliasError) Error() string {
	return fmt.Sprintf("line %d: YAML aliases (*name) are not accepted: write the value out in each place, or send JSON", e.Line)
}

func tooDeep(l Limits) error {
	return &TooLargeError{fmt.Sprintf("it is nested more than %d levels deep: make it flatter", l.Depth)}
}

func tooMany(l Limits) error {
	return &TooLargeError{fmt.Sprintf("it has more than %d values: split it into several objects or requests", l.Values)}
}

func tooWide(l Limits) error {
	return &TooLargeError{fmt.Sprintf("an object in it has more than %d members: split it", l.Members)}
}

// JSON counts the values of a JSON body, and fails where it exceeds the limits. It
// does not check the syntax: up to the first mistake, where a decoder stops, the
// count is that of the decoder. An empty object or list counts as if it held one.
func JSON(body []byte, l Limits) (values int, err error) {
	values = 1
	var open []int // members of the objects that are open; 0 for a list
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			i = endOfString(body, i)
		case '{', '[':
			if len(open) == l.Depth {
				return values, tooDeep(l)
			}
			members := 0
			if body[i] == '{' {
				members = 1
			}
			open = append(open, members)
			values++ // the first member or element
		case '}', ']':
			open = open[:max(0, len(open)-1)]
		case ',':
			values++
			if top := len(open) - 1; top >= 0 && open[top] > 0 {
				if open[top]++; open[top] > l.Members {
					return values, tooWide(l)
				}
			}
		}
		if values > l.Values {
			return values, tooMany(l)
		}
	}
	return values, nil
}

// endOfString is the place of the quotation mark that ends the string that begins
// at start.
func endOfString(body []byte, start int) int {
	for i := start + 1; i < len(body); i++ {
		switch body[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(body)
}

// AtMost is a cheap bound of what YAML counts, to reserve memory by before the call.
func AtMost(body []byte) int {
	n := 1
	for _, b := range body {
		switch b {
		// Every value but the root follows one of these, in all styles.
		case ',', ':', '-', '[', '{', '?':
			n++
		}
	}
	return n
}

// YAML counts the values of the first document of a YAML body, and fails where it
// exceeds the limits or has an alias that is not allowed. A body that is JSON is
// checked as such. Text that is no YAML is an error of the parser.
//
// The parser takes memory for each value, so a body with more characters that can
// begin one than Limits.Values is refused, even if they are in text.
func YAML(body []byte, l Limits) (values int, err error) {
	if json.Valid(body) {
		return JSON(body, l)
	}
	if AtMost(body) > l.Values {
		return l.Values, &TooLargeError{fmt.Sprintf("it has more than %d characters that can begin a value in YAML: send it as JSON", l.Values)}
	}
	return countYAML(body, l)
}
