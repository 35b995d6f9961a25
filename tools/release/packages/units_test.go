package packages_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/tools/release/packages"
)

// exposure is the most that "systemd-analyze security" may say of a unit, of 10. The agent
// changes the kernel's rules and parameters.
var exposure = map[string]string{
	"proxima-control-plane": "3.0", "proxima-ingress": "3.0", "proxima-egress": "3.0", "proxima-node": "5.0",
}

// TestUnits: systemd finds no mistake in a unit, and it is as hardened as it is said to be.
func TestUnits(t *testing.T) {
	for _, unit := range packages.Units() {
		t.Run(unit, func(t *testing.T) {
			file := filepath.Join(root, "packaging", "systemd", unit+".service")
			checkUnit(t, file)
			threshold := strings.ReplaceAll(exposure[unit], ".", "")
			out := run(t, "systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold="+threshold, file)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			t.Log(lines[len(lines)-1])
		})
	}
}

// checkUnit verifies a unit beside a command and settings in their places, which it does not
// need on this machine.
func checkUnit(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(data), "/usr/bin/proxima", "/bin/true")
	copied := filepath.Join(t.TempDir(), filepath.Base(file))
	if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := run(t, "systemd-analyze", "verify", "--man=no", copied); strings.Contains(out, filepath.Base(file)) {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
}

// TestSettings: what is set, or suggested, in the file of a unit is an option of its command.
func TestSettings(t *testing.T) {
	commands, err := os.ReadFile(filepath.Join(root, "docs", "reference", "commands.md"))
	if err != nil {
		t.Fatal(err)
	}
	assignment := regexp.MustCompile(`(?m)^#?(PROXIMA_[A-Z_]+)=(\S+)$`)
	for _, unit := range packages.Units() {
		command := strings.TrimPrefix(unit, "proxima-")
		_, section, found := strings.Cut(string(commands), "\n## proxima "+command+"\n")
		if !found {
			t.Fatalf("the reference has no proxima %s", command)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		settings, err := os.ReadFile(filepath.Join(root, "packaging", "etc", command+".env"))
		if err != nil {
			t.Fatal(err)
		}
		all := assignment.FindAllStringSubmatch(string(settings), -1)
		if len(all) < 4 {
			t.Errorf("%s: %d settings", command, len(all))
		}
		all = append(all, assignment.FindAllStringSubmatch(example(t, command+".env"), -1)...)
		for _, one := range all {
			name := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(one[1], "PROXIMA_")), "_", "-")
			if name != "data-dir" && !strings.Contains(section, "`--"+name+"`") {
				t.Errorf("%s.env: proxima %s has no option --%s", command, command, name)
			}
		}
	}
}

// example of a file of settings in the page for users; empty if it has none.
func example(t *testing.T, file string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "how-to", "install-packages.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "<!-- test: "+file+" -->\n```\n")
	text, _, _ = strings.Cut(text, "```")
	return text
}

// TestScripts: every shell reads them.
func TestScripts(t *testing.T) {
	for _, format := range packages.Formats() {
		scripts, err := filepath.Glob(filepath.Join(root, "packaging", format, "*"))
		if err != nil || len(scripts) < 3 {
			t.Fatal(scripts, err)
		}
		for _, script := range scripts {
			if out, err := exec.CommandContext(t.Context(), "sh", "-n", script).CombinedOutput(); err != nil {
				t.Errorf("%s: %v %s", script, err, out)
			}
		}
	}
}
