package clients

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

const (
	kubernetesVersion = "37.0.2"  // client of Python
	ansibleCore       = "2.19.14" // the last that runs on Python 3.11
	ansibleVersion    = "12.0.0"  // the package that has the collection kubernetes.core
)

// plane is the control plane of all tests.
var plane struct {
	sync.Once
	kubeconfig string
	process    *exec.Cmd
	dir        string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if plane.process != nil {
		_ = plane.process.Process.Signal(os.Interrupt)
		_ = plane.process.Wait()
	}
	if plane.dir != "" {
		_ = os.RemoveAll(plane.dir)
	}
	os.Exit(code)
}

// kubeconfig of the control plane, which is started for the first test.
func kubeconfig(t *testing.T) string {
	t.Helper()
	if os.Getenv("PROXIMA_CLIENTS") == "" {
		t.Skip("downloads clients: make interop-clients runs it")
	}
	plane.Do(func() {
		var err error
		if plane.dir, err = os.MkdirTemp("", "proxima-clients"); err != nil {
			t.Fatal(err)
		}
		log, err := os.Create(filepath.Join(plane.dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		plane.process = exec.Command(testkit.Binary(t), "control-plane", "--store", "memory", "--data-dir", plane.dir,
			"--api-address", "127.0.0.1:0", "--grpc-port", "0", "--xds-port", "0", "--service-cidr", "127.96.0.0/16")
		plane.process.Stdout, plane.process.Stderr = log, log
		if err := plane.process.Start(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(plane.dir, "kubeconfig")
		for end := time.Now().Add(testkit.Timeout); ; time.Sleep(100 * time.Millisecond) {
			out, err := exec.Command(testkit.Kubectl(t), "--kubeconfig", path, "get", "--raw", "/readyz").CombinedOutput()
			if err == nil {
				break
			}
			if time.Now().After(end) {
				text, _ := os.ReadFile(log.Name())
				t.Fatalf("no control plane: %v: %s\n%s", err, out, text)
			}
		}
		plane.kubeconfig = path
	})
	if plane.kubeconfig == "" {
		t.Fatal("there is no control plane")
	}
	return plane.kubeconfig
}

// cache is a folder for what is installed for the tests. It stays.
func cache(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "proxima-clients", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// need skips a test whose program this machine lacks.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("this machine has no %s", p)
		}
	}
}

// run a command, whose output is in the error.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// install into a folder of the cache by a command, unless that was done for the same list of what
// is wanted. If it fails, the test is skipped: a registry that does not answer says nothing about
// the control plane.
func install(t *testing.T, dir, what, list, name string, args ...string) {
	t.Helper()
	marker := filepath.Join(dir, ".installed")
	if have, err := os.ReadFile(marker); err == nil && string(have) == list {
		return
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		text := strings.Join(strings.Fields(string(out)), " ")
		t.Skipf("%s cannot be installed: %v: %s", what, err, text[max(0, len(text)-300):])
	}
	if err := os.WriteFile(marker, []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
}

func here(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// python returns an environment with the client, and with Ansible's core.
func python(t *testing.T) string {
	t.Helper()
	need(t, "python3")
	dir := cache(t, "python")
	install(t, dir, "the client of Python", "kubernetes "+kubernetesVersion+", ansible-core "+ansibleCore, "sh", "-c",
		"python3 -m venv venv && venv/bin/pip install -q kubernetes=="+kubernetesVersion+" ansible-core=="+ansibleCore)
	return filepath.Join(dir, "venv", "bin")
}

func TestPython(t *testing.T) {
	config := kubeconfig(t)
	run(t, ".", nil, filepath.Join(python(t), "python"), "-B", "python/main.py", config)
}

func TestAnsible(t *testing.T) {
	config := kubeconfig(t)
	bin := python(t)
	dir := cache(t, "ansible")
	install(t, dir, "Ansible", "ansible "+ansibleVersion, filepath.Join(bin, "pip"), "install", "-q", "--no-deps", "--upgrade", "--target", dir,
		"ansible=="+ansibleVersion)
	env := []string{"ANSIBLE_COLLECTIONS_PATH=" + dir, "K8S_AUTH_KUBECONFIG=" + config, "ANSIBLE_HOME=" + t.TempDir()}
	run(t, "ansible", env, filepath.Join(bin, "ansible-playbook"), "-i", "localhost,",
		"-e", "ansible_python_interpreter="+filepath.Join(bin, "python"), "site.yml")
}

func TestJavaScript(t *testing.T) {
	config := kubeconfig(t)
	need(t, "node", "npm")
	dir := cache(t, "javascript")
	for _, name := range []string{"package.json", "main.mjs"} { // modules are found beside the program
		text, err := os.ReadFile(filepath.Join("javascript", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	packages, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	install(t, dir, "the client of JavaScript", string(packages), "npm", "install", "--no-audit", "--no-fund", "--loglevel=error")
	run(t, dir, nil, "node", "main.mjs", config)
}

// java builds both clients, and returns the class path.
func java(t *testing.T) string {
	t.Helper()
	need(t, "java", "mvn")
	dir := cache(t, "java")
	pom, err := os.ReadFile("java/pom.xml")
	if err != nil {
		t.Fatal(err)
	}
	install(t, dir, "a client of Java", string(pom), "mvn", "-q", "-B", "-f", here(t, "java/pom.xml"), "dependency:copy-dependencies", "-Dout="+dir, "-DoutputDirectory="+dir+"/lib")
	run(t, "java", nil, "mvn", "-q", "-B", "-o", "compile", "-Dout="+dir)
	return dir + "/classes:" + dir + "/lib/*"
}

func TestFabric8(t *testing.T) {
	config := kubeconfig(t)
	run(t, ".", nil, "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", java(t), "dev.proxima.clients.Fabric8", config)
}

func TestJava(t *testing.T) {
	config := kubeconfig(t)
	run(t, ".", nil, "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", java(t), "dev.proxima.clients.Official", config)
}
