package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// volumes are the folders of a pod's volumes, by their names. What they are made of is read with
// the credentials of the node; an error says that something is not there yet.
func (n *Node) volumes(ctx context.Context, p *corev1.Pod, c *container) (map[string]string, error) {
	out := map[string]string{}
	for _, v := range p.Spec.Volumes {
		dir := n.volumeDir(p, v.Name)
		var err error
		switch {
		case v.HostPath != nil:
			dir = n.hostPath(v.HostPath.Path)
			err = os.MkdirAll(dir, 0o755)
		case v.EmptyDir != nil:
			err = errors.Join(os.MkdirAll(dir, 0o777), os.Chmod(dir, 0o777), own(p, dir, 0o2770))
		case v.ConfigMap != nil:
			var of *corev1.ConfigMap
			of, err = n.client.CoreV1().ConfigMaps(p.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) && v.ConfigMap.Optional != nil && *v.ConfigMap.Optional {
				of, err = &corev1.ConfigMap{}, nil
			}
			if err == nil {
				err = write(p, dir, of.Data, 0o644, 0)
			}
		case v.Projected != nil:
			err = n.project(ctx, p, v.Projected, dir, c.User)
		default:
			err = errors.New("a volume of its kind is not supported")
		}
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		out[v.Name] = dir
	}
	return out, nil
}

// hostPath is where the node has a path: its own folder, but for the kernel's modules.
func (n *Node) hostPath(path string) string {
	if _, err := os.Stat(path); err == nil && path == "/lib/modules" {
		return path
	}
	return filepath.Join(n.c.dir, "node-"+n.Name, path)
}

// project a token, a ConfigMap and fields of the pod into one folder.
func (n *Node) project(ctx context.Context, p *corev1.Pod, of *corev1.ProjectedVolumeSource, dir string, user int) error {
	files, mode := map[string]string{}, os.FileMode(0o644)
	for _, s := range of.Sources {
		switch {
		case s.ServiceAccountToken != nil:
			token, err := n.token(ctx, p, s.ServiceAccountToken)
			if err != nil {
				return err
			}
			files[s.ServiceAccountToken.Path], mode = token, 0o600 // as all containers have one user
		case s.ConfigMap != nil:
			from, err := n.client.CoreV1().ConfigMaps(p.Namespace).Get(ctx, s.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, item := range s.ConfigMap.Items {
				files[item.Path] = from.Data[item.Key]
			}
		case s.DownwardAPI != nil:
			for _, item := range s.DownwardAPI.Items {
				name, annotation := "", false
				if item.FieldRef != nil {
					name, annotation = strings.CutPrefix(item.FieldRef.FieldPath, "metadata.annotations['")
				}
				switch {
				case annotation:
					files[item.Path] = p.Annotations[strings.TrimSuffix(name, "']")]
				case name == "metadata.namespace":
					files[item.Path] = p.Namespace
				default:
					return fmt.Errorf("item %s is not supported", item.Path)
				}
			}
		default:
			return errors.New("a source of its kind is not supported")
		}
	}
	return write(p, dir, files, mode, user)
}

// token of the pod's service account, bound to the pod.
func (n *Node) token(ctx context.Context, p *corev1.Pod, of *corev1.ServiceAccountTokenProjection) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: of.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
	}}
	if of.Audience != "" {
		request.Spec.Audiences = []string{of.Audience}
	}
	made, err := n.client.CoreV1().ServiceAccounts(p.Namespace).CreateToken(ctx, p.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return made.Status.Token, nil
}

