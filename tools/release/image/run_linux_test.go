package image_test

import (
	"archive/tar"
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/tools/release/build"
	"github.com/proxima-mesh/proxima/tools/release/build/buildtest"
	"github.com/proxima-mesh/proxima/tools/release/image"
)

// starter is the variable by which this test, run again in namespaces of its own, learns that
// it is to start a container: a bundle in JSON.
const starter = "PROXIMA_TEST_BUNDLE"

// bundle is what a container runtime takes from an image, and from who starts a container of it.
type bundle struct {
	Root   string
	Config v1.Config
	// Mounts are folders of the machine, by their path in the container.
	Mounts map[string]string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(starter); text != "" {
		var b bundle
		err := json.Unmarshal([]byte(text), &b)
		if err == nil {
			err = b.enter(os.Args[1:])
		}
		fmt.Fprintln(os.Stderr, "start the container:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// enter does what a container runtime does, in mount, network and process namespaces of its
// own, and becomes the command: the root is read-only, but for the volume of the state.
func (b bundle) enter(args []string) error {
	root := b.Root
	var user, group int
	if _, err := fmt.Sscanf(b.Config.User, "%d:%d", &user, &group); err != nil {
		return fmt.Errorf("user %q: %w", b.Config.User, err)
	}
	type mount struct {
		from, to, typ string
		flags         uintptr
		data          string
	}
	all := []mount{
		{"", "/", "", unix.MS_PRIVATE | unix.MS_REC, ""},
		{root, root, "", unix.MS_BIND, ""},
		{"proc", filepath.Join(root, "proc"), "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	}
	for path := range b.Config.Volumes {
		// A new volume has the owner and the mode that the directory has in the image.
		state := filepath.Join(root, path)
		var have unix.Stat_t
		if err := unix.Stat(state, &have); err != nil {
			return err
		}
		owner := fmt.Sprintf("mode=%o,uid=%d,gid=%d", have.Mode&0o7777, have.Uid, have.Gid)
		all = append(all, mount{"tmpfs", state, "tmpfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, owner})
	}
	for path, from := range b.Mounts {
		all = append(all, mount{from, filepath.Join(root, path), "", unix.MS_BIND, ""})
	}
	all = append(all, mount{"", root, "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV, ""})
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("loopback device: %w: %s", err, out)
	}
	for _, m := range all {
		if err := unix.Mount(m.from, m.to, m.typ, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.to, err)
		}
	}
	err := errors.Join(unix.Chroot(root), unix.Chdir("/"), unix.Setgroups(nil), unix.Setgid(group), unix.Setuid(user),
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	if err != nil {
		return err
	}
	command := append(slices.Clone(b.Config.Entrypoint), args...)
	return unix.Exec(command[0], command, b.Config.Env)
}

// unpack the image of this platform, with owners, as a runtime does.
func unpack(t *testing.T, img v1.Image, err error) bundle {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	in := mutate.Extract(img)
	defer in.Close()
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = writeFile(path, r)
		}
		if err := errors.Join(err, os.Chmod(path, h.FileInfo().Mode()), os.Chown(path, h.Uid, h.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	// A runtime makes the mount point. The directory of a test is for its user alone.
	if err := errors.Join(os.Mkdir(filepath.Join(root, "proc"), 0o555), os.Chmod(root, 0o755), os.Chmod(filepath.Dir(root), 0o755)); err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return bundle{Root: root, Config: file.Config}
}

func writeFile(path string, from io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// container with arguments of the entry point.
func (b bundle) container(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), starter+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	return cmd
}

// TestRun runs the image for this platform as its user, with a read-only root: the command
// says its version, and a control plane becomes ready.
func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: containers are started with mounts")
	}
	img, err := image.New(config, build.Host(), buildtest.Binary(t, "../../.."))
	b := unpack(t, img, err)
	if len(b.Config.Volumes) != 1 {
		t.Fatalf("volumes %v: one is expected", b.Config.Volumes)
	}
	out, err := b.container(t, "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "proxima v") || !strings.Contains(string(out), runtime.GOOS+"/"+runtime.GOARCH) {
		t.Fatalf("version: %v\n%s", err, out)
	}

	cmd := b.container(t, "control-plane", "--store", "memory", "--service-cidr", "10.96.0.0/16", "--mesh-cidr", "none")
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	said := func() string {
		data, _ := os.ReadFile(log.Name())
		return string(data)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		status, err := ready(cmd.Process.Pid)
		if status == http.StatusOK {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the control plane ended: %v\n%s", err, said())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("/readyz: %d, %v\n%s", status, err, said())
		}
	}
	if uid := userOf(t, cmd.Process.Pid); uid != image.User {
		t.Errorf("it runs as user %d", uid)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("it ends with %v\n%s", err, said())
	}
}

// TestRunSidecar runs the image of sidecars as its user, with a read-only root, as the first container that a
// Pod with a sidecar has does: the program copies itself into a volume, and runs from there in the second one,
// whose image is another. It writes nowhere else, and there is nothing else in the image.
func TestRunSidecar(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: containers are started with mounts")
	}
	img, err := image.NewSidecar(config, build.Host(), buildtest.Sidecar(t, "../../.."))
	b := unpack(t, img, err)
	if want := fmt.Sprintf("%d:%d", image.SidecarUser, image.SidecarUser); b.Config.User != want || len(b.Config.Volumes) > 0 {
		t.Errorf("user %s, volumes %v", b.Config.User, b.Config.Volumes)
	}
	const dir = "/usr/lib/proxima" // of package inject
	volume := t.TempDir()
	// An emptyDir is for all users; the kubelet makes it.
	if err := errors.Join(os.Chmod(volume, 0o777), os.MkdirAll(filepath.Join(b.Root, dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	b.Mounts = map[string]string{dir: volume}
	if out, err := b.container(t, "--install", dir+"/proxima-sidecar").CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	info, err := os.Stat(filepath.Join(volume, "proxima-sidecar"))
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != image.SidecarUser || info.Mode().Perm()&0o111 != 0o111 {
		t.Errorf("the copy is of user %d, mode %s", owner, info.Mode())
	}
	if out, err := b.container(t, "--install", "/usr/bin/other").CombinedOutput(); err == nil || !strings.Contains(string(out), "read-only") {
		t.Errorf("it can write into the root: %v\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(b.Root, "usr/bin/proxima-sidecar")); err != nil {
		t.Fatal(err)
	}
	b.Config.Entrypoint = []string{dir + "/proxima-sidecar"}
	out, err := b.container(t, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "proxima-sidecar v") {
		t.Errorf("version: %v\n%s", err, out)
	}
}

// TestRunGateway runs both images as the init containers of a gateway with an Envoy do: as the user of gateways each program copies
// itself into one volume. From there the gateway runs in an image that has neither, finds the supervisor, and asks for Envoy alone.
func TestRunGateway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: containers are started with mounts")
	}
	const dir = "/usr/lib/proxima" // of the chart
	volume := t.TempDir()
	if err := os.Chmod(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	own, err := image.New(config, build.Host(), buildtest.Binary(t, "../../.."))
	program := unpack(t, own, err)
	sidecar, err := image.NewSidecar(config, build.Host(), buildtest.Sidecar(t, "../../.."))
	supervisor := unpack(t, sidecar, err)
	for _, of := range []struct {
		*bundle
		args []string
	}{
		{&program, []string{"install", "program", dir + "/proxima"}}, {&supervisor, []string{"--install", dir + "/proxima-sidecar"}},
	} {
		of.Config.User, of.Mounts = fmt.Sprintf("%d:%d", image.User, image.User), map[string]string{dir: volume}
		if err := os.MkdirAll(filepath.Join(of.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := of.container(t, of.args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", of.args, err, out)
		}
	}
	// In place of the image of Envoy, one without any program.
	if err := os.Remove(filepath.Join(supervisor.Root, "usr/bin/proxima-sidecar")); err != nil {
		t.Fatal(err)
	}
	supervisor.Config.Entrypoint = []string{dir + "/proxima"}
	if out, err := supervisor.container(t, "version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "proxima v") {
		t.Errorf("version: %v\n%s", err, out)
	}
	out, err := supervisor.container(t, "ingress", "--engine=envoy", "--in-cluster", "--server=192.0.2.1:6443", "--node-name=gateway-1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "install Envoy 1.37 or newer") {
		t.Errorf("a gateway without Envoy: %v\n%s", err, out)
	}
}

// ready asks /readyz of the API in the network namespace of a process.
func ready(pid int) (int, error) {
	type answer struct {
		status int
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		status, err := readyHere(fmt.Sprintf("/proc/%d/ns/net", pid))
		done <- answer{status, err}
	}()
	a := <-done
	return a.status, a.err
}

func readyHere(namespace string) (int, error) {
	f, err := os.Open(namespace)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return 0, err
	}
	conn, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6443})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return 0, err
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // whose it is does not matter here
	req, err := http.NewRequest(http.MethodGet, "https://127.0.0.1:6443/readyz", nil)
	if err != nil {
		return 0, err
	}
	if err := req.Write(secure); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(secure), req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// userOf a process.
func userOf(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Uid:" {
			uid, err := strconv.Atoi(fields[2]) // the effective one
			if err != nil {
				t.Fatal(err)
			}
			return uid
		}
	}
	t.Fatal("no Uid in the status of the process")
	return 0
}
