package frame

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var sample = Stream{
	Client:      netip.MustParseAddrPort("10.1.2.3:40001"),
	Node:        "node-1",
	Identity:    "spiffe://mesh.example/ns/default/sa/web",
	Destination: netip.MustParseAddrPort("[fd00:240::7]:443"),
}

// TestLayout pins the bytes: the protocol is what other versions speak.
func TestLayout(t *testing.T) {
	b, err := AppendOpen(nil, Stream{
		Client: netip.MustParseAddrPort("10.1.2.3:258"), Node: "n", Identity: "i", Destination: netip.MustParseAddrPort("[::1]:3"),
	})
	if err != nil {
		t.Fatal(err)
	}
	b = AppendEmpty(b, OK)
	b = AppendReason(b, Refused, Unreachable, "no")
	b = AppendData(b, []byte("xyz"))
	b = AppendEmpty(b, Fin)
	b = AppendReason(b, Reset, EndpointReset, "")
	b = AppendReason(b, GoAway, Draining, "")
	want := "\x01\x00\x00\x26" +
		"\x01\x00\x06\x0a\x01\x02\x03\x01\x02" + "\x02\x00\x01n" + "\x03\x00\x01i" +
		"\x04\x00\x12\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x03" +
		"\x02\x00\x00\x00" + "\x03\x00\x00\x03\x03no" + "\x04\x00\x00\x03xyz" + "\x05\x00\x00\x00" +
		"\x06\x00\x00\x01\x07" + "\x07\x00\x00\x01\x04"
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Error(diff)
	}
}

// event is a whole frame.
type event struct {
	Type Type
	Body string
}

// decode feeds b in pieces of the given size.
func decode(b []byte, piece int) (events []event, err error) {
	var d Decoder
	var data []byte
	flush := func() {
		if len(data) > 0 {
			events = append(events, event{Data, string(data)})
			data = nil
		}
	}
	for len(b) > 0 {
		p := b[:min(piece, len(b))]
		b = b[len(p):]
		for len(p) > 0 {
			typ, body, n, err := d.Next(p)
			if err != nil {
				return events, err
			}
			p = p[n:]
			switch typ {
			case 0:
			case Data:
				data = append(data, body...)
			default:
				flush()
				events = append(events, event{typ, string(body)})
			}
		}
	}
	flush()
	if !d.Between() {
		return events, errors.New("ends within a frame")
	}
	return events, nil
}

func TestDecoderHoweverItIsCut(t *testing.T) {
	b, err := AppendOpen(nil, sample)
	if err != nil {
		t.Fatal(err)
	}
	b = AppendEmpty(b, OK)
	b = AppendData(b, []byte("first"))
	b = AppendReason(b, Refused, NoRoute, "text")
	b = AppendData(b, bytes.Repeat([]byte("x"), MaxData+1))
	b = AppendEmpty(b, Fin)
	want, err := decode(b, len(b))
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != 6 || want[4].Type != Data || len(want[4].Body) != MaxData+1 || want[5].Type != Fin {
		t.Fatalf("%d events", len(want))
	}
	got, err := ParseOpen([]byte(want[0].Body))
	if err != nil || got != sample {
		t.Errorf("OPEN became %+v, %v", got, err)
	}
	reason, err := ParseReason(Refused, []byte(want[3].Body))
	if err != nil || reason.Reason != NoRoute || reason.Text != "text" {
		t.Errorf("REFUSED became %+v, %v", reason, err)
	}
	for _, piece := range []int{1, 2, 3, 5, 7, 1000, 16384} {
		got, err := decode(b, piece)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pieces of %d: %s", piece, diff)
		}
	}
}

