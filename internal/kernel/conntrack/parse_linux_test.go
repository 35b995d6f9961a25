package conntrack

import (
	"bytes"
	"testing"
)

// FuzzParse: any bytes are refused, or become a flow with addresses and a protocol.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{8, 0, 1, 0}, 20))
	f.Fuzz(func(t *testing.T, attributes []byte) {
		e, ok := parse(attributes)
		if !ok {
			return
		}
		if fl := e.flow(); fl.Protocol == "" || !fl.Frontend.IsValid() || !fl.Endpoint.IsValid() || len(e.identity().tuple) == 0 {
			t.Errorf("parsed %x into %v", attributes, fl)
		}
	})
}
