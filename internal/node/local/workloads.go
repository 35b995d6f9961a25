package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// WorkloadsConfig configures Workloads.
type WorkloadsConfig struct {
	// Client writes with the node's credential.
	Client resource.Client
	// Node is the agent's own.
	Node string
	// MachineID of this machine.
	MachineID string
	// Logger; nil: discard.
	Logger *slog.Logger
}

// Workloads serves the part of the Kubernetes API that `proxima run` needs, with the
// node's credential: create, get, update, update of the status and delete of
// Dataplanes whose spec.nodeName is the agent's node, and reads of Services, which
// are passed to commands in environment variables. Everything else is not found, and
// Dataplanes of other nodes are forbidden. Each Dataplane written is annotated with
// the machine's ID. Bodies are JSON.
func Workloads(cfg WorkloadsConfig) http.Handler {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w := &workloads{cfg}
	const (
		services   = "/api/v1/namespaces/{namespace}/services"
		dataplanes = "/apis/mesh.proxima.dev/v1alpha1/namespaces/{namespace}/dataplanes"
	)
	mux := http.NewServeMux()
	handle := func(pattern string, do func(r *http.Request, key resource.Key) (any, error)) {
		mux.HandleFunc(pattern, func(rw http.ResponseWriter, r *http.Request) {
			out, err := do(r, resource.Key{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")})
			w.answer(rw, r, out, err)
		})
	}
	handle("GET "+services, w.listServices)
	handle("GET "+services+"/{name}", w.getService)
	handle("POST "+dataplanes, w.create)
	handle("GET "+dataplanes+"/{name}", w.get)
	handle("PUT "+dataplanes+"/{name}", w.update)
	handle("PUT "+dataplanes+"/{name}/status", w.updateStatus)
	handle("DELETE "+dataplanes+"/{name}", w.delete)
	handle("/", func(r *http.Request, _ resource.Key) (any, error) {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
			Message: fmt.Sprintf("the agent's socket does not serve %s %s: only Dataplanes of node %s", r.Method, r.URL.Path, cfg.Node),
		}}
	})
	return mux
}

type workloads struct{ WorkloadsConfig }

// maxBody of a request. A Dataplane is small.
const maxBody = 1 << 20

var dataplaneResource = schema.GroupResource{Group: v1alpha1.GroupName, Resource: "dataplanes"}

// answer writes an object, or the reason of a refusal.
func (w *workloads) answer(rw http.ResponseWriter, r *http.Request, out any, err error) {
	code := http.StatusOK
	if err != nil {
		status := statusOf(err)
		code, out = int(status.Code), status
		w.Logger.Debug("request of a local program failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(code)
	_ = json.NewEncoder(rw).Encode(out) // the client may be gone
}

// statusOf an error: the control plane's own answer, or 503 if it gave none.
func statusOf(err error) *metav1.Status {
	var given apierrors.APIStatus
	if !errors.As(err, &given) {
		given = apierrors.NewServiceUnavailable("the control plane cannot be reached by this node's agent: " + err.Error())
	}
	status := given.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return &status
}

func (w *workloads) listServices(r *http.Request, key resource.Key) (any, error) {
	objects, version, err := w.Client.List(r.Context(), kind.Service, resource.ListOptions{Namespace: key.Namespace})
	if err != nil {
		return nil, err
	}
	list := &corev1.ServiceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"},
		ListMeta: metav1.ListMeta{ResourceVersion: version},
		Items:    []corev1.Service{},
	}
	for _, obj := range objects {
		list.Items = append(list.Items, *obj.(*corev1.Service))
	}
	return list, nil
}

func (w *workloads) getService(r *http.Request, key resource.Key) (any, error) {
	obj, err := w.Client.Get(r.Context(), kind.Service, key)
	if err != nil {
		return nil, err
	}
	svc := obj.(*corev1.Service)
	svc.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	return svc, nil
}

func (w *workloads) create(r *http.Request, key resource.Key) (any, error) {
	dp, err := w.body(r, key)
	if err != nil {
		return nil, err
	}
	return typed(w.Client.Create(r.Context(), kind.Dataplane, dp))
}

func (w *workloads) get(r *http.Request, key resource.Key) (any, error) {
	return typed(w.own(r.Context(), key))
}

func (w *workloads) update(r *http.Request, key resource.Key) (any, error) {
	dp, err := w.change(r, key)
	if err != nil {
		return nil, err
	}
	return typed(w.Client.Update(r.Context(), kind.Dataplane, dp))
}

func (w *workloads) updateStatus(r *http.Request, key resource.Key) (any, error) {
	dp, err := w.change(r, key)
	if err != nil {
		return nil, err
	}
	return typed(w.Client.UpdateStatus(r.Context(), kind.Dataplane, dp))
}

func (w *workloads) delete(r *http.Request, key resource.Key) (any, error) {
	var opts metav1.DeleteOptions
	if err := decode(r, &opts, true); err != nil {
		return nil, err
	}
	if _, err := w.own(r.Context(), key); err != nil {
		return nil, err
	}
	pre := resource.Preconditions{Now: opts.GracePeriodSeconds != nil && *opts.GracePeriodSeconds == 0}
	if p := opts.Preconditions; p != nil {
		if p.UID != nil {
			pre.UID = *p.UID
		}
		if p.ResourceVersion != nil {
			pre.ResourceVersion = *p.ResourceVersion
		}
	}
	if err := w.Client.Delete(r.Context(), kind.Dataplane, key, pre); err != nil {
		return nil, err
	}
	return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}, nil
}