func TestDecoderRefuses(t *testing.T) {
	for name, b := range map[string]string{
		"type 0":              "\x00\x00\x00\x00",
		"unknown type":        "\x08\x00\x00\x00",
		"empty DATA":          "\x04\x00\x00\x00",
		"DATA too long":       "\x04\x04\x00\x01",
		"OPEN too long":       "\x01\x00\x10\x01",
		"empty OPEN":          "\x01\x00\x00\x00",
		"OK with a body":      "\x02\x00\x00\x01x",
		"FIN with a body":     "\x05\x00\x00\x01x",
		"RST without reason":  "\x06\x00\x00\x00",
		"REFUSED too long":    "\x03\x00\x01\x01",
		"an HTTP request":     "GET / HTTP/1.1\r\n",
		"GOAWAY without body": "\x07\x00\x00\x00",
	} {
		if _, err := decode([]byte(b), 1); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseOpenRefuses(t *testing.T) {
	client := "\x01\x00\x06\x0a\x01\x02\x03\x01\x02"
	for name, body := range map[string]string{
		"no client":           "\x02\x00\x01n",
		"twice":               client + client,
		"cut field":           client + "\x02\x00\x05n",
		"cut header":          client + "\x02\x00",
		"short address":       "\x01\x00\x05\x0a\x01\x02\x03\x01",
		"long node":           client + "\x02\x00\xfe" + strings.Repeat("n", 254),
		"control character":   client + "\x02\x00\x02n\n",
		"identity not UTF-8":  client + "\x03\x00\x01\xff",
		"destination, 0 byte": client + "\x04\x00\x00",
	} {
		if _, err := ParseOpen([]byte(body)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s, err := ParseOpen([]byte(client + "\x63\x00\x02??")); err != nil || !s.Client.IsValid() {
		t.Errorf("an unknown field is not skipped: %v", err)
	}
}

func TestAppendOpenRefuses(t *testing.T) {
	for name, s := range map[string]Stream{
		"no client":     {},
		"long node":     {Client: sample.Client, Node: strings.Repeat("n", 254)},
		"long identity": {Client: sample.Client, Identity: strings.Repeat("n", 2049)},
	} {
		if _, err := AppendOpen(nil, s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestReasonText(t *testing.T) {
	b := AppendReason(nil, Reset, Broken, strings.Repeat("x", 1000))
	events, err := decode(b, len(b))
	if err != nil || len(events) != 1 || len(events[0].Body) != 1+MaxText {
		t.Errorf("a long text: %v, %v", events, err)
	}
	for _, r := range append(Reasons(), 200) {
		if r.String() == "" {
			t.Errorf("reason %d has no name", r)
		}
	}
	if got := (&Error{Type: Refused, Reason: NoRoute, Text: "a\nb"}).Error(); strings.Contains(got, "\n") {
		t.Errorf("a peer's text breaks a log line: %q", got)
	}
}

func FuzzParseOpen(f *testing.F) {
	b, err := AppendOpen(nil, sample)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[HeaderSize:])
	f.Add([]byte("\x01\x00\x06\x0a\x01\x02\x03\x01\x02\x63\x00\x02??"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := ParseOpen(body)
		if err != nil {
			return
		}
		b, err := AppendOpen(nil, s)
		if err != nil {
			t.Fatalf("%+v cannot be encoded: %v", s, err)
		}
		again, err := ParseOpen(b[HeaderSize:])
		if err != nil || again != s {
			t.Errorf("%+v became %+v, %v", s, again, err)
		}
	})
}

func FuzzDecoder(f *testing.F) {
	b, err := AppendOpen(nil, sample)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(AppendReason(AppendData(AppendEmpty(b, OK), []byte("data")), Reset, Broken, "x"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		want, wantErr := decode(b, max(len(b), 1))
		got, gotErr := decode(b, int(piece)+1)
		if (wantErr == nil) != (gotErr == nil) {
			t.Fatalf("whole: %v; in pieces of %d: %v", wantErr, piece, gotErr)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); wantErr == nil && diff != "" {
			t.Error(diff)
		}
		for _, e := range want {
			if len(e.Body) > max(MaxOpen, 1+MaxText) && e.Type != Data {
				t.Errorf("%s of %d bytes", e.Type, len(e.Body))
			}
		}
	})
}
