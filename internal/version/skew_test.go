package version

import (
	"strings"
	"testing"
)

func TestCheckSkew(t *testing.T) {
	for _, test := range []struct {
		server, client, want string
	}{
		{"v1.5.0", "v1.5.9", ""},
		{"v1.5.0", "v1.3.0", ""},
		{"v1.5.0", "v1.6.1-rc1", ""},
		{"v1.5.0", "v1.2.9", "upgrade zone a, by way"},
		{"v1.5.0", "v1.7.0", "upgrade this one first, then zone a"},
		{"v2.0.0", "v1.9.0", "upgrade zone a, by way"},
		{"v1.9.0", "v2.0.0", "upgrade this one first"},
		{"v1.5.0", "", ""},
		{"v1.5.0", "devel", ""},
		{"devel", "v9.9.9", ""},
	} {
		err := CheckSkew(test.server, "zone a", test.client)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("CheckSkew(%s, %s) = %v, want %q", test.server, test.client, err, test.want)
		}
	}
}
