package packages_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sassoftware/go-rpmutils"

	"github.com/proxima-mesh/proxima/tools/release/build"
	"github.com/proxima-mesh/proxima/tools/release/packages"
)

const root = "../../.."

// newPackage with scripts of the shell in place of the binary, which say the version.
func newPackage(t *testing.T, version string) packages.Package {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "proxima")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\necho proxima "+version+" \"$@\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	return packages.Package{
		Root: dir, Platform: build.Platform{OS: "linux", Arch: "amd64"}, Version: version, Time: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Binary: binary, Sidecar: binary,
		Generated: build.Generated{
			Completion: map[string][]byte{"bash": []byte("# bash"), "zsh": []byte("# zsh"), "fish": []byte("# fish")},
			Man:        map[string][]byte{"proxima.1": []byte(".TH PROXIMA 1\n"), "proxima-node.1": []byte(".TH PROXIMA-NODE 1\n")},
		},
	}
}

func write(t *testing.T, p packages.Package, format string) string {
	t.Helper()
	file, err := p.Write(format, t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// run a command, and return what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed: tools/setup installs it", name)
	}
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestReproducible: two packages of equal inputs are equal.
func TestReproducible(t *testing.T) {
	for _, format := range packages.Formats() {
		one, err := os.ReadFile(write(t, newPackage(t, "v1.2.3"), format))
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(write(t, newPackage(t, "v1.2.3"), format))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one, other) {
			t.Errorf("two %s packages differ", format)
		}
	}
}

// installed are all files of a package, with mode, owner and group.
var installed = []string{
	"-rw------- root/root /etc/proxima/control-plane.env",
	"-rw------- root/root /etc/proxima/egress.env",
	"-rw------- root/root /etc/proxima/ingress.env",
	"-rw------- root/root /etc/proxima/node.env",
	"-rwxr-xr-x root/root /usr/bin/proxima",
	"-rwxr-xr-x root/root /usr/bin/proxima-sidecar",
	"-rw-r--r-- root/root /usr/lib/systemd/system/proxima-control-plane.service",
	"-rw-r--r-- root/root /usr/lib/systemd/system/proxima-egress.service",
	"-rw-r--r-- root/root /usr/lib/systemd/system/proxima-ingress.service",
	"-rw-r--r-- root/root /usr/lib/systemd/system/proxima-node.service",
	"-rw-r--r-- root/root /usr/share/bash-completion/completions/proxima",
	"-rw-r--r-- root/root /usr/share/doc/proxima/CHANGELOG.md",
	"-rw-r--r-- root/root /usr/share/doc/proxima/README.md",
	"-rw-r--r-- root/root /usr/share/doc/proxima/copyright",
	"-rw-r--r-- root/root /usr/share/doc/proxima/proxima.yaml",
	"-rw-r--r-- root/root /usr/share/fish/vendor_completions.d/proxima.fish",
	"-rw-r--r-- root/root /usr/share/man/man1/proxima-node.1.gz",
	"-rw-r--r-- root/root /usr/share/man/man1/proxima.1.gz",
	"-rw-r--r-- root/root /usr/share/zsh/vendor-completions/_proxima",
}

func TestDeb(t *testing.T) {
	file := write(t, newPackage(t, "v1.2.3-rc.1"), "deb")
	if name := filepath.Base(file); name != "proxima_1.2.3~rc.1-1_amd64.deb" {
		t.Error(name)
	}
	var got []string
	for line := range strings.Lines(run(t, "dpkg-deb", "-c", file)) {
		fields := strings.Fields(line)
		if name := strings.TrimPrefix(fields[5], "."); !strings.HasSuffix(name, "/") {
			got = append(got, fields[0]+" "+fields[1]+" "+name)
		}
		if fields[3] != "2030-01-02" {
			t.Errorf("another time: %s", line)
		}
	}
	slices.SortFunc(got, func(a, b string) int { return strings.Compare(strings.Fields(a)[2], strings.Fields(b)[2]) })
	if !slices.Equal(got, installed) {
		t.Errorf("it has\n%s", strings.Join(got, "\n"))
	}
	control := run(t, "dpkg-deb", "-f", file)
	for _, want := range []string{"Package: proxima\n", "Version: 1.2.3~rc.1-1\n", "Architecture: amd64\n", "Depends: passwd\n", "Maintainer: "} {
		if !strings.Contains(control, want) {
			t.Errorf("no %q in\n%s", want, control)
		}
	}
	conffiles := run(t, "dpkg-deb", "-I", file, "conffiles")
	if strings.Count(conffiles, "\n") != 4 || !strings.Contains(conffiles, "/etc/proxima/node.env\n") {
		t.Errorf("conffiles:\n%s", conffiles)
	}
}

func TestRPM(t *testing.T) {
	f, err := os.Open(write(t, newPackage(t, "v1.2.3-rc.1"), "rpm"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if name := filepath.Base(f.Name()); name != "proxima-1.2.3~rc.1-1.x86_64.rpm" {
		t.Error(name)
	}
	rpm, err := rpmutils.ReadRpm(f)
	if err != nil {
		t.Fatal(err)
	}
	files, err := rpm.Header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		mode := os.FileMode(f.Mode() & 0o777).String()
		if f.Mode()&0o170000 == 0o040000 { // S_IFDIR, inode(7)
			if f.Name() != "/etc/proxima" || f.Mode()&0o777 != 0o750 || f.GroupName() != packages.User {
				t.Errorf("directory %s %o of group %s", f.Name(), f.Mode(), f.GroupName())
			}
			continue
		}
		got = append(got, mode+" "+f.UserName()+"/"+f.GroupName()+" "+f.Name())
	}
	slices.SortFunc(got, func(a, b string) int { return strings.Compare(strings.Fields(a)[2], strings.Fields(b)[2]) })
	want := slices.Clone(installed)
	want[len(want)-1] = "-rw-r--r-- root/root /usr/share/zsh/site-functions/_proxima"
	if !slices.Equal(got, want) {
		t.Errorf("it has\n%s", strings.Join(got, "\n"))
	}
	for tag, want := range map[int]string{rpmutils.NAME: "proxima", rpmutils.VERSION: "1.2.3~rc.1", rpmutils.ARCH: "x86_64", rpmutils.BUILDHOST: "localhost"} {
		if value, err := rpm.Header.GetString(tag); err != nil || value != want {
			t.Errorf("tag %d: %q, %v", tag, value, err)
		}
	}
}

func TestMissingCompletion(t *testing.T) {
	p := newPackage(t, "v1.2.3")
	delete(p.Generated.Completion, "zsh")
	if _, err := p.Write("deb", t.TempDir(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "zsh") {
		t.Error(err)
	}
}
