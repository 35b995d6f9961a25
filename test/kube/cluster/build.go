package cluster

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// BinariesVariable names a folder with the programs, in place of the cache. It is for
// machines that have them already.
const BinariesVariable = "PROXIMA_KUBE_BIN"

// packages of the programs, by their names: the tools of go.mod.
var packages = map[string]string{
	"etcd":                    "go.etcd.io/etcd/server/v3",
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-proxy":              "k8s.io/kubernetes/cmd/kube-proxy",
}

var building sync.Mutex

// Binary returns the path of a program. It is built where the cache does not have it for
// the versions of go.mod, which takes minutes the first time. It blocks until then.
func Binary(t testing.TB, name string) string {
	t.Helper()
	if dir := os.Getenv(BinariesVariable); dir != "" { // where there may be no source tree
		return filepath.Join(dir, name)
	}
	path, err := binary(moduleRoot(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Build builds all programs that the cache does not have. The working directory is in the
// module.
func Build() error {
	module, err := os.Getwd()
	for err == nil {
		if _, found := os.Stat(filepath.Join(module, "go.mod")); found == nil {
			break
		}
		if module == filepath.Dir(module) {
			return fmt.Errorf("no go.mod above the working directory")
		}
		module = filepath.Dir(module)
	}
	for name := range packages {
		if err == nil {
			_, err = binary(module, name)
		}
	}
	if err == nil {
		_, err = helm(module)
	}
	return err
}

// Helm returns the path of the command helm, of the version in test/chart/go.mod. It is built as
// Binary does.
func Helm(t testing.TB) string {
	t.Helper()
	path, err := helm(moduleRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// helm is a tool of another module, as its libraries are of other versions.
func helm(module string) (string, error) {
	return built(filepath.Join(filepath.Dir(module), "chart"), "helm", "helm.sh/helm/v3/cmd/helm", "-s -w")
}

func moduleRoot(t testing.TB) string { return filepath.Join(testkit.Root(t), "test", "kube") }

func binary(module, name string) (string, error) {
	version, err := kubernetesVersion(module)
	if err != nil {
		return "", err
	}
	return built(module, name, packages[name], flags(version))
}

// built is the path of a program of a package that a module requires.
func built(module, name, of, ldflags string) (string, error) {
	if dir := os.Getenv(BinariesVariable); dir != "" {
		return filepath.Join(dir, name), nil
	}
	dir, err := cacheDir(module)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	building.Lock()
	defer building.Unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// The name appears when the file is complete: several tests may build at the same time.
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", fresh, of)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return path, os.Rename(fresh, path)
}

// flags tell the programs their version, which clients read.
func flags(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	var b strings.Builder
	b.WriteString("-s -w")
	for _, set := range []string{"gitVersion=" + version, "gitMajor=" + parts[0], "gitMinor=" + parts[1], "gitTreeState=clean"} {
		b.WriteString(" -X k8s.io/component-base/version." + set)
	}
	return b.String()
}

// cacheDir is one folder for the versions of go.mod and go.sum, shared by all checkouts.
func cacheDir(module string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	return filepath.Join(cache, "proxima-kube", fmt.Sprintf("%x", sum.Sum(nil)[:8])), nil
}

var required = regexp.MustCompile(`(?m)^\s+k8s\.io/kubernetes (v\S+)`)

func kubernetesVersion(module string) (string, error) {
	text, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	found := required.FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s/go.mod requires no k8s.io/kubernetes", module)
	}
	return string(found[1]), nil
}

// Version of Kubernetes that the programs have, as go.mod requires it.
func Version(t testing.TB) string {
	t.Helper()
	v, err := kubernetesVersion(moduleRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	return v
}
