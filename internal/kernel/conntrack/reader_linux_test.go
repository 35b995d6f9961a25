package conntrack

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func message(typ uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, make([]byte, 10)...)
	b = append(b, body...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// FuzzMessages: what a read returns is passed on, or refused, and never read beyond.
func FuzzMessages(f *testing.F) {
	one := append(make([]byte, 4), flow(numberTCP, 3, statusDNAT, &[2]uint64{5, 6})...)
	f.Add(append(message(256, one), message(unix.NLMSG_DONE, make([]byte, 4))...))
	f.Add(message(unix.NLMSG_ERROR, []byte{0xff, 0xff, 0xff, 0xff}))
	f.Add(message(256, one)[:30])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, d := NewReader(0), Dump{}
		n := 0
		_, _ = r.messages(b, 3, &d, func(*Entry) { n++ })
		if n != d.Flows || n > 3 {
			t.Errorf("%d flows passed on, %d counted", n, d.Flows)
		}
	})
}

func TestMessages(t *testing.T) {
	one := append(make([]byte, 4), flow(numberTCP, 3, statusDNAT, &[2]uint64{5, 6})...)
	other := append(make([]byte, 4), flow(numberTCP, 3, 0, nil)...) // an old kernel ignores the filter
	all := append(append(message(256, one), message(256, other)...), message(256, one)...)
	r, d := NewReader(0), Dump{}
	each := func(*Entry) {}
	if done, err := r.messages(all, 0, &d, each); done || err != nil || d.Flows != 2 {
		t.Errorf("%v, %v, %+v", done, err, d)
	}
	if done, err := r.messages(message(unix.NLMSG_DONE, make([]byte, 4)), 0, &d, each); !done || err != nil || !d.Whole {
		t.Errorf("at the end %v, %v, %+v", done, err, d)
	}
	d = Dump{}
	if done, err := r.messages(all, 1, &d, each); !done || err != nil || d.Flows != 1 || d.Whole {
		t.Errorf("with a limit %v, %v, %+v", done, err, d)
	}
	if _, err := r.messages(message(unix.NLMSG_ERROR, binary.NativeEndian.AppendUint32(nil, ^uint32(0))), 0, &d, each); !errors.Is(err, unix.EPERM) {
		t.Errorf("refused: %v", err)
	}
	d = Dump{}
	if done, err := r.messages(message(unix.NLMSG_DONE, binary.NativeEndian.AppendUint32(nil, ^uint32(0))), 0, &d, each); !done || !errors.Is(err, unix.EPERM) || d.Whole {
		t.Errorf("a dump that failed on its way %v, %v, %+v", done, err, d)
	}
	buffer := all
	if n := testing.AllocsPerRun(100, func() { _, _ = r.messages(buffer, 0, &d, each) }); n != 0 {
		t.Errorf("%v allocations for a read", n)
	}
}
