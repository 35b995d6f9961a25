package cli

import (
	"os"
	"os/exec"
	"runtime"
)

// browserCommand that opens a file; nil: none is known.
func browserCommand() []string {
	var all [][]string
	switch runtime.GOOS {
	case "darwin":
		all = [][]string{{"open"}}
	case "windows":
		all = [][]string{{"rundll32", "url.dll,FileProtocolHandler"}}
	default:
		if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
			return nil
		}
		all = [][]string{{"xdg-open"}, {"sensible-browser"}}
	}
	for _, c := range all {
		if path, err := exec.LookPath(c[0]); err == nil {
			return append([]string{path}, c[1:]...)
		}
	}
	return nil
}
