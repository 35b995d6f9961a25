package packages_test

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/tools/release/build"
	"github.com/proxima-mesh/proxima/tools/release/build/buildtest"
)

// boot makes a copy of this machine's files in namespaces, installs a package there, and
// starts systemd as its first process.
//
//go:embed testdata/boot.sh
var boot string

// units is the script that systemd runs then.
//
//go:embed testdata/units.sh
var units string

// TestInstalledUnits: systemd itself starts the units of an installed package, within their
// bounds; a control plane, an agent in the nftables mode and both gateways serve.
func TestInstalledUnits(t *testing.T) {
	if os.Getenv("PROXIMA_RELEASE") == "" {
		t.Skip("systemd is started by make release-check")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: systemd is started in namespaces")
	}
	p := newPackage(t, "v1.2.3")
	p.Binary, p.Platform = buildtest.Binary(t, root), build.Host()
	out := filepath.Join(t.TempDir(), "out")
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", boot)
	cmd.Env = append(os.Environ(), "WORK="+t.TempDir(), "DEB="+write(t, p, "deb"), "SCRIPT="+units, "OUT="+out)
	log, err := cmd.CombinedOutput()
	said, readErr := os.ReadFile(out)
	if err != nil || readErr != nil || !strings.HasSuffix(string(said), "all units served\n") {
		t.Fatalf("%v, %v\n%s\n%s", err, readErr, log, said)
	}
	t.Logf("%s", said)
}
