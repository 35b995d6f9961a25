package dubbo

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

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
	m, err = decode([]byte("\x0a\x06orders\x1a\x17\x0a\x05a:tri\x12\x0e\x0a\x01a\x22\x03tri\x28\x50\x3a\x02\x0a\x00"))
	if err != nil || m.Application != "orders" || m.Services["a:tri"].Name != "a" || m.Services["a:tri"].Protocol != "tri" || m.Services["a:tri"].Port != 80 {
		t.Errorf("metadata %+v, %v", m, err)
	}
}

// provider is an instance whose MetadataService has parameters.
func provider(address, version, params string) *registry.Instance {
	return &registry.Instance{Address: netip.MustParseAddr(address), Port: 20000, Metadata: map[string]string{
		keyServiceParams: params, keyServiceVersion: version,
	}}
}

func TestServiceOfInstance(t *testing.T) {
	for _, test := range []struct {
		in   *registry.Instance
		here bool
		want string // the address, or a part of the error
	}{
		{provider("10.0.0.7", "1.0.0", `{"port":"20881","protocol":"dubbo"}`), false, "10.0.0.7:20881"},
		{provider("10.0.0.7", "2.0.0", `{"port":"20881","protocol":"tri"}`), false, "10.0.0.7:20881"},
		{provider("10.0.0.7", "", `{"dubbo":{"port":"20881","version":"1.0.0"}}`), false, "10.0.0.7:20881"},
		{provider("127.0.0.1", "1.0.0", `{"port":"20881","protocol":"dubbo"}`), true, "127.0.0.1:20881"},
		{provider("127.0.0.1", "1.0.0", `{"port":"20881","protocol":"dubbo"}`), false, "of another machine"},
		{provider("::ffff:127.0.0.1", "1.0.0", `{"port":"20881","protocol":"dubbo"}`), false, "of another machine"},
		{provider("169.254.169.254", "1.0.0", `{"port":"20881","protocol":"dubbo"}`), true, "not one of a machine"},
		{provider("0.0.0.0", "1.0.0", `{"port":"20881","protocol":"dubbo"}`), true, "not one of a machine"},
		{provider("224.0.0.1", "1.0.0", `{"port":"20881","protocol":"dubbo"}`), true, "not one of a machine"},
		{provider("10.0.0.7", "1.0.0", `{"port":"22","protocol":"dubbo"}`), false, "port"},
		{provider("10.0.0.7", "1.0.0", `{"port":"70000","protocol":"dubbo"}`), false, "port"},
		{provider("10.0.0.7", "1.0.0", `{"port":"20881","protocol":"rest"}`), false, "protocol"},
		{provider("10.0.0.7", "1.0.0", `{"port":20881}`), false, "no MetadataService"},
		{provider("10.0.0.7", "1.0.0", ``), false, "no MetadataService"},
	} {
		at, how, err := serviceOfInstance(test.in, test.here)
		if err != nil {
			if how != nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s %v: %v, want %s", test.in.Address, test.in.Metadata, err, test.want)
			}
		} else if at.String() != test.want {
			t.Errorf("%s %v: %s, want %s", test.in.Address, test.in.Metadata, at, test.want)
		}
	}
}

// Ports are those of instances, unless one protocol is served at several.
func TestCheck(t *testing.T) {
	of := func(ports ...int32) *registry.ApplicationMetadata {
		m := &registry.ApplicationMetadata{Application: "orders", Services: map[string]registry.RPCService{}}
		for i, port := range ports {
			m.Services[string(rune('a'+i))] = registry.RPCService{Name: "a", Protocol: "tri", Port: port}
		}
		return m
	}
	one, several := of(20001, 20001), of(20001, 20002)
	for _, m := range []*registry.ApplicationMetadata{one, several} {
		if err := check(m, "orders", "r1"); err != nil || m.Revision != "r1" {
			t.Errorf("%v, revision %q", err, m.Revision)
		}
	}
	if one.Services["a"].Port != 0 || several.Services["a"].Port != 20001 || several.Services["b"].Port != 20002 {
		t.Errorf("ports %v, %v", one.Services, several.Services)
	}
	if err := check(of(), "pay", "r1"); err == nil {
		t.Error("metadata of another application are taken")
	}
	if err := check(&registry.ApplicationMetadata{Application: "orders", Services: map[string]registry.RPCService{"a": {}}}, "orders", "r1"); err == nil {
		t.Error("a service without a name is taken")
	}
}

func TestSlots(t *testing.T) {
	var s slots
	entry := func(group string) registry.ConfigKey {
		return registry.ConfigKey{Namespace: "shop", Group: group, DataID: "orders"}
	}
	instance := func(name string) resource.Key { return resource.Key{Namespace: "shop", Name: name} }
	for i := range maxAskedOfNamespace {
		if !s.take(entry(string(rune('a'+i))), instance("first")) {
			t.Fatalf("slot %d is taken", i)
		}
	}
	if s.take(entry("a"), instance("same")) || s.take(entry("z"), instance("more")) {
		t.Fatal("a revision is asked twice, or a namespace has more slots")
	}
	other := entry("a")
	other.Namespace = "default"
	if !s.take(other, instance("first")) {
		t.Error("another namespace has no slot")
	}
	woken := s.free(entry("a"))
	if len(woken) != 2 || s.take(entry("z"), instance("more")) != true {
		t.Errorf("woken: %v", woken)
	}
}

// captured is what dubbo-go 3.3.2 and Java Dubbo 3.3.2 answer by the protocol dubbo: the body.
var captured = map[string]string{}

