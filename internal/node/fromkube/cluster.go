// Package fromkube feeds an agent straight from a Kubernetes API, without a
// control plane of ours: this is how the agent takes kube-proxy's place.
//
// It owns the watching of Services, EndpointSlices and the agent's own Node, and
// the reading of kube-proxy's configuration file. Enter at [New], then
// [Feed.Run]; what arrives is handed on as the same updates that node views
// bring. It never writes, and keeps nothing but names.
package fromkube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Config of a Feed.
type Config struct {
	// REST reaches the API. It is copied.
	REST *rest.Config
	// Node is the name of the agent's own Node.
	Node string
	// Names: headless Services and external names are wanted, too. Without them
	// the API is asked for what the data path carries only, as kube-proxy does.
	Names bool
	// Update gets what changed; the first call is the whole state, with Reset. One
	// call at a time.
	Update func(node.Update)
	// OnNode gets the Node whenever it is new or different, and nil when there is
	// none (any more). One call at a time, and never together with Update.
	OnNode func(*corev1.Node)
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Selectors of kube-proxy: Services of another proxy, or of none, are not sent.
const (
	serviceSelector = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"
	sliceSelector   = serviceSelector
)

// Feed follows an API. Make it with New.
type Feed struct {
	cfg    Config
	client map[schema.GroupVersion]*rest.RESTClient

	mu sync.Mutex
	// initial collects the first state of each kind; nil once handed over.
	initial  *node.Update
	services map[proxy.ServiceName]struct{}
	slices   map[proxy.SliceName]struct{}
	seen     map[string]bool // kinds that have been read once
	status   Status
}

// Status reports how the API is followed.
type Status struct {
	// Synced: the whole state has been read once.
	Synced bool `json:"synced"`
	// Services and Slices are those that are known, of the kinds that are wanted.
	Services int `json:"services"`
	Slices   int `json:"slices"`
	// LastEvent is the time of the last event from the API, bookmarks excluded.
	LastEvent time.Time `json:"lastEvent,omitzero"`
	// LastError is the latest failure to list or watch; it stays after a recovery.
	LastError     string    `json:"lastError,omitempty"`
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"`
}

// New makes a feed. It opens no connection.
func New(cfg Config) (*Feed, error) {
	if cfg.Node == "" {
		return nil, errors.New("cluster feed: no node name given")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Feed{
		cfg: cfg, client: map[schema.GroupVersion]*rest.RESTClient{},
		initial:  &node.Update{},
		services: map[proxy.ServiceName]struct{}{}, slices: map[proxy.SliceName]struct{}{},
		seen: map[string]bool{},
	}
	base := rest.CopyConfig(cfg.REST)
	if base.Dial == nil && base.Transport == nil {
		// client-go's own gives 30 s to an API that is not there: a connection begun
		// during an outage would wait for the kernel's next SYN.
		base.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	http, err := rest.HTTPClientFor(base)
	if err != nil {
		return nil, fmt.Errorf("cluster feed: client configuration: %w", err)
	}
	for gv, path := range map[schema.GroupVersion]string{corev1.SchemeGroupVersion: "/api", discoveryv1.SchemeGroupVersion: "/apis"} {
		if f.client[gv], err = newClient(base, http, gv, path); err != nil {
			return nil, fmt.Errorf("cluster feed: client for %s: %w", gv, err)
		}
	}
	return f, nil
}

func newClient(base *rest.Config, http *http.Client, gv schema.GroupVersion, path string) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	cfg := rest.CopyConfig(base)
	cfg.GroupVersion, cfg.APIPath = &gv, path
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.ContentType = runtime.ContentTypeProtobuf
	return rest.RESTClientForConfigAndClient(cfg, http)
}

// Pauses between two attempts to reach the API. The pause doubles, and each is
// made longer at random by up to retryJitter of itself, so that many agents do
// not ask at the same moment. client-go's own would grow to a minute, for which
// time an agent would be stale after the API's return. With lastRetry, 5000
// agents of three watches each ask 10000 times a second at most, and an API that
// refuses connections bears that.
const (
	firstRetry  = 200 * time.Millisecond
	lastRetry   = time.Second
	retryJitter = 1.0
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 2 * time.Second
)

// retryBackoff pauses for 2 s at most, jitter included.
func retryBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: firstRetry, Cap: lastRetry, Factor: 2, Jitter: retryJitter, Steps: 10}
}

// Run follows the API until ctx ends; it returns nil. A connection that breaks
// is taken up again, with a growing pause. Call it once.
func (f *Feed) Run(ctx context.Context) error {
	var running sync.WaitGroup
	follow := func(what string, gv schema.GroupVersion, object runtime.Object, options func(*metav1.ListOptions), store cache.ReflectorStore) {
		lw := cache.NewFilteredListWatchFromClient(f.client[gv], what, metav1.NamespaceAll, options)
		log := logr.FromSlogHandler(f.cfg.Logger.With("resource", what).Handler())
		r := cache.NewReflectorWithOptions(f.noting(lw), object, store, cache.ReflectorOptions{Name: what, Logger: &log, Backoff: retryBackoff()})
		running.Go(func() { r.RunWithContext(ctx) })
	}
	selector := func(text string) func(*metav1.ListOptions) {
		return func(o *metav1.ListOptions) {
			if !f.cfg.Names {
				o.LabelSelector = text
			}
		}
	}
	follow("services", corev1.SchemeGroupVersion, &corev1.Service{}, selector(serviceSelector), &store[*corev1.Service]{feed: f, what: "services", put: f.putService, drop: f.dropService, replaced: f.replacedServices})
	follow("endpointslices", discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, selector(sliceSelector), &store[*discoveryv1.EndpointSlice]{feed: f, what: "endpointslices", put: f.putSlice, drop: f.dropSlice, replaced: f.replacedSlices})
	own := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, f.cfg.Node).String()
	}
	follow("nodes", corev1.SchemeGroupVersion, &corev1.Node{}, own, &nodeStore{feed: f})
	running.Wait()
	return nil
}

// Status is for people and diagnosis.
func (f *Feed) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Synced, s.Services, s.Slices = f.initial == nil, len(f.services), len(f.slices)
	return s
}

// fail notes an error of the API for status.
func (f *Feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.LastError, f.status.LastErrorTime = err.Error(), time.Now()
}

// change runs a change of the state and hands on what came of it. Until every
// kind was read once it is collected. Called with nothing held.
func (f *Feed) change(do func(*node.Update)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.LastEvent = time.Now()
	if f.initial != nil {
		do(f.initial)
		f.handOverInitial()
		return
	}
	var u node.Update
	do(&u)
	if !u.Empty() {
		f.cfg.Update(u)
	}
}

// handOverInitial hands the first state on when every kind was read, the Node
// included: it has the zone, without which hints would be misjudged.
func (f *Feed) handOverInitial() {
	if !f.seen["services"] || !f.seen["endpointslices"] || !f.seen["nodes"] {
		return
	}
	u := *f.initial
	f.initial = nil
	u.Reset = true
	f.cfg.Update(u)
}
