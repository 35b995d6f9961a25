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
var captured = map[string]string{
	"dubbo-go": "944330266f72672e6170616368652e647562626f2e6d657461646174612e4d65746164617461496e666f9403617070087265766973696f6e03746167" +
		"08736572766963657360066f726465727330806633656564373132626232613430333335663366623932306232313239666437343561616632633333" +
		"316266393236396332363032626561356362356136386261373061613261313532613661623530363933626338643536313931383133393062376132" +
		"32623063353361623033633030306336366236343966666137656200481773686f702e506c61696e477265657465723a647562626f4330326f72672e" +
		"6170616368652e647562626f2e6d657461646174612e4d65746164617461496e666f2453657276696365496e666f97046e616d650567726f75700776" +
		"657273696f6e0870726f746f636f6c04706f7274047061746806706172616d73611173686f702e506c61696e47726565746572000005647562626f3c" +
		"88ff1173686f702e506c61696e47726565746572480772656c6561736512647562626f2d676f6c616e672d332e332e320974696d657374616d700a31" +
		"37393537333538323507636c7573746572086661696c6f7665720b6c6f616462616c616e63650672616e646f6d076d6574686f64730b47726565742c" +
		"67726565740677656967687401300b6170706c69636174696f6e066f72646572735a5a48047061746830296f72672e6170616368652e647562626f2e" +
		"6d657461646174612e4d657461646174615365727669636509696e7465726661636530296f72672e6170616368652e647562626f2e6d657461646174" +
		"612e4d65746164617461536572766963650776657273696f6e05312e302e300567726f7570066f726465727305647562626f05322e302e320a6c6f63" +
		"616c2d616464720f3139322e302e322e323a34343135330b72656d6f74652d616464720f3139322e302e322e323a33383038305a4e",
	"java": "944330266f72672e6170616368652e647562626f2e6d657461646174612e4d65746164617461496e666f93087365727669636573087265766973696f" +
		"6e03617070604d30266a6176612e7574696c2e636f6e63757272656e742e436f6e63757272656e74486173684d61701773686f702e506c61696e4772" +
		"65657465723a647562626f4330326f72672e6170616368652e647562626f2e6d657461646174612e4d65746164617461496e666f2453657276696365" +
		"496e666f9706706172616d73047061746804706f72740870726f746f636f6c0776657273696f6e0567726f7570046e616d6561480473696465087072" +
		"6f76696465720772656c6561736505332e332e32076d6574686f64730547726565740a646570726563617465640566616c736505647562626f05322e" +
		"302e3209696e746572666163651173686f702e506c61696e4772656574657214736572766963652d6e616d652d6d617070696e670474727565076765" +
		"6e657269630566616c7365087265766973696f6e01310d6d657461646174612d74797065056c6f63616c0b6170706c69636174696f6e066f72646572" +
		"73147072656665722e73657269616c697a6174696f6e126865737369616e322c666173746a736f6e320764796e616d69630474727565105245474953" +
		"5452595f434c55535445520764656661756c745a1173686f702e506c61696e47726565746572d49e6505647562626f4e4e1173686f702e506c61696e" +
		"477265657465725a30203762623430656163383863623161353431326437363534363563363061623334066f72646572734805647562626f05322e30" +
		"2e325a",
}

func TestCaptured(t *testing.T) {
	for name, text := range captured {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		m, err := decodeAnswer(statusOK, b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s := m.Services["shop.PlainGreeter:dubbo"]
		if m.Application != "orders" || s.Name != "shop.PlainGreeter" || s.Protocol != "dubbo" || s.Port == 0 || s.Params["application"] != "orders" {
			t.Errorf("%s: %+v", name, m)
		}
		for n := range b {
			if m, err := decodeAnswer(statusOK, b[:n]); err == nil && len(m.Services) == 0 {
				t.Errorf("%s: the first %d bytes are an answer without services", name, n)
			}
		}
	}
}

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
