package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Ports of a sidecar, and the user that it runs as, by which its connections are told from those of
// the Pod: CONTRACT's.
const (
	MetricsPort = 15020
	HealthPort  = 15021
	User        = 5678
)

// Audience of the token by which a sidecar gets its certificate.
const Audience = "proxima"

// Names of what is added to a Pod.
const (
	Container        = "proxima-sidecar"
	installer        = "proxima-sidecar-install"
	programVolume    = "proxima-sidecar-program"
	stateVolume      = "proxima-sidecar"
	credentialVolume = "proxima-sidecar-credentials"

	programDir    = "/usr/lib/proxima"
	stateDir      = "/run/proxima-sidecar"
	credentialDir = "/var/run/secrets/proxima"
)

// tokenSeconds is how long a token is valid; the kubelet renews it in time. It is used when a
// certificate is asked for.
const tokenSeconds = 3600

// Config of sidecars. Image, Envoy, Server and Authorities are required.
type Config struct {
	// Image of the program proxima-sidecar, which is copied from it into the container of Envoy.
	Image string
	// Envoy is the image of Envoy, unmodified: 1.37 or newer, with the program "envoy" in its path.
	Envoy      string
	PullPolicy corev1.PullPolicy
	Resources  corev1.ResourceRequirements
	// Server (HOST:PORT) of xDS, and the authorities of its certificate (PEM).
	Server      string
	Authorities []byte
	// Site of the control plane.
	Site string
	// Concurrency is the number of Envoy's threads; 0: 2.
	Concurrency int
}

// Operation of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Result of Patch.
type Result struct {
	// Patch of the Pod; empty: it stays as it is.
	Patch []Operation
	// Warnings for the user that creates it.
	Warnings []string
}

// Patch adds a sidecar to a Pod that is created in a namespace (nil: unknown) of a mesh, if it is
// to have one. An error says why it cannot have one; the Pod is as it was then.
func (c *Config) Patch(pod *corev1.Pod, namespace *corev1.Namespace, mesh string) (Result, error) {
	var of metav1.Object
	if namespace != nil {
		of = namespace
	}
	wanted, err := Wanted(pod, of)
	if err != nil || !wanted {
		return Result{}, err
	}
	if _, has := pod.Annotations[meshv1alpha1.AnnotationSidecar]; has {
		return Result{}, nil // asked again
	}
	if pod.Spec.HostNetwork {
		return Result{}, errors.New("the Pod is in the network of its node (hostNetwork), whose connections are not led to a sidecar")
	}
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range all {
			if all[i].Name == Container || all[i].Name == installer {
				return Result{}, fmt.Errorf("the Pod has a container %s of its own", all[i].Name)
			}
		}
	}
	sidecar, err := sidecarFor(pod, namespace, mesh)
	if err != nil {
		return Result{}, err
	}
	var r Result
	probes, err := r.probes(pod)
	if err != nil {
		return Result{}, err
	}
	for _, c := range running(&pod.Spec) {
		if hooked(c) {
			r.warn("container %s: hooks of HTTP come from outside the mesh, and are refused where it is strict: exclude their port (%s), or use exec",
				c.Name, meshv1alpha1.AnnotationExcludeInbound)
		}
		if s := c.SecurityContext; s != nil && s.RunAsUser != nil && *s.RunAsUser == User {
			r.warn("container %s runs as user %d, the sidecar's: its connections do not pass the sidecar", c.Name, User)
		}
	}
	if len(sidecar.Ports) == 0 {
		r.warn("no container declares a port (containerPort): connections to the Pod do not pass its sidecar; see annotation %s",
			meshv1alpha1.AnnotationInboundPorts)
	}
	text, err := json.Marshal(sidecar)
	if err != nil {
		return Result{}, err
	}
	r.add(pod.Annotations == nil, "/metadata/annotations", map[string]string{}, [][2]any{
		{"/" + escape(meshv1alpha1.AnnotationSidecar), string(text)}, {"/" + escape(meshv1alpha1.AnnotationServerCA), string(c.Authorities)},
	})
	r.add(len(pod.Spec.Volumes) == 0, "/spec/volumes", []any{}, volumes())
	r.add(len(pod.Spec.InitContainers) == 0, "/spec/initContainers", []any{}, [][2]any{
		{"/0", c.installer()}, {"/1", c.container(mesh, probes)},
	})
	return r, nil
}

func (r *Result) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf("sidecar: "+format, args...))
}

// add values below a path, which is made where it is not there.
func (r *Result) add(missing bool, path string, empty any, values [][2]any) {
	if missing {
		r.Patch = append(r.Patch, Operation{"add", path, empty})
	}
	for _, v := range values {
		r.Patch = append(r.Patch, Operation{"add", path + fmt.Sprint(v[0]), v[1]})
	}
}

