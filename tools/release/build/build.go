// Package build compiles the product for each platform, so that the same source gives the
// same bytes wherever it lies.
//
// Enter at Read for what is built, and at Source.Binary. It never downloads anything but Go
// modules, by the go command.
package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Platform as Go names it.
type Platform struct{ OS, Arch string }

func (p Platform) String() string { return p.OS + "/" + p.Arch }

// Host is the platform of this program.
func Host() Platform { return Platform{runtime.GOOS, runtime.GOARCH} }

// Platforms of a release.
func Platforms() []Platform {
	return []Platform{{"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}
}

// Servers are the platforms for which images and packages are built.
func Servers() []Platform { return []Platform{{"linux", "amd64"}, {"linux", "arm64"}} }

// Source is what is built.
type Source struct {
	// Root of the repository.
	Root string
	// Version with a leading v.
	Version string
	// Commit that is checked out; empty outside of a git repository.
	Commit string
	// Changed: files differ from the commit.
	Changed bool
	// Time of the commit, or SOURCE_DATE_EPOCH: that of every file in archives
	// (https://reproducible-builds.org/specs/source-date-epoch/).
	Time time.Time
}

// Read returns the source in a repository. Without git, SOURCE_DATE_EPOCH is needed.
func Read(ctx context.Context, root, version string) (Source, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return Source{}, err
	}
	s := Source{Root: root, Version: version}
	if !strings.HasPrefix(version, "v") {
		return s, fmt.Errorf("version %q: it begins with v, as in v1.2.3", version)
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if s.Commit, err = s.git(ctx, "rev-parse", "HEAD"); err == nil {
		var status string
		if status, err = s.git(ctx, "status", "--porcelain"); err != nil {
			return s, err
		}
		s.Changed = status != ""
		if epoch == "" {
			epoch, err = s.git(ctx, "log", "-1", "--format=%ct")
		}
	} else if epoch != "" {
		err = nil
	}
	if err != nil {
		return s, fmt.Errorf("time of the source, without SOURCE_DATE_EPOCH: %w", err)
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return s, fmt.Errorf("SOURCE_DATE_EPOCH %q: seconds since 1970 are needed", epoch)
	}
	s.Time = time.Unix(seconds, 0).UTC()
	return s, nil
}

func (s Source) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", s.Root}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Environment of the go command, but for the platform. What it sets could change the bytes.
func Environment() map[string]string {
	return map[string]string{
		"CGO_ENABLED": "0", "GOFLAGS": "-trimpath", "GOTOOLCHAIN": "local", "GOWORK": "off",
		"GOAMD64": "v1", "GOARM64": "v8.0", "GOEXPERIMENT": "", "GOFIPS140": "off",
	}
}

// Flags of "go build".
func (s Source) Flags() []string {
	return []string{"-ldflags", "-s -w -X github.com/proxima-mesh/proxima/internal/version.version=" + s.Version}
}

// Binary writes the command proxima for a platform to a file.
func (s Source) Binary(ctx context.Context, p Platform, file string) error {
	return s.command(ctx, p, "proxima", file, s.Flags())
}

// SidecarTags leave the tracing of gRPC out, which is never used: its templates call methods by name, so
// that the linker would keep every method of the program, 2 MB.
const SidecarTags = "grpcnotrace"

// Sidecar writes the command proxima-sidecar, which is for Linux alone.
func (s Source) Sidecar(ctx context.Context, p Platform, file string) error {
	return s.command(ctx, p, "proxima-sidecar", file, append([]string{"-tags", SidecarTags}, s.Flags()...))
}

func (s Source) command(ctx context.Context, p Platform, name, file string, flags []string) error {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"build"}, flags, []string{"-o", file, "./cmd/" + name})...)
	cmd.Dir = s.Root
	cmd.Env = append(os.Environ(), "GOOS="+p.OS, "GOARCH="+p.Arch)
	for name, value := range Environment() {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s: %w\n%s", name, p, err, out)
	}
	return nil
}

// GoVersion of the go command.
func (s Source) GoVersion(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	cmd.Dir = s.Root
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// Generated are files that a binary of this platform writes: completion and man pages.
type Generated struct {
	// Completion scripts, by shell.
	Completion map[string][]byte
	// Man pages, by the names of their files.
	Man map[string][]byte
}

// Shells whose completion is packaged.
func Shells() []string { return []string{"bash", "zsh", "fish"} }

// Generate runs a binary of this platform. work is a directory for files meanwhile.
func Generate(ctx context.Context, binary, work string) (Generated, error) {
	g := Generated{Completion: map[string][]byte{}, Man: map[string][]byte{}}
	for _, shell := range Shells() {
		out, err := run(ctx, binary, "completion", shell)
		if err != nil {
			return g, err
		}
		g.Completion[shell] = out
	}
	dir := filepath.Join(work, "man")
	if _, err := run(ctx, binary, "reference", "--man", "--dir", dir); err != nil {
		return g, err
	}
	pages, err := os.ReadDir(dir)
	if err != nil {
		return g, err
	}
	for _, p := range pages {
		if g.Man[p.Name()], err = os.ReadFile(filepath.Join(dir, p.Name())); err != nil {
			return g, err
		}
	}
	return g, nil
}

func run(ctx context.Context, binary string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", filepath.Base(binary), strings.Join(args, " "), err)
	}
	return out, nil
}
