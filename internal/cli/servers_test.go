package cli

import (
	"slices"
	"strings"
	"testing"
)

func TestParseServers(t *testing.T) {
	got, err := parseServers([]string{"10.0.0.1:6443", " https://10.0.0.2:6443/", "10.0.0.1:6443", "[2001:db8::1]:6443"})
	if want := []string{"10.0.0.1:6443", "10.0.0.2:6443", "[2001:db8::1]:6443"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"cp.example", ":6443", "cp.example:", ""} {
		if _, err := parseServers([]string{"10.0.0.1:6443", bad}); err == nil || !strings.Contains(err.Error(), "--server") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
