package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	sidecarv1 "github.com/proxima-mesh/proxima/api/sidecar/v1"
)

// TestCalls: the messages are those of the generated code.
func TestCalls(t *testing.T) {
	for _, want := range []Call{{ID: 7, Question: AskLogging, Argument: "upstream=debug"}, {ID: 1 << 40, Cancelled: true}, {}} {
		data, err := proto.Marshal(&sidecarv1.Call{Id: want.ID, Question: want.Question, Argument: want.Argument, Cancelled: want.Cancelled})
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseCall(data)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("call %v: %v, %s", want, err, diff)
		}
	}
	for _, test := range []struct {
		answer Answer
		want   *sidecarv1.Answer
	}{
		{Answer{Node: "default/shop/web-1", Version: "1.2.3"}, &sidecarv1.Answer{Hello: &sidecarv1.Hello{Node: "default/shop/web-1", Version: "1.2.3"}}},
		{Answer{ID: 3, Part: []byte("x"), Last: true}, &sidecarv1.Answer{Id: 3, Part: []byte("x"), Last: true}},
		{Answer{ID: 3, Last: true, Code: 14, Message: "gone"}, &sidecarv1.Answer{Id: 3, Last: true, Code: 14, Message: "gone"}},
	} {
		var got sidecarv1.Answer
		if err := proto.Unmarshal(test.answer.Append(nil), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, &got, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	}
}

func FuzzParseCall(f *testing.F) {
	f.Add([]byte{0x08, 0x07, 0x12, 0x06, 's', 't', 'a', 't', 'u', 's'})
	f.Fuzz(func(t *testing.T, data []byte) {
		call, err := ParseCall(data)
		if err == nil && call.ID == 0 && call.Question == "" && len(data) == 0 && call.Cancelled {
			t.Fatal("a call of nothing is cancelled")
		}
	})
}
