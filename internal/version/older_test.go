package version

import "testing"

func TestOlder(t *testing.T) {
	for _, test := range []struct {
		one, than string
		want      bool
	}{
		{"v1.2.3", "v1.2.4", true}, {"1.2.3", "v1.10.0", true}, {"v1.2.3", "v1.2.3", false}, {"v1.3.0", "v1.2.9", false},
		{"v1.2.3-rc.1", "v1.2.3", true}, {"devel", "v1.2.3", false}, {"v1.2.3", "devel", false}, {"", "v1.2.3", false},
	} {
		if got := Older(test.one, test.than); got != test.want {
			t.Errorf("%q older than %q: %v", test.one, test.than, got)
		}
	}
}