// write files into a volume, which may be in use: each is a link by way of a folder that is
// replaced as a whole (k8s.io/kubernetes, pkg/volume/util/atomic_writer.go).
func write(p *corev1.Pod, dir string, files map[string]string, mode os.FileMode, user int) error {
	const data = "..data"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	at, err := os.MkdirTemp(dir, "..")
	if err != nil {
		return err
	}
	if err := os.Chmod(at, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(at, name)
		err := errors.Join(os.WriteFile(path, []byte(files[name]), mode), os.Chown(path, user, -1), own(p, path, mode|0o040))
		if err != nil {
			return err
		}
	}
	next := at + "-link"
	if err := errors.Join(os.Symlink(filepath.Base(at), next), os.Rename(next, filepath.Join(dir, data))); err != nil {
		return err
	}
	for name := range files {
		if err := os.Symlink(filepath.Join(data, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// refresh ConfigMaps in the volumes of a container that runs, as kubelet does, until ctx ends.
func (n *Node) refresh(ctx context.Context, p *corev1.Pod) {
	tick := time.NewTicker(refreshPeriod)
	defer tick.Stop()
	last := map[string]map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, v := range p.Spec.Volumes {
			if v.ConfigMap == nil {
				continue
			}
			of, err := n.client.CoreV1().ConfigMaps(p.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
			if err != nil || maps.Equal(of.Data, last[v.Name]) {
				continue
			}
			if err := write(p, n.volumeDir(p, v.Name), of.Data, 0o644, 0); err != nil {
				n.t.Errorf("volume %s of pod %s: %v", v.Name, p.Name, err)
			}
			last[v.Name] = of.Data
		}
	}
}

// refreshPeriod of volumes; kubelet's is a minute.
const refreshPeriod = 2 * time.Second

func (n *Node) volumeDir(p *corev1.Pod, volume string) string {
	return filepath.Join(n.c.dir, "volumes", string(p.UID), volume)
}

// own gives a file of a volume to the group of the pod's volumes, if it has one.
func own(p *corev1.Pod, path string, mode os.FileMode) error {
	if p.Spec.SecurityContext == nil || p.Spec.SecurityContext.FSGroup == nil {
		return nil
	}
	perm := mode.Perm()
	if mode&0o2000 != 0 {
		perm |= os.ModeSetgid
	}
	return errors.Join(os.Chown(path, -1, int(*p.Spec.SecurityContext.FSGroup)), os.Chmod(path, perm))
}

// container of a pod's first container, with its volumes, its variables and files for its network.
func (n *Node) container(ctx context.Context, p *corev1.Pod, addr string) (*container, error) {
	of := &p.Spec.Containers[0]
	img := n.c.images[of.Image]
	c, err := newContainer(img, &p.Spec, of)
	if err != nil {
		return nil, err
	}
	volumes, err := n.volumes(ctx, p, c)
	if err != nil {
		return nil, err
	}
	for _, m := range of.VolumeMounts {
		c.Mounts = append(c.Mounts, mount{volumes[m.Name], m.MountPath, m.ReadOnly})
	}
	dir := filepath.Join(n.c.dir, "containers", string(p.UID))
	c.Root = filepath.Join(dir, "root")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"hosts": "127.0.0.1 localhost\n::1 localhost\n" + addr + " " + p.Name + "\n",
		"resolv.conf": "nameserver " + DNSAddr + "\nsearch " + p.Namespace +
			".svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
		c.Mounts = append(c.Mounts, mount{filepath.Join(dir, name), "/etc/" + name, false})
	}
	if err := n.variables(p, of, img, addr, c); err != nil {
		return nil, err
	}
	command := of.Command
	if len(command) == 0 {
		command = img.config.Entrypoint
	}
	c.Command = expand(append(slices.Clone(command), of.Args...), c.Env)
	return c, img.instance(c.Root)
}

// DNSAddr is where pods ask for names. Nobody answers there, unless a test has a Service of it.
const DNSAddr = "10.96.0.10"

// variables of the image, those of the API server's Service, and the container's own.
func (n *Node) variables(p *corev1.Pod, of *corev1.Container, img *image, addr string, c *container) error {
	first, err := firstServiceIP(n.c.cidr)
	if err != nil {
		return err
	}
	c.Env = append(slices.Clone(img.config.Env), "KUBERNETES_SERVICE_HOST="+first.String(), "KUBERNETES_SERVICE_PORT=443", "HOSTNAME="+p.Name)
	for _, e := range of.Env {
		value := e.Value
		if e.ValueFrom != nil {
			fields := map[string]string{
				"spec.nodeName": n.Name, "status.podIP": addr, "status.hostIP": n.Addr,
				"metadata.namespace": p.Namespace, "metadata.name": p.Name,
			}
			known := false
			if e.ValueFrom.FieldRef != nil {
				value, known = fields[e.ValueFrom.FieldRef.FieldPath]
			}
			if !known {
				return fmt.Errorf("the source of variable %s is not supported", e.Name)
			}
		}
		c.Env = append(c.Env, e.Name+"="+value)
	}
	return nil
}

// expand references to variables in arguments, as $(NAME).
func expand(args, env []string) []string {
	var pairs []string
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		pairs = append(pairs, "$("+name+")", value)
	}
	r := strings.NewReplacer(pairs...)
	out := make([]string, 0, len(args))
	for _, a := range args {
		out = append(out, r.Replace(a))
	}
	return out
}

// process of a pod without an image: the command of its first container. Its variable HOSTNAME is the
// pod's name, as container runtimes set it.
func (n *Node) process(p *corev1.Pod, addr string) ([]string, []string, error) {
	of := p.Spec.Containers[0]
	env := append(testkit.CleanEnv(), "HOSTNAME="+p.Name)
	for _, e := range of.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	command := of.Command
	if len(command) == 0 {
		command = n.c.Programs.Entrypoints[of.Image]
	}
	args := append(append([]string(nil), command...), of.Args...)
	if len(args) == 0 {
		return nil, nil, errors.New("its container has no command, and there is no image of its name")
	}
	return expand(args, []string{"POD_IP=" + addr, "NODE_NAME=" + n.Name}), env, nil // fields that manifests of ours refer to
}

// port of a probe, by number or name.
func port(of *corev1.Container, probe *corev1.Probe) string {
	want := probe.HTTPGet.Port
	for _, p := range of.Ports {
		if p.Name == want.StrVal && want.StrVal != "" {
			return fmt.Sprint(p.ContainerPort)
		}
	}
	return want.String()
}

// probeURL is what kubelet asks for the readiness of a pod.
func probeURL(p *corev1.Pod, addr string) string {
	of := &p.Spec.Containers[0]
	get := of.ReadinessProbe.HTTPGet
	return strings.ToLower(string(get.Scheme)) + "://" + net.JoinHostPort(addr, port(of, of.ReadinessProbe)) + get.Path
}
