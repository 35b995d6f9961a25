package conntrack

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name, text string) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || strings.TrimSpace(string(got)) != text {
			t.Errorf("%s is %q, %v, want %s", name, got, err, text)
		}
	}
	write("nf_conntrack_max", "262144\n")
	write("nf_conntrack_tcp_timeout_established", "432000\n")
	write("nf_conntrack_udp_timeout", "30\n")
	write("nf_conntrack_tcp_be_liberal", "0\n")
	limits := Limits{Max: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour, UDP: 30 * time.Second, TCPBeLiberal: true}
	changed, err := limits.Apply(dir)
	// A setting that the kernel does not have is an error, and the others are made.
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "nf_conntrack_tcp_timeout_close_wait") || len(changed) != 2 {
		t.Errorf("changed %q, %v", changed, err)
	}
	want("nf_conntrack_max", "262144") // never lowered
	want("nf_conntrack_tcp_timeout_established", "86400")
	want("nf_conntrack_udp_timeout", "30")
	want("nf_conntrack_tcp_be_liberal", "1")
	if changed, err := (Limits{Max: 524288}).Apply(dir); err != nil || len(changed) != 1 {
		t.Errorf("changed %q, %v", changed, err)
	}
	want("nf_conntrack_max", "524288")
	if changed, err := (Limits{}).Apply(dir); err != nil || len(changed) > 0 {
		t.Errorf("nothing was asked for, and %q changed, %v", changed, err)
	}
	write("nf_conntrack_count", "17\n")
	if flows, limit, err := Use(dir); flows != 17 || limit != 524288 || err != nil {
		t.Errorf("%d of %d, %v", flows, limit, err)
	}
}