func TestHessian(t *testing.T) {
	for _, test := range []struct {
		in   string // hex
		want any
	}{
		{"4e", nil}, {"54", true}, {"46", false},
		{"80", int64(-16)}, {"bf", int64(47)}, {"c700", int64(-256)}, {"d3ffff", int64(-1)}, {"497fffffff", int64(1<<31 - 1)}, {"49ffffffff", int64(-1)},
		{"e0", int64(0)}, {"f800", int64(0)}, {"3c0001", int64(1)}, {"59ffffffff", int64(-1)}, {"4c8000000000000000", int64(-1 << 63)},
		{"5b", 0.0}, {"5c", 1.0}, {"5d80", -128.0}, {"5e0100", 256.0}, {"5f000004d2", 1.234}, {"443ff8000000000000", 1.5},
		{"00", ""}, {"026869", "hi"}, {"3002c3a968", "éh"}, {"52000161530001e4bda0", "a你"},
		{"02eda0bdedb880", "😀"}, {"02f09f9880", "😀"}, {"4b00000001", int64(1)},
	} {
		b, err := hex.DecodeString(test.in)
		if err != nil {
			t.Fatal(err)
		}
		r := &hessianReader{left: b}
		if got := r.value(); got != test.want || r.err != nil || len(r.left) > 0 {
			t.Errorf("%s: %v, %v; want %v", test.in, got, r.err, test.want)
		}
	}
	for _, s := range []string{"", "orders", strings.Repeat("é", 40), strings.Repeat("😀", 600), strings.Repeat("a", 2000)} {
		r := &hessianReader{left: appendHessianString(nil, s)}
		if got := r.value(); got != s || r.err != nil {
			t.Errorf("%.20q: %.20q, %v", s, got, r.err)
		}
	}
	r := &hessianReader{left: appendHessianMap(nil, [2]string{"a", "b"})}
	if m, ok := r.value().(*hessianMap); !ok || m.text("a") != "b" {
		t.Errorf("map %+v, %v", m, r.err)
	}
	for _, bad := range []string{"", "51 90", "05 61", "58 49 7fffffff 4e", "43 01 61 49 7fffffff", "60", "4d 90", "40", "53 ffff", "02 f09f9880 f0"} {
		b, err := hex.DecodeString(strings.ReplaceAll(bad, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		r := &hessianReader{left: b}
		for range 2 {
			r.value()
		}
		if r.err == nil {
			t.Errorf("%s is read", bad)
		}
	}
	deep := &hessianReader{left: bytes.Repeat([]byte{0x79}, 1000)}
	many := &hessianReader{left: append([]byte{'W'}, bytes.Repeat([]byte{'N'}, maxHessianValues+1)...)}
	for _, r := range []*hessianReader{deep, many} {
		if r.value(); r.err == nil {
			t.Error("a value without a limit is read")
		}
	}
}

// A message can refer to the same parameters for each service, which would be copied each time.
func TestHessianRepeats(t *testing.T) {
	b := append([]byte{'H'}, appendHessianString(nil, "app")...)
	b = append(appendHessianString(b, "orders"), appendHessianString(nil, "services")...)
	b = append(b, 'H') // value 1
	b = append(appendHessianString(b, "0"), 'H')
	b = append(appendHessianString(b, "params"), 'H')
	for i := range 5000 {
		b = append(appendHessianString(b, string(rune('a'+i))), 0)
	}
	b = append(b, 'Z', 'Z')
	for i := range 5000 {
		b = append(appendHessianString(b, string(rune('1'+i))), 'Q', 0x92)
	}
	b = append(b, 'Z', 'Z')
	r := &hessianReader{left: b}
	value := r.value()
	if r.err != nil {
		t.Fatal(r.err)
	}
	if _, err := metadataOf(value, nil); err == nil || !strings.Contains(err.Error(), "parameters") {
		t.Errorf("error %v", err)
	}
}

func TestAnswer(t *testing.T) {
	frame := func(flags, status byte, id uint64, body string) []byte {
		b := binary.BigEndian.AppendUint64([]byte{0xda, 0xbb, flags, status}, id)
		return append(binary.BigEndian.AppendUint32(b, uint32(len(body))), body...)
	}
	heartbeat := frame(0xe2, 0, 7, "N")
	status, body, err := answer(bytes.NewReader(append(heartbeat, frame(2, 20, 1, "\x92N")...)))
	if status != 20 || string(body) != "\x92N" || err != nil {
		t.Errorf("answer %d, %q, %v", status, body, err)
	}
	if _, err := decodeAnswer(20, []byte("\x92N")); err == nil || !strings.Contains(err.Error(), "no metadata") {
		t.Errorf("null: %v", err)
	}
	if _, err := decodeAnswer(70, appendHessianString(nil, "it is broken")); err == nil || !strings.Contains(err.Error(), "it is broken") {
		t.Errorf("an error: %v", err)
	}
	for _, bad := range [][]byte{
		[]byte("HTTP/1.1 400 Bad Request\r\n"), frame(2, 20, 1, "x")[:12], frame(6, 20, 1, "{}"), bytes.Repeat(heartbeat, maxEvents+1),
		{0xda, 0xbb, 2, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff},
	} {
		if _, _, err := answer(bytes.NewReader(bad)); err == nil {
			t.Errorf("%.30q is an answer", bad)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	for _, text := range captured {
		b, err := hex.DecodeString(text)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(statusOK), b)
	}
	f.Add(byte(statusOK), []byte("\x92N"))
	f.Add(byte(70), []byte("\x02hi"))
	f.Add(byte(statusOK), []byte("\x94C\x01a\x91\x01b\x60HZZ"))
	f.Fuzz(func(t *testing.T, status byte, b []byte) {
		m, err := decodeAnswer(status, b)
		if err == nil && m.Services == nil {
			t.Error("no services, and no error")
		}
	})
}
