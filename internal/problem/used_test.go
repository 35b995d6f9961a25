package problem_test

import (
	"io/fs"
	"os"
	"regexp"
	"testing"
)

// TestCodesAreUsed: the reference has no code that the program never reports.
func TestCodesAreUsed(t *testing.T) {
	used := map[string]bool{}
	word := regexp.MustCompile(`problem\.([A-Z]\w*)`)
	err := fs.WalkDir(os.DirFS("../.."), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !regexp.MustCompile(`^(internal|cmd)/.*\.go$`).MatchString(path) || regexp.MustCompile(`_test\.go$`).MatchString(path) {
			return err
		}
		data, err := os.ReadFile("../../" + path)
		for _, m := range word.FindAllSubmatch(data, -1) {
			used[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, code := range declared(t) {
		if !used[name] {
			t.Errorf("%s (%s) is reported nowhere", name, code)
		}
	}
}
