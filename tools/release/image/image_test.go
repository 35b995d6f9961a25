package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/proxima-mesh/proxima/tools/release/build"
	"github.com/proxima-mesh/proxima/tools/release/image"
)

var config = image.Config{
	Name: "ghcr.io/proxima-mesh/proxima", Version: "v1.2.3", Commit: "c0ffee", Time: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
}

// newIndex of images with a text in place of the binary.
func newIndex(t *testing.T) v1.ImageIndex {
	t.Helper()
	images := map[build.Platform]v1.Image{}
	for _, p := range build.Servers() {
		file := filepath.Join(t.TempDir(), "binary")
		if err := os.WriteFile(file, []byte("binary for "+p.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if images[p], err = image.New(config, p, file); err != nil {
			t.Fatal(err)
		}
	}
	return image.Index(config, images)
}

// written returns the files of a layout.
func written(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		out[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestReproducible: two layouts of equal binaries are equal, and so are their tar files.
func TestReproducible(t *testing.T) {
	one, other := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	var first, second bytes.Buffer
	err := errors.Join(image.Write(one, config, newIndex(t)), image.Write(other, config, newIndex(t)),
		image.WriteArchive(&first, one, config.Time), image.WriteArchive(&second, other, config.Time))
	if err != nil {
		t.Fatal(err)
	}
	a, b := written(t, one), written(t, other)
	if len(a) != 9 || fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("two layouts of %d and %d files differ", len(a), len(b))
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two tar files differ")
	}
	// In place of another one.
	if err := image.Write(one, config, newIndex(t)); err != nil || len(written(t, one)) != len(a) {
		t.Errorf("a layout is not replaced: %v", err)
	}
}

// TestLayout: what other tools read from it.
func TestLayout(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	if err := image.Write(dir, config, newIndex(t)); err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	top, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" ||
		top.Manifests[0].Annotations["io.containerd.image.name"] != "ghcr.io/proxima-mesh/proxima:v1.2.3" {
		t.Fatalf("%+v", top.Manifests)
	}
	inner, err := index.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := inner.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, d := range manifest.Manifests {
		platforms = append(platforms, d.Platform.String())
		checkImage(t, inner, d)
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Error(platforms)
	}
}

func checkImage(t *testing.T, index v1.ImageIndex, d v1.Descriptor) {
	t.Helper()
	img, err := index.Image(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := file.Config
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/usr/bin/proxima"}) || file.OS+"/"+file.Architecture != d.Platform.String() {
		t.Errorf("%+v", file)
	}
	for label, want := range map[string]string{
		"version": "v1.2.3", "revision": "c0ffee", "created": "2030-01-02T03:04:05Z", "licenses": "Apache-2.0",
		"source": "https://github.com/proxima-mesh/proxima", "title": "proxima",
	} {
		if got := c.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s: %q", label, got)
		}
	}
	in := mutate.Extract(img)
	defer in.Close()
	var names []string
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("%s %o %d", strings.TrimSuffix(h.Name, "/"), h.Mode, h.Uid))
		if !h.ModTime.Equal(config.Time) {
			t.Errorf("%s is of %s", h.Name, h.ModTime)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		switch filepath.Base(h.Name) {
		case "proxima":
			if h.Typeflag == tar.TypeReg && string(data) != "binary for "+d.Platform.String() {
				t.Errorf("the binary is %q", data)
			}
		case "ca-certificates.crt":
			checkCertificates(t, data)
		}
	}
	slices.Sort(names)
	want := []string{
		"etc 755 0", "etc/ssl 755 0", "etc/ssl/certs 755 0", "etc/ssl/certs/ca-certificates.crt 644 0",
		"run 755 0", "run/proxima 755 0", "tmp 1777 0", "usr 755 0", "usr/bin 755 0", "usr/bin/proxima 755 0",
		"var 755 0", "var/lib 755 0", "var/lib/proxima 700 65532",
	}
	if !slices.Equal(names, want) {
		t.Errorf("the image has %q", names)
	}
}

func checkCertificates(t *testing.T, data []byte) {
	t.Helper()
	n := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !c.IsCA {
			t.Errorf("certificate %d: %v", n, err)
		}
		n++
	}
	if n < 80 {
		t.Errorf("%d authorities are too few", n)
	}
}

// TestSidecar: the image has the program alone, and runs it as the user of sidecars.
func TestSidecar(t *testing.T) {
	file := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(file, []byte("binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := image.NewSidecar(config, build.Servers()[0], file)
	if err != nil {
		t.Fatal(err)
	}
	of, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if of.Config.User != "5678:5678" || !slices.Equal(of.Config.Entrypoint, []string{"/usr/bin/proxima-sidecar"}) {
		t.Errorf("user %q, entrypoint %q", of.Config.User, of.Config.Entrypoint)
	}
	r := tar.NewReader(mutate.Extract(img))
	var names []string
	for h, err := r.Next(); err == nil; h, err = r.Next() {
		names = append(names, h.Name)
	}
	if !slices.Contains(names, "usr/bin/proxima-sidecar") || len(names) != 3 {
		t.Errorf("files %q", names)
	}
}
