package cluster

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// image that was unpacked, as a container runtime keeps it.
type image struct {
	root   string
	config v1.Config
}

// Load gives all nodes an image by the name that containers refer to it. Call it before the first
// pod that needs it.
func (c *Cluster) Load(t testing.TB, name string, img v1.Image) {
	t.Helper()
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(c.dir, "image-"+filepath.Base(name))
	in := mutate.Extract(img)
	defer in.Close()
	if err := unpack(root, in); err != nil {
		t.Fatalf("unpack image %s: %v", name, err)
	}
	c.images[name] = &image{root, file.Config}
}

// unpack a layer, with owners.
func unpack(root string, layer io.Reader) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	for r := tar.NewReader(layer); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(root, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = writeFile(path, r)
		}
		if err := errors.Join(err, os.Chown(path, h.Uid, h.Gid), os.Chmod(path, h.FileInfo().Mode())); err != nil {
			return err
		}
	}
}

func writeFile(path string, from io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// instance makes the root of one container: folders of its own, which get its mount points, and
// the files of the image.
func (i *image) instance(root string) error {
	if err := os.RemoveAll(root); err != nil { // of the run before
		return err
	}
	return filepath.WalkDir(i.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(i.root, path)
		if err != nil {
			return err
		}
		to := filepath.Join(root, name)
		if !d.IsDir() {
			return os.Link(path, to)
		}
		var have stat
		if err := have.of(path); err != nil {
			return err
		}
		return errors.Join(os.MkdirAll(to, 0o755), os.Chown(to, have.user, have.group), os.Chmod(to, have.mode))
	})
}