// escape a key for a path (RFC 6901).
func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// probes leads the probes of containers to the sidecar, and returns what that needs to know.
func (r *Result) probes(pod *corev1.Pod) ([]string, error) {
	var flags []string
	each := func(list string, all []corev1.Container) error {
		for i := range all {
			c := &all[i]
			for _, of := range []struct {
				name  string
				probe *corev1.Probe
			}{{"startupProbe", c.StartupProbe}, {"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}} {
				flag, action, ok, err := asked(of.probe, c)
				if err != nil {
					return fmt.Errorf("%s of container %s: %w", of.name, c.Name, err)
				}
				if !ok {
					continue
				}
				led := of.probe.DeepCopy()
				led.ProbeHandler = corev1.ProbeHandler{HTTPGet: &action}
				r.Patch = append(r.Patch, Operation{"replace", fmt.Sprintf("/spec/%s/%d/%s", list, i, of.name), led})
				if !slices.Contains(flags, flag) {
					flags = append(flags, flag)
				}
			}
		}
		return nil
	}
	if err := each("containers", pod.Spec.Containers); err != nil {
		return nil, err
	}
	// Those of initContainers have their places until the sidecar is put before them.
	if err := each("initContainers", pod.Spec.InitContainers); err != nil {
		return nil, err
	}
	return flags, nil
}

func volumes() [][2]any {
	mode := int32(0o444)
	seconds := int64(tokenSeconds)
	all := []corev1.Volume{
		{Name: programVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: stateVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: credentialVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: &mode, Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: Audience, ExpirationSeconds: &seconds, Path: "token"}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
					Path: "ca.crt", FieldRef: field("metadata.annotations['" + meshv1alpha1.AnnotationServerCA + "']"),
				}}}},
			},
		}}},
	}
	var out [][2]any
	for i := range all {
		out = append(out, [2]any{"/-", &all[i]})
	}
	return out
}

func field(path string) *corev1.ObjectFieldSelector {
	return &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}
}

// confined is what the restricted standard of pod security asks for.
func confined() *corev1.SecurityContext {
	no, yes, user := false, true, int64(User)
	return &corev1.SecurityContext{
		RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// installer copies the program to where the container of Envoy has it.
func (c *Config) installer() *corev1.Container {
	return &corev1.Container{
		Name: installer, Image: c.Image, ImagePullPolicy: c.PullPolicy,
		Args:            []string{"--install", programDir + "/proxima-sidecar"},
		VolumeMounts:    []corev1.VolumeMount{{Name: programVolume, MountPath: programDir}},
		SecurityContext: confined(), Resources: c.Resources,
	}
}

// Times of the sidecar's probes.
const (
	startPeriod   = 1   // s
	startFailures = 300 // 5 min: an image of Envoy, a certificate and a configuration
	readyPeriod   = 5   // s
)

// container is a native sidecar (KEP-753): it starts before all others of the Pod and ends after
// them.
func (c *Config) container(mesh string, probes []string) *corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	variable := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: field(path)}}
	}
	concurrency := c.Concurrency
	if concurrency == 0 {
		concurrency = 2
	}
	args := []string{
		"--node-id=" + mesh + "/$(POD_NAMESPACE)/$(POD_NAME)", "--cluster=$(POD_NAMESPACE)/$(POD_SERVICE_ACCOUNT)",
		"--site=" + c.Site, "--server=" + c.Server, "--server-ca-file=" + credentialDir + "/ca.crt", "--token-file=" + credentialDir + "/token",
		"--dir=" + stateDir, "--redirect=agent", fmt.Sprintf("--concurrency=%d", concurrency),
	}
	if len(probes) > 0 {
		args = append(args, "--probes="+strings.Join(probes, ","))
	}
	ready := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(HealthPort), Scheme: corev1.URISchemeHTTP}}
	return &corev1.Container{
		Name: Container, Image: c.Envoy, ImagePullPolicy: c.PullPolicy, RestartPolicy: &always,
		Command: []string{programDir + "/proxima-sidecar"}, Args: args,
		Env: []corev1.EnvVar{
			variable("POD_NAME", "metadata.name"), variable("POD_NAMESPACE", "metadata.namespace"),
			variable("POD_SERVICE_ACCOUNT", "spec.serviceAccountName"),
		},
		Ports: []corev1.ContainerPort{
			{Name: "proxy-metrics", ContainerPort: MetricsPort, Protocol: corev1.ProtocolTCP}, {Name: "proxy-health", ContainerPort: HealthPort, Protocol: corev1.ProtocolTCP},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: programVolume, MountPath: programDir, ReadOnly: true}, {Name: stateVolume, MountPath: stateDir},
			{Name: credentialVolume, MountPath: credentialDir, ReadOnly: true},
		},
		StartupProbe:   &corev1.Probe{ProbeHandler: ready, PeriodSeconds: startPeriod, FailureThreshold: startFailures},
		ReadinessProbe: &corev1.Probe{ProbeHandler: ready, PeriodSeconds: readyPeriod},
		// At the end of the Pod clients go elsewhere while its containers serve on; the sidecar itself ends after them.
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
			Command: []string{programDir + "/proxima-sidecar", "--drain-running", stateDir},
		}}},
		Resources: c.Resources, SecurityContext: confined(),
	}
}
