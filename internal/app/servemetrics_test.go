package app

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestServeMetrics: of the collector and the process, until the end; an address that is in use names the flag.
func TestServeMetrics(t *testing.T) {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t)))
	c := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "test_value", Help: "A value."}, func() float64 { return 7 })
	log := slog.New(slog.DiscardHandler)
	end, err := ServeMetrics("--metrics-address", address, log, c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ServeMetrics("--metrics-address", address, log, c); err == nil {
		t.Error("an address that is in use is taken")
	}
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	for _, want := range []string{"test_value 7", "go_goroutines", "process_start_time_seconds"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%s is missing in %.300s", want, body)
		}
	}
	end()
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Error("it is served after the end")
	}
}
