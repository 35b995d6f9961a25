package ranges

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzRead: what is read of ranges.json are prefixes, or it is damaged.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`["10.96.0.0/16","fd00:96::/108"]`, `[]`, `null`, `[""]`, `["10.96.0.1/33"]`, `["::ffff:10.96.0.0/112"]`, `["fe80::1%eth0/64"]`, `[1]`, `{}`, ``,
	} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, fileName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		ranges, err := Read(dir)
		if err != nil && ranges != nil {
			t.Errorf("%v with error %v", ranges, err)
		}
		for _, p := range ranges {
			if !p.IsValid() {
				t.Errorf("%q: prefix %v", data, p)
			}
		}
	})
}
