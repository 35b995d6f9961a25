// Package dist writes a release: archives, packages, images, lists of components, checksums
// and statements.
//
// Enter at Release.Images, Release.Packages and Release.All. Two releases of one source are
// equal, byte by byte, but for signatures by other keys.
package dist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/proxima-mesh/proxima/internal/release"
	"github.com/proxima-mesh/proxima/tools/release/archive"
	"github.com/proxima-mesh/proxima/tools/release/build"
	"github.com/proxima-mesh/proxima/tools/release/image"
	"github.com/proxima-mesh/proxima/tools/release/packages"
	"github.com/proxima-mesh/proxima/tools/release/sbom"
)

// Release is what is built, and by whom.
type Release struct {
	Source build.Source
	// Work is a folder for files meanwhile.
	Work string
	// ImageName without a tag.
	ImageName string
	// Builder is a URI of who vouches for the statements.
	Builder string
	// Key signs them; nil: they are not signed.
	Key *release.Key
	// Log is told what is being made.
	Log io.Writer

	generated *build.Generated
}

func (r *Release) say(format string, args ...any) { fmt.Fprintf(r.Log, format+"\n", args...) }

// binary of a platform, built once.
func (r *Release) binary(ctx context.Context, p build.Platform) (string, error) {
	name := "proxima"
	if p.OS == "windows" {
		name = "proxima.exe"
	}
	file := filepath.Join(r.Work, p.OS+"-"+p.Arch, name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	r.say("build for %s", p)
	return file, r.Source.Binary(ctx, p, file)
}

// sidecar is the supervisor of proxies for a Linux, built once; "": the platform has none.
func (r *Release) sidecar(ctx context.Context, p build.Platform) (string, error) {
	if p.OS != "linux" {
		return "", nil
	}
	file := filepath.Join(r.Work, p.OS+"-"+p.Arch, "proxima-sidecar")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	return file, r.Source.Sidecar(ctx, p, file)
}

// generate completion and man pages once, by a binary of this machine.
func (r *Release) generate(ctx context.Context) (build.Generated, error) {
	if r.generated != nil {
		return *r.generated, nil
	}
	binary, err := r.binary(ctx, build.Host())
	if err != nil {
		return build.Generated{}, err
	}
	g, err := build.Generate(ctx, binary, r.Work)
	if err == nil {
		r.generated = &g
	}
	return g, err
}

func (r *Release) imageConfig() image.Config {
	commit := r.Source.Commit
	if r.Source.Changed {
		commit += "+changes" // as proxima version says it
	}
	return image.Config{Name: r.ImageName, Version: r.Source.Version, Commit: commit, Time: r.Source.Time}
}

// Images writes layouts with the images of all platforms, of the product and of proxima-sidecar, to a
// folder and one beside it, in place of what is there, and a tar file of each to another.
func (r *Release) Images(ctx context.Context, layout, out string) error {
	sidecar := r.imageConfig()
	sidecar.Name += "-sidecar"
	for _, of := range []struct {
		config       image.Config
		name, layout string
		binary       func(context.Context, build.Platform) (string, error)
		make         func(image.Config, build.Platform, string) (v1.Image, error)
	}{
		{r.imageConfig(), "proxima", layout, r.binary, image.New},
		{sidecar, "proxima-sidecar", layout + "-sidecar", r.sidecar, image.NewSidecar},
	} {
		images := map[build.Platform]v1.Image{}
		for _, p := range build.Servers() {
			binary, err := of.binary(ctx, p)
			if err != nil {
				return err
			}
			if images[p], err = of.make(of.config, p, binary); err != nil {
				return err
			}
		}
		r.say("image %s:%s", of.config.Name, r.Source.Version)
		if err := image.Write(of.layout, of.config, image.Index(of.config, images)); err != nil {
			return err
		}
		err := create(filepath.Join(out, of.name+"_"+r.Source.Version+"_image.tar"), func(w io.Writer) error {
			return image.WriteArchive(w, of.layout, r.Source.Time)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Packages writes deb and rpm packages to a folder.
func (r *Release) Packages(ctx context.Context, dir string) error {
	generated, err := r.generate(ctx)
	if err != nil {
		return err
	}
	for _, p := range build.Servers() {
		binary, err := r.binary(ctx, p)
		if err != nil {
			return err
		}
		sidecar, err := r.sidecar(ctx, p)
		if err != nil {
			return err
		}
		for _, format := range packages.Formats() {
			file, err := packages.Package{
				Root: r.Source.Root, Platform: p, Version: r.Source.Version, Time: r.Source.Time, Binary: binary, Sidecar: sidecar, Generated: generated,
			}.Write(format, dir, r.Work)
			if err != nil {
				return err
			}
			r.say("package %s", filepath.Base(file))
		}
	}
	return nil
}

// Components writes a list of components of each platform to a folder.
func (r *Release) Components(ctx context.Context, dir string, platforms []build.Platform) error {
	for _, p := range platforms {
		binary, err := r.binary(ctx, p)
		if err != nil {
			return err
		}
		name := r.name(p, ".cdx.json")
		r.say("components %s", name)
		if err := create(filepath.Join(dir, name), func(w io.Writer) error {
			return sbom.Write(w, binary, p, r.Source.Version, r.Source.Time)
		}); err != nil {
			return err
		}
	}
	return nil
}

// name of a file of a platform.
func (r *Release) name(p build.Platform, suffix string) string {
	return fmt.Sprintf("proxima_%s_%s_%s%s", r.Source.Version, p.OS, p.Arch, suffix)
}

// All writes everything to a folder, in place of the release that is there.
func (r *Release) All(ctx context.Context, out string) error {
	if err := removeOld(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, p := range build.Platforms() {
		if err := r.archive(ctx, p, out); err != nil {
			return err
		}
	}
	if err := r.Components(ctx, out, build.Platforms()); err != nil {
		return err
	}
	if err := r.Packages(ctx, out); err != nil {
		return err
	}
	if err := r.Images(ctx, filepath.Join(r.Work, "image"), out); err != nil {
		return err
	}
	return r.vouch(ctx, out)
}

// removeOld removes what earlier builds left in a folder, and refuses to remove anything else.
func removeOld(out string) error {
	entries, err := os.ReadDir(out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		ours := e.Name() == release.SumsName || e.Name() == "image" || e.Name() == "packages" || strings.HasPrefix(e.Name(), "proxima")
		if !ours {
			return fmt.Errorf("%s has files of others, as %s: empty it, or choose another folder", out, e.Name())
		}
	}
	return os.RemoveAll(out)
}

// archive of a platform: the binary with documents, and with completion and man pages where
// they are of use.
func (r *Release) archive(ctx context.Context, p build.Platform, out string) error {
	binary, err := r.binary(ctx, p)
	if err != nil {
		return err
	}
	top := "proxima_" + r.Source.Version + "/"
	entries := []archive.Entry{{Name: top, Mode: 0o755}, {Name: top + filepath.Base(binary), Mode: 0o755, Path: binary}}
	sidecar, err := r.sidecar(ctx, p)
	if err != nil {
		return err
	}
	if sidecar != "" {
		entries = append(entries, archive.Entry{Name: top + filepath.Base(sidecar), Mode: 0o755, Path: sidecar})
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		entries = append(entries, archive.Entry{Name: top + name, Mode: 0o644, Path: filepath.Join(r.Source.Root, name)})
	}
	suffix := ".tar.gz"
	write := func(w io.Writer) error {
		return archive.Gzip(w, func(w io.Writer) error { return archive.Tar(w, entries, r.Source.Time) })
	}
	if p.OS == "windows" {
		suffix = ".zip"
		write = func(w io.Writer) error { return archive.Zip(w, entries, r.Source.Time) }
	} else {
		generated, err := r.generate(ctx)
		if err != nil {
			return err
		}
		entries = append(entries, archive.Entry{Name: top + "completion/", Mode: 0o755}, archive.Entry{Name: top + "man/", Mode: 0o755})
		for shell, data := range generated.Completion {
			entries = append(entries, archive.Entry{Name: top + "completion/proxima." + shell, Mode: 0o644, Data: data})
		}
		for name, data := range generated.Man {
			entries = append(entries, archive.Entry{Name: top + "man/" + name, Mode: 0o644, Data: data})
		}
	}
	name := r.name(p, suffix)
	r.say("archive %s", name)
	return create(filepath.Join(out, name), write)
}

// vouch writes checksums and statements of all files in a folder.
func (r *Release) vouch(ctx context.Context, out string) error {
	entries, err := os.ReadDir(out)
	if err != nil {
		return err
	}
	definition, err := r.definition(ctx)
	if err != nil {
		return err
	}
	var sums []release.Sum
	for _, e := range entries {
		digest, err := release.DigestFile(filepath.Join(out, e.Name()))
		if err != nil {
			return err
		}
		sum := release.Sum{Name: e.Name(), Digest: digest}
		sums = append(sums, sum)
		if err := r.state(out, sum, definition); err != nil {
			return err
		}
	}
	r.say("%s and a statement for each of %d files", release.SumsName, len(sums))
	return os.WriteFile(filepath.Join(out, release.SumsName), release.FormatSums(sums), 0o644)
}

func (r *Release) state(out string, sum release.Sum, definition release.BuildDefinition) error {
	statement, err := json.Marshal(release.NewStatement(sum, definition, r.Builder))
	if err != nil {
		return err
	}
	suffix := release.UnsignedSuffix
	if r.Key != nil {
		suffix = release.SignedSuffix
		if statement, err = r.Key.Sign(statement); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(out, sum.Name+suffix), statement, 0o644)
}

// definition of the build, of all files of the release.
func (r *Release) definition(ctx context.Context) (release.BuildDefinition, error) {
	goVersion, err := r.Source.GoVersion(ctx)
	if err != nil {
		return release.BuildDefinition{}, err
	}
	const uri = "git+https://github.com/proxima-mesh/proxima"
	source := release.Resource{URI: uri}
	if r.Source.Commit != "" {
		source = release.Resource{URI: uri + "@" + r.Source.Commit, Digest: map[string]string{"gitCommit": r.Source.Commit}}
	}
	if r.Source.Changed {
		// The commit alone does not give these bytes.
		source = release.Resource{Name: "source with changes", URI: uri}
	}
	dependencies := []release.Resource{source}
	// They pin all modules: those of the product, and those that build.
	for _, name := range []string{"go.sum", "tools/release/go.sum"} {
		sums, err := release.DigestFile(filepath.Join(r.Source.Root, filepath.FromSlash(name)))
		if err != nil {
			return release.BuildDefinition{}, err
		}
		dependencies = append(dependencies, release.Resource{Name: name, Digest: map[string]string{"sha256": sums.String()}})
	}
	return release.BuildDefinition{
		BuildType:          release.BuildType,
		ExternalParameters: release.ExternalParameters{Version: r.Source.Version, Target: "release"},
		InternalParameters: release.InternalParameters{
			Go: goVersion, Environment: build.Environment(), Flags: r.Source.Flags(), SourceDateEpoch: r.Source.Time.Unix(),
		},
		ResolvedDependencies: dependencies,
	}, nil
}

// create a file with what a function writes.
func create(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return f.Close()
}
