package cli

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// TestManPages: every command has a page, with its flags, that groff reads without a warning.
func TestManPages(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("groff is not installed: the pages are not formatted")
	}
	pages := manPages(newRoot(&settings{}))
	if len(pages) < 50 {
		t.Errorf("%d pages are too few", len(pages))
	}
	for name, want := range map[string][]string{
		"proxima.1":              {`.BR proxima\-control\-plane (1)`, `.B \-\-data\-dir`},
		"proxima-node.1":         {`.TH "PROXIMA-NODE" 1 "" "proxima v`, `.BR proxima\-node\-drain (1)`, `.SH OPTIONS OF ALL COMMANDS`, `Default: 10256.`},
		"proxima-node-drain.1":   {`.B proxima node drain`, `.BR proxima\-node (1)`, `.BR proxima\-docs (1)`},
		"proxima-completion.1":   {".nf\n# bash, with", `"${fpath[1]}/_proxima"`},
		"proxima-zone-shift.1":   {`.SH DESCRIPTION`},
		"proxima-token-create.1": {`.B \-\-kind`},
	} {
		page, ok := pages[name]
		if !ok {
			t.Errorf("there is no %s", name)
		}
		for _, text := range want {
			if !strings.Contains(string(page), text) {
				t.Errorf("%s has no %q:\n%s", name, text, page)
			}
		}
	}
	for name, page := range pages {
		for _, b := range page {
			if b > 0x7e || b < ' ' && b != '\n' {
				t.Errorf("%s has byte %#x", name, b)
				break
			}
		}
		if groff == "" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), groff, "-man", "-Tutf8", "-ww", "-z")
		cmd.Stdin = bytes.NewReader(page)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if _, ok := pages["proxima-reference.1"]; ok {
		t.Error("a hidden command has a page")
	}
}

func TestRoff(t *testing.T) {
	for text, want := range map[string]string{
		`a-b\c`:    `a\-b\ec`,
		".5 of it": `\&.5 of it`,
		"'quoted'": `\&'quoted'`,
		"NAME…":    `NAME\[u2026]`,
	} {
		if got := roffLine(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
