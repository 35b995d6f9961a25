package dubbo

import "testing"

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x0a\x06orders\x1a\x15\x0a\x05a:tri\x12\x0c\x0a\x01a\x22\x03tri\x3a\x02\x0a\x00"))
	f.Add([]byte("\x1a\x02\x12\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decode(b); err == nil && m.Services == nil {
			t.Error("no services, and no error")
		}
	})
}

func TestDecode(t *testing.T) {
	m, err := decode([]byte("\x0a\x06orders\x1a\x14\x0a\x05a:tri\x12\x0b\x0a\x01a\x22\x03tri\x3a\x01\x0a"))
	if err == nil {
		t.Errorf("a message that is cut: %+v", m)
	}
	m, err = decode([]byte("\x0a\x06orders\x1a\x15\x0a\x05a:tri\x12\x0c\x0a\x01a\x22\x03tri\x3a\x02\x0a\x00"))
	if err != nil || m.Application != "orders" || m.Services["a:tri"].Name != "a" || m.Services["a:tri"].Protocol != "tri" {
		t.Errorf("metadata %+v, %v", m, err)
	}
}
