package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

func text(s string) *commonv1.AnyValue {
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: s}}
}

// exampleLogs is a request to export logs, which has the form of LogsData.
func exampleLogs(t testing.TB) []byte {
	t.Helper()
	of := func(server string, lines ...string) *logsv1.ResourceLogs {
		out := &logsv1.ResourceLogs{
			Resource:  &resourcev1.Resource{Attributes: []*commonv1.KeyValue{{Key: "other", Value: text("x")}, {Key: LogServer, Value: text(server)}}},
			ScopeLogs: []*logsv1.ScopeLogs{{}},
		}
		for _, l := range lines {
			out.ScopeLogs[0].LogRecords = append(out.ScopeLogs[0].LogRecords, &logsv1.LogRecord{TimeUnixNano: 1, Body: text(l)})
		}
		return out
	}
	data, err := proto.Marshal(&logsv1.LogsData{ResourceLogs: []*logsv1.ResourceLogs{
		of("logs:5000", "one", "two"), {ScopeLogs: []*logsv1.ScopeLogs{{LogRecords: []*logsv1.LogRecord{{Body: text("of nobody")}}}}}, of("[::1]:5001", "three"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestLogs(t *testing.T) {
	t.Parallel()
	got, err := ParseLogs(exampleLogs(t))
	want := []LogLine{{"logs:5000", "one"}, {"logs:5000", "two"}, {"[::1]:5001", "three"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func FuzzLogs(f *testing.F) {
	f.Add(exampleLogs(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines, err := ParseLogs(data)
		for _, l := range lines {
			if l.Server == "" && err == nil {
				t.Error("a line for nobody")
			}
		}
	})
}
