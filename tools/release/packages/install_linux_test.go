package packages_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// throwaway runs a script of the shell as root of a copy of this machine's files, which is
// gone with it: an overlay in a mount namespace, without a network. The packages are /one and
// /two there.
func throwaway(t *testing.T, one, two, script string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: packages are installed in a copy of this machine's files")
	}
	work := t.TempDir()
	const setup = `set -e
mount -t tmpfs tmpfs "$WORK"
mkdir "$WORK/upper" "$WORK/work" "$WORK/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$WORK/upper,workdir=$WORK/work" "$WORK/root" || exit 77
mount -t proc proc "$WORK/root/proc"
mount -t tmpfs tmpfs "$WORK/root/run"
mount --rbind /dev "$WORK/root/dev"
cp "$ONE" "$WORK/root/one"
cp "$TWO" "$WORK/root/two"
exec chroot "$WORK/root" sh -e -c "$SCRIPT"
`
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "--ipc", "--propagation", "private", "sh", "-c", setup)
	cmd.Env = append(os.Environ(), "WORK="+work, "ONE="+one, "TWO="+two, "SCRIPT="+script, "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 77 {
		t.Skipf("this machine's kernel has no overlay of its root: %s", complaints.String())
	}
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, complaints.String())
	}
	return string(out)
}

// facts is a function of the shell that says what there is of the package.
const facts = `
facts() {
	echo "$1: $(proxima version 2>/dev/null || echo no command)"
	stat -c '  %n %A %U:%G' /etc/proxima /var/lib/proxima /var/lib/proxima/node 2>/dev/null || true
	echo "  user $(id -un proxima 2>/dev/null || echo none), state $(cat /var/lib/proxima/store.db 2>/dev/null || echo none), setting $(sed -n 's/^PROXIMA_ZONE=//p' /etc/proxima/node.env 2>/dev/null || true)"
}
`

// TestInstalledDeb: what an upgrade keeps, what a removal keeps, and what a purge deletes.
func TestInstalledDeb(t *testing.T) {
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("this machine has no dpkg")
	}
	out := throwaway(t, write(t, newPackage(t, "v1.2.3"), "deb"), write(t, newPackage(t, "v1.3.0"), "deb"), facts+`
dpkg --no-triggers --force-unsafe-io -i /one >&2
facts installed
echo PROXIMA_ZONE=zone-a >>/etc/proxima/node.env
echo precious >/var/lib/proxima/store.db
dpkg --no-triggers --force-unsafe-io -i /two >&2
facts upgraded
dpkg --no-triggers --force-unsafe-io -i /one >&2
facts downgraded
dpkg --no-triggers --force-unsafe-io -r proxima >&2
facts removed
dpkg --no-triggers --force-unsafe-io -i /two >&2
facts again
dpkg --no-triggers --force-unsafe-io -P proxima >&2
facts purged
`)
	const there = `
  /etc/proxima drwxr-x--- root:proxima
  /var/lib/proxima drwxrwx--T root:proxima
  /var/lib/proxima/node drwx------ root:root
`
	want := "installed: proxima v1.2.3 version" + there + "  user proxima, state none, setting \n" +
		"upgraded: proxima v1.3.0 version" + there + "  user proxima, state precious, setting zone-a\n" +
		"downgraded: proxima v1.2.3 version" + there + "  user proxima, state precious, setting zone-a\n" +
		"removed: no command" + there + "  user proxima, state precious, setting zone-a\n" +
		"again: proxima v1.3.0 version" + there + "  user proxima, state precious, setting zone-a\n" +
		"purged: no command\n  user none, state none, setting \n"
	if diff := cmp.Diff(want, out); diff != "" {
		t.Error(diff)
	}
}

// TestInstalledRPM: the same, but for the purge, which rpm does not have.
func TestInstalledRPM(t *testing.T) {
	if _, err := exec.LookPath("rpm"); err != nil {
		if os.Getenv("PROXIMA_RELEASE") != "" {
			t.Fatal("rpm is not installed: tools/setup release")
		}
		t.Skip("rpm is not installed; make release-check installs it")
	}
	// What rpm would ask of its own database is Debian's here.
	out := throwaway(t, write(t, newPackage(t, "v1.2.3"), "rpm"), write(t, newPackage(t, "v1.3.0"), "rpm"), facts+`
rpm -i --nodeps /one >&2
facts installed
rpm -V --nodeps proxima >&2
echo PROXIMA_ZONE=zone-a >>/etc/proxima/node.env
echo precious >/var/lib/proxima/store.db
rpm -U --nodeps /two >&2
facts upgraded
rpm -e --nodeps proxima >&2
echo "removed: $(command -v proxima || echo no command), state $(cat /var/lib/proxima/store.db), $(ls /etc/proxima)"
`)
	const there = `
  /etc/proxima drwxr-x--- root:proxima
  /var/lib/proxima drwxrwx--T root:proxima
  /var/lib/proxima/node drwx------ root:root
`
	want := "installed: proxima v1.2.3 version" + there + "  user proxima, state none, setting \n" +
		"upgraded: proxima v1.3.0 version" + there + "  user proxima, state precious, setting zone-a\n" +
		"removed: no command, state precious, node.env.rpmsave\n"
	if diff := cmp.Diff(want, out); diff != "" {
		t.Error(diff)
	}
}

// TestContentOfBinary: a package has the bytes of the binary that it was given.
func TestContentOfBinary(t *testing.T) {
	p := newPackage(t, "v1.2.3")
	dir := t.TempDir()
	run(t, "dpkg-deb", "-x", write(t, p, "deb"), dir)
	want, err := os.ReadFile(p.Binary)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "usr", "bin", "proxima"))
	if err != nil || string(got) != string(want) {
		t.Errorf("%q, %v", got, err)
	}
}
