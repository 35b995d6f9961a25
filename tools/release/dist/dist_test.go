package dist

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/release"
	"github.com/proxima-mesh/proxima/tools/release/build"
)

// program builds one that does nothing, as only its build information counts.
func program(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	err := errors.Join(os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.test/program\n\ngo 1.26\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", "program", ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, "program"))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// newRelease of a program in place of the product.
func newRelease(t *testing.T, content []byte, key *release.Key) *Release {
	t.Helper()
	work := t.TempDir()
	for _, p := range build.Platforms() {
		name := "proxima"
		if p.OS == "windows" {
			name = "proxima.exe"
		}
		dir := filepath.Join(work, p.OS+"-"+p.Arch)
		err := errors.Join(
			os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), content, 0o600),
			os.WriteFile(filepath.Join(dir, "proxima-sidecar"), content, 0o600),
		)
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return &Release{
		Source: build.Source{Root: root, Version: "v1.2.3", Commit: "c0ffee", Time: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)},
		Work:   work, ImageName: "ghcr.io/proxima-mesh/proxima", Builder: "https://example.test/builder", Key: key, Log: io.Discard,
		generated: &build.Generated{
			Completion: map[string][]byte{"bash": []byte("# bash"), "zsh": []byte("# zsh"), "fish": []byte("# fish")},
			Man:        map[string][]byte{"proxima.1": []byte(".TH PROXIMA 1\n")},
		},
	}
}

func newKey(t *testing.T) *release.Key {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := release.ParseKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, e := range entries {
		if out[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestAll: a release has every file that it should, and it verifies. That two are equal,
// make release-check tries, and the packages beside this one by part.
func TestAll(t *testing.T) {
	key := newKey(t)
	dir := filepath.Join(t.TempDir(), "dist")
	// What earlier builds left, an interrupted one, too.
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "image", "layout"), 0o755), os.WriteFile(filepath.Join(dir, "proxima_v1.2.2_image.tar"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if err := newRelease(t, program(t), key).All(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	got := files(t, dir)
	want := []string{release.SumsName}
	for _, name := range []string{
		"proxima-1.2.3-1.aarch64.rpm", "proxima-1.2.3-1.x86_64.rpm", "proxima_1.2.3-1_amd64.deb", "proxima_1.2.3-1_arm64.deb", "proxima_v1.2.3_image.tar", "proxima-sidecar_v1.2.3_image.tar",
		"proxima_v1.2.3_darwin_amd64.tar.gz", "proxima_v1.2.3_darwin_arm64.tar.gz", "proxima_v1.2.3_linux_amd64.tar.gz",
		"proxima_v1.2.3_linux_arm64.tar.gz", "proxima_v1.2.3_windows_amd64.zip", "proxima_v1.2.3_darwin_amd64.cdx.json",
		"proxima_v1.2.3_darwin_arm64.cdx.json", "proxima_v1.2.3_linux_amd64.cdx.json", "proxima_v1.2.3_linux_arm64.cdx.json", "proxima_v1.2.3_windows_amd64.cdx.json",
	} {
		want = append(want, name, name+release.SignedSuffix)
	}
	signed := (len(want) - 1) / 2 // each with its statement
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Error(diff)
	}
	report, err := release.Verify(dir, key.Public())
	if err != nil || report.Err() != nil {
		t.Fatal(err, report.Err())
	}
	if report.Version != "v1.2.3" || report.Commit != "c0ffee" || report.Builder != "https://example.test/builder" || !report.Signed || len(report.Files) != signed {
		t.Errorf("%+v", report)
	}
	checkArchives(t, got)
}

func checkArchives(t *testing.T, files map[string][]byte) {
	t.Helper()
	in, err := gzip.NewReader(bytes.NewReader(files["proxima_v1.2.3_linux_amd64.tar.gz"]))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.TrimPrefix(h.Name, "proxima_v1.2.3/"))
	}
	want := []string{
		"", "CHANGELOG.md", "LICENSE", "README.md", "completion/", "completion/proxima.bash", "completion/proxima.fish", "completion/proxima.zsh",
		"man/", "man/proxima.1", "proxima", "proxima-sidecar",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	data := files["proxima_v1.2.3_windows_amd64.zip"]
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	if len(z.File) != 5 || z.File[4].Name != "proxima_v1.2.3/proxima.exe" {
		t.Errorf("%d files in the zip file", len(z.File))
	}
}

// TestFilesOfOthers: a release is not written in place of something else.
func TestFilesOfOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := newRelease(t, nil, nil).All(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "files of others, as thesis") {
		t.Error(err)
	}
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("%d files are left", len(got))
	}
}

// TestUnsigned: without a key the statements are plain, and one about changed files names no
// commit.
func TestUnsigned(t *testing.T) {
	r := newRelease(t, nil, nil)
	r.Source.Changed = true
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.imageConfig().Commit; got != "c0ffee+changes" {
		t.Errorf("the image is of commit %s", got)
	}
	if err := r.vouch(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	report, err := release.Verify(dir, nil)
	if err != nil || report.Err() != nil || report.Signed || report.Commit != "" {
		t.Errorf("%+v, %v", report, err)
	}
	s, err := release.ParseStatement(files(t, dir)["a"+release.UnsignedSuffix])
	if err != nil {
		t.Fatal(err)
	}
	d := s.Predicate.BuildDefinition
	if d.ExternalParameters.Version != "v1.2.3" || d.InternalParameters.Environment["CGO_ENABLED"] != "0" || len(d.ResolvedDependencies) != 3 || d.ResolvedDependencies[1].Name != "go.sum" {
		t.Errorf("%+v", d)
	}
}