// change is the body of an update; what is there now must be this node's, too.
func (w *workloads) change(r *http.Request, key resource.Key) (*v1alpha1.Dataplane, error) {
	dp, err := w.body(r, key)
	if err == nil {
		_, err = w.own(r.Context(), key)
	}
	return dp, err
}

// body is the Dataplane of a request, which must be this node's. An empty name in
// key takes any.
func (w *workloads) body(r *http.Request, key resource.Key) (*v1alpha1.Dataplane, error) {
	var dp v1alpha1.Dataplane
	if err := decode(r, &dp, false); err != nil {
		return nil, err
	}
	if dp.Namespace == "" {
		dp.Namespace = key.Namespace
	}
	if dp.Namespace != key.Namespace || (key.Name != "" && dp.Name != key.Name) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is dataplane %s/%s, the path names %s", dp.Namespace, dp.Name, key))
	}
	if dp.Spec.NodeName != w.Node {
		return nil, w.foreign(key, dp.Name, dp.Spec.NodeName)
	}
	if dp.Annotations == nil {
		dp.Annotations = map[string]string{}
	}
	dp.Annotations[v1alpha1.AnnotationMachineID] = w.MachineID
	return &dp, nil
}

// own reads a Dataplane that must be this node's.
func (w *workloads) own(ctx context.Context, key resource.Key) (*v1alpha1.Dataplane, error) {
	obj, err := w.Client.Get(ctx, kind.Dataplane, key)
	if err != nil {
		return nil, err
	}
	dp := obj.(*v1alpha1.Dataplane)
	if dp.Spec.NodeName != w.Node {
		return nil, w.foreign(key, dp.Name, dp.Spec.NodeName)
	}
	return dp, nil
}

func (w *workloads) foreign(key resource.Key, name, node string) error {
	err := fmt.Errorf("the agent of node %s registers workloads of its own node only; spec.nodeName of %s/%s is %q", w.Node, key.Namespace, name, node)
	return apierrors.NewForbidden(dataplaneResource, name, err)
}

// typed sets the kind, which JSON needs and clients of this program do not return.
func typed[T resource.Object](obj T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(kind.Dataplane.GVK)
	return obj, nil
}

// decode a body of JSON; an empty one only if that is allowed.
func decode(r *http.Request, into any, empty bool) error {
	data, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the body has more than %d bytes", maxBody))
	case err != nil:
		return apierrors.NewBadRequest("read the body: " + err.Error())
	case len(data) == 0 && empty:
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return apierrors.NewBadRequest("the body is not JSON of the expected type: " + err.Error())
	}
	return nil
}
