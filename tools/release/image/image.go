// Package image makes OCI images of the product, without a container engine: the static
// binary, certificates of authorities, and empty directories.
//
// Enter at New for one platform, at Index for several, and at Write or WriteArchive. The
// same binary gives the same bytes.
package image

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/proxima-mesh/proxima/tools/release/archive"
	"github.com/proxima-mesh/proxima/tools/release/build"
)

// User is the number of the user and group that the image runs as, unless it is started with
// another: "nonroot" of other images that have little in them.
const User = 65532

// DataDir is the directory of the state, a volume.
const DataDir = "/var/lib/proxima"

// SidecarUser is the user of the image of sidecars: that of sidecars in Pods.
const SidecarUser = 5678

// Config of images.
type Config struct {
	// Name by which the image is known, without a tag.
	Name string
	// Version, Commit and Time are those of the source.
	Version, Commit string
	Time            time.Time
}

// Labels of the image (https://github.com/opencontainers/image-spec/blob/main/annotations.md).
func (c Config) labels() map[string]string {
	const home = "https://github.com/proxima-mesh/proxima"
	labels := map[string]string{
		"org.opencontainers.image.title":         "proxima",
		"org.opencontainers.image.description":   "Kubernetes Services for any set of machines",
		"org.opencontainers.image.version":       c.Version,
		"org.opencontainers.image.created":       c.Time.UTC().Format(time.RFC3339),
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.source":        home,
		"org.opencontainers.image.url":           home,
		"org.opencontainers.image.documentation": home + "/tree/main/docs",
	}
	if c.Commit != "" {
		labels["org.opencontainers.image.revision"] = c.Commit
	}
	return labels
}

// entries of the one layer.
func entries(binary string) []archive.Entry {
	directory := func(name string, mode fs.FileMode, owner int) archive.Entry {
		return archive.Entry{Name: name, Mode: mode, Owner: owner}
	}
	return []archive.Entry{
		directory("etc/", 0o755, 0), directory("etc/ssl/", 0o755, 0), directory("etc/ssl/certs/", 0o755, 0),
		// Where crypto/x509 looks first on Linux.
		{Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644, Data: certificates()},
		directory("run/", 0o755, 0), directory("run/proxima/", 0o755, 0),
		directory("tmp/", 0o777|fs.ModeSticky, 0),
		directory("usr/", 0o755, 0), directory("usr/bin/", 0o755, 0),
		{Name: "usr/bin/proxima", Mode: 0o755, Path: binary},
		directory("var/", 0o755, 0), directory("var/lib/", 0o755, 0), directory("var/lib/proxima/", 0o700, User),
	}
}

// New makes the image of a platform out of a binary for it.
func New(c Config, p build.Platform, binary string) (v1.Image, error) {
	return layered(c, p, entries(binary), v1.Config{
		User:       fmt.Sprintf("%d:%d", User, User),
		Entrypoint: []string{"/usr/bin/proxima"},
		// The machine's ID is below HOME where /etc/machine-id is not mounted.
		Env:          []string{"PATH=/usr/bin", "HOME=" + DataDir, "PROXIMA_DATA_DIR=" + DataDir},
		WorkingDir:   "/",
		Volumes:      map[string]struct{}{DataDir: {}},
		ExposedPorts: map[string]struct{}{"6443/tcp": {}, "6444/tcp": {}},
		Labels:       c.labels(),
	})
}

// NewSidecar makes the image of proxima-sidecar, which has nothing but the program: it is copied
// into the container of an image of Envoy.
func NewSidecar(c Config, p build.Platform, binary string) (v1.Image, error) {
	labels := c.labels()
	labels["org.opencontainers.image.title"] = "proxima-sidecar"
	labels["org.opencontainers.image.description"] = "supervisor of a workload's Envoy"
	return layered(c, p, []archive.Entry{
		{Name: "usr/", Mode: 0o755}, {Name: "usr/bin/", Mode: 0o755}, {Name: "usr/bin/proxima-sidecar", Mode: 0o755, Path: binary},
	}, v1.Config{
		User: fmt.Sprintf("%d:%d", SidecarUser, SidecarUser), Entrypoint: []string{"/usr/bin/proxima-sidecar"},
		Env: []string{"PATH=/usr/bin"}, WorkingDir: "/", Labels: labels,
	})
}

// layered is an image of one layer.
func layered(c Config, p build.Platform, files []archive.Entry, config v1.Config) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(archive.Tar(w, files, c.Time)) }()
		return r, nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("layer of %s: %w", p, err)
	}
	created := v1.Time{Time: c.Time.UTC()}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "make image"}})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = p.OS, p.Arch, created
	file.Config = config
	return mutate.ConfigFile(image, file)
}

// Index of one image per platform, in the order of build.Servers.
func Index(c Config, images map[build.Platform]v1.Image) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range build.Servers() {
		if image, ok := images[p]; ok {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add:        image,
				Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.OS, Architecture: p.Arch}},
			})
		}
	}
	annotated, ok := mutate.Annotations(index, c.labels()).(v1.ImageIndex)
	if !ok {
		return index // it is one
	}
	return annotated
}

// Write writes a layout (https://github.com/opencontainers/image-spec/blob/main/image-layout.md)
// with one image to a directory, in place of what is there.
func Write(dir string, c Config, index v1.ImageIndex) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": c.Version,
		// The name that containerd gives the image when it imports the layout.
		"io.containerd.image.name": c.Name + ":" + c.Version,
	}))
}

// WriteArchive writes a layout in a directory as a tar file.
func WriteArchive(w io.Writer, dir string, at time.Time) error {
	var files []archive.Entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		e := archive.Entry{Name: filepath.ToSlash(name), Mode: 0o644, Path: path}
		if d.IsDir() {
			e = archive.Entry{Name: e.Name + "/", Mode: 0o755}
		}
		files = append(files, e)
		return nil
	})
	if err != nil {
		return err
	}
	return archive.Tar(w, files, at)
}
