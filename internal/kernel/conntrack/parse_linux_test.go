package conntrack

import (
	"bytes"
	"testing"
)

func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{8, 0, 1, 0}, 20))
	f.Fuzz(func(t *testing.T, entry []byte) {
		if identity, fl, ok := parse(entry); ok && (len(identity) == 0 || !fl.dialled.IsValid() || !fl.answers.IsValid()) {
			t.Errorf("parsed %x into %v", entry, fl)
		}
	})
}
