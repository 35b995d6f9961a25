package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func exampleSettings() SupervisorSettings {
	return SupervisorSettings{
		Metrics: &MetricsSettings{
			Port: 65535, Path: "/m", MTLS: true, Include: "^envoy_", Exclude: "_bucket$",
			Apps: []AppSettings{{Name: "web", Port: 9100, Path: "/metrics"}, {Port: 1}},
		},
		Probes: []ProbeSettings{{Path: "/live", Kind: "http", Port: 8080, Target: "/healthz"}, {Path: "/db", Kind: "tcp", Port: 5432}},
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, want := range []SupervisorSettings{{}, {Metrics: &MetricsSettings{}}, exampleSettings()} {
		got, err := ParseSettings(want.Append(nil))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	tooLarge := appendBytes(nil, 1, appendNumber(nil, 1, 1<<16))
	if _, err := ParseSettings(tooLarge); err == nil {
		t.Error("port 65536 is taken")
	}
}

func FuzzSettings(f *testing.F) {
	s := exampleSettings()
	f.Add(s.Append(nil))
	f.Add([]byte{0x0a, 0x02, 0x08})
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := ParseSettings(data)
		if err != nil {
			return
		}
		second, err := ParseSettings(first.Append(nil))
		if diff := cmp.Diff(first, second); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}
