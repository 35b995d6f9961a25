package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// Programs are those of sidecars, in place of their images. Their folders are open to all users.
type Programs struct {
	Sidecar, Envoy string
	// Entrypoints of images that were not loaded, by their names: what runs where a container has no command.
	Entrypoints map[string][]string
}

// volumeRetry is the pause after an attempt to make the volumes of a pod.
const volumeRetry = 200 * time.Millisecond

// NetnsDir is the folder in which the node's container runtime names the network namespaces of pods
// with a sidecar.
func (n *Node) NetnsDir() string { return n.hostPath("/run/netns") }

// nativeSidecar of a pod that runs Envoy (KEP-753); nil: it has none.
func nativeSidecar(spec *corev1.PodSpec) *corev1.Container {
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return c
		}
	}
	return nil
}

// runWithSidecar does for a pod without an image what kubelet and a container runtime do: the address
// is known first, the sidecar runs until its startup probe succeeds, then the pod's own process, and the
// sidecar ends after it. The sidecar is a process of the user of its security context, without a
// capability.
func (n *Node) runWithSidecar(ctx context.Context, p *corev1.Pod, of *corev1.Container, run *pod) {
	defer close(run.done)
	fail := func(err error) {
		if ctx.Err() == nil {
			n.t.Errorf("node %s: pod %s/%s: %v", n.Name, p.Namespace, p.Name, err)
		}
	}
	unbind, err := n.bindNamespace(string(p.UID), run.ns)
	if err != nil {
		fail(err)
		return
	}
	defer unbind()
	n.status(ctx, p, run, corev1.PodPending, false)
	cmd, end, err := n.sidecar(ctx, p, of, run.addr)
	for apierrors.IsNotFound(err) && ctx.Err() == nil { // as kube-root-ca.crt in a namespace that is new: kubelet tries again, too
		time.Sleep(volumeRetry)
		cmd, end, err = n.sidecar(ctx, p, of, run.addr)
	}
	if err != nil {
		fail(err)
		return
	}
	defer end()
	if err := run.ns.Start(cmd); err != nil {
		fail(err)
		return
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
	}()
	get := of.StartupProbe.HTTPGet
	url := fmt.Sprintf("http://%s%s", net.JoinHostPort(run.addr, get.Port.String()), get.Path)
	for !n.probe(ctx, url) {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			fail(errors.New("its sidecar has ended"))
			return
		case <-time.After(time.Duration(of.StartupProbe.PeriodSeconds) * time.Second / 5):
		}
	}
	args, env, err := n.process(p, run.addr)
	if err != nil {
		fail(err)
		return
	}
	main := exec.Command(args[0], args[1:]...)
	main.Env = env
	main.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.launch(ctx, p, run, main); err != nil {
		fail(err)
		return
	}
	_ = main.Wait()
}

// sidecar is its process, and what removes its folder.
func (n *Node) sidecar(ctx context.Context, p *corev1.Pod, of *corev1.Container, addr string) (*exec.Cmd, func(), error) {
	user := int(*of.SecurityContext.RunAsUser)
	volumes, err := n.volumes(ctx, p, &container{User: user})
	if err != nil {
		return nil, nil, err
	}
	// Paths of sockets are short.
	dir, err := os.MkdirTemp("", "pod")
	if err != nil {
		return nil, nil, err
	}
	end := func() { _ = os.RemoveAll(dir) }
	var paths []string
	err = os.Chmod(dir, 0o755)
	for i, m := range of.VolumeMounts {
		to := filepath.Join(dir, fmt.Sprint(i))
		err = errors.Join(err, os.Mkdir(to, 0o755), os.Chown(to, user, user), copyFiles(volumes[m.Name], to, user))
		paths = append(paths, m.MountPath, to)
	}
	log, openErr := os.OpenFile(n.PodLog(p)+".sidecar", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err = errors.Join(err, openErr); err != nil {
		end()
		return nil, nil, err
	}
	defer log.Close() // the child has its own
	fields := map[string]string{
		"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.serviceAccountName": p.Spec.ServiceAccountName,
	}
	env := []string{"PROXIMA_SIDECAR_ENVOY=" + n.c.Programs.Envoy}
	for _, e := range of.Env {
		env = append(env, e.Name+"="+fields[e.ValueFrom.FieldRef.FieldPath])
	}
	mapped := strings.NewReplacer(paths...)
	var args []string
	for _, a := range expand(of.Args, env) {
		args = append(args, mapped.Replace(a))
	}
	cmd := exec.Command(n.c.Programs.Sidecar, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.Dir = env, log, log, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)},
	}
	return cmd, end, nil
}

// copyFiles of a volume for a user.
func copyFiles(from, to string, user int) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		in, err := os.Open(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		data, err := io.ReadAll(in)
		path := filepath.Join(to, e.Name())
		err = errors.Join(err, in.Close(), os.WriteFile(path, data, 0o600), os.Chown(path, user, user))
		if err != nil {
			return err
		}
	}
	return nil
}

// bindNamespace gives the namespace of a pod a name on the node, as a container runtime does.
func (n *Node) bindNamespace(name string, ns *kernelnetns.NS) (unbind func(), err error) {
	dir := n.NetnsDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "cni-"+name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("name the namespace of a pod: %w", err)
	}
	return func() {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		_ = os.Remove(path)
	}, nil
}
