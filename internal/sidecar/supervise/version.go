package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// Version of an Envoy.
type Version struct{ Major, Minor, Patch int }

// Oldest version that is supported: the oldest one that tests run.
var Oldest = Version{1, 37, 0}

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

func (v Version) before(other Version) bool {
	if v.Major != other.Major {
		return v.Major < other.Major
	}
	if v.Minor != other.Minor {
		return v.Minor < other.Minor
	}
	return v.Patch < other.Patch
}

// versionForm is what "envoy --version" prints: "PATH  version: HASH/1.40.0/Clean/RELEASE/BoringSSL".
var versionForm = regexp.MustCompile(`version: [0-9a-f]*/(\d+)\.(\d+)\.(\d+)`)

// versionTimeout of the command.
const versionTimeout = 20 * time.Second

const versionHint = "install Envoy 1.37 or newer (https://www.envoyproxy.io/docs/envoy/latest/start/install) and name it with --envoy PATH"

// CheckOnce is Check for a binary that was not checked before: the answer is kept in a file, as
// asking takes as long as a start.
func CheckOnce(ctx context.Context, name, file string) (path string, v Version, err error) {
	path, err = exec.LookPath(name)
	if err != nil {
		return Check(ctx, name)
	}
	key := path + " " + identify(path)
	if text, err := os.ReadFile(file); err == nil {
		if binary, version, ok := strings.Cut(string(text), "\n"); ok && binary == key {
			if v, ok := parseVersion(version); ok && !v.before(Oldest) {
				return path, v, nil
			}
		}
	}
	path, v, err = Check(ctx, name)
	if err != nil {
		return path, v, err
	}
	return path, v, atomicfile.Write(file, []byte(fmt.Sprintf("%s\nversion: /%s", key, v)), 0o600)
}

// Check that there is an Envoy at a path, or of a name in $PATH, that can be used, and return
// where it is. The error names the fix.
func Check(ctx context.Context, name string) (path string, v Version, err error) {
	failed := func(err error) (string, Version, error) {
		return "", v, &problem.Error{Code: problem.EnvoyUnusable, Op: "use", Object: "Envoy " + name, Err: err, Hint: versionHint}
	}
	path, err = exec.LookPath(name)
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			err = errors.New("there is no such program")
		}
		return failed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return failed(fmt.Errorf("%s --version: %w: %.200s", path, err, out))
	}
	v, ok := parseVersion(string(out))
	if !ok {
		return failed(fmt.Errorf("%s --version does not say a version: %.200s", path, out))
	}
	if v.before(Oldest) {
		return failed(fmt.Errorf("it is version %s, and %s is the oldest that works", v, Oldest))
	}
	return path, v, nil
}

func parseVersion(text string) (Version, bool) {
	m := versionForm.FindStringSubmatch(text)
	if m == nil {
		return Version{}, false
	}
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(m[i+1]) // digits
	}
	return Version{n[0], n[1], n[2]}, true
}
