package eureka

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// maxBody of a request, in bytes: that of a replica has many instances.
const maxBody = 4 << 20

// Server serves clients of Eureka. Make it with New.
type Server struct {
	core   *registry.Core
	log    *slog.Logger
	views  *views
	leases *leases
	// impatient clients are answered at once.
	impatient impatient
	// ended is set when Serve's context ends.
	ended atomic.Bool
}

// New makes a server; Serve starts it.
func New(core *registry.Core) *Server {
	log := core.Logger.With("protocol", string(registry.Eureka))
	return &Server{core: core, log: log, views: newViews(core), leases: newLeases(log)}
}

// Serve answers at l until ctx ends, and returns nil then. It closes l. It must be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		ConnContext: withConn,
	}
	done := make(chan struct{})
	running, stop := context.WithCancel(ctx)
	go func() {
		defer close(done)
		go s.views.run(running)
		s.leases.run(running, s.end)
	}()
	defer func() { stop(); <-done }()
	end := context.AfterFunc(ctx, func() {
		s.ended.Store(true)
		_ = server.Close()
	})
	defer end()
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

// end of a lease that has run out.
func (s *Server) end(l *leased) {
	s.core.Meters.Client(registry.Eureka, -1)
	l.session.Close(0)
}

// answer to a request: a status, and a document or a text.
type answer struct {
	status int
	body   []byte
	format *format // of a document; nil: a text
	err    error
}

func refuse(status int, err error) answer {
	return answer{status: status, body: []byte(err.Error() + "\n"), err: err}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a := s.answer(w, req)
	s.core.Meters.Request(registry.Eureka, a.err)
	h := w.Header()
	switch {
	case a.format != nil:
		h.Set("Content-Type", "application/json")
		if a.format.xml {
			h.Set("Content-Type", "application/xml")
		}
		if a.format.gzip {
			h.Set("Content-Encoding", "gzip")
		}
		h.Set("Vary", "Accept, Accept-Encoding, X-Eureka-Accept")
	case len(a.body) > 0:
		h.Set("Content-Type", "text/plain; charset=utf-8")
	}
	if a.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Basic realm="proxima"`)
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the client may be gone
}

// request is one of a client, as far as all have it alike.
type request struct {
	*http.Request
	user   registry.User
	key    viewKey
	format format
	path   []string // behind the prefix
	from   netip.Addr
	conn   *conn
}

func (s *Server) answer(w http.ResponseWriter, req *http.Request) answer {
	if err := s.core.Started(); err != nil {
		return refuse(http.StatusServiceUnavailable, err)
	}
	namespace, path, ok := split(req.URL.Path)
	if !ok {
		return refuse(http.StatusNotFound, fmt.Errorf("there is nothing at %.100q: the service URL of this registry ends with /eureka/", req.URL.Path))
	}
	from, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	_, token, _ := req.BasicAuth()
	user, err := s.core.Gate.Admit(req.Context(), from.Addr(), token)
	if err != nil {
		return refuse(http.StatusUnauthorized, err)
	}
	if namespace == "" && len(user.Namespaces) == 1 {
		namespace = user.Namespaces[0]
	}
	r := &request{
		Request: req, user: user, path: path, format: formatOf(req), from: from.Addr(), conn: connOf(req),
		key: viewKey{namespace: s.core.Namespaces.Of(namespace)},
	}
	_, r.key.zone = s.core.Locate(from.Addr())
	req.Body = http.MaxBytesReader(w, req.Body, maxBody)
	return s.route(r)
}

// split the path of a request: [/namespaces/NAME]/eureka[/v2]/….
func split(path string) (namespace string, rest []string, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	if len(parts) < 2 || parts[0] != "eureka" {
		return "", nil, false
	}
	if parts = parts[1:]; parts[0] == "v2" {
		parts = parts[1:]
	}
	return namespace, parts, len(parts) > 0
}

// formatOf the answer: Eureka's servers write XML unless the client wants JSON.
func formatOf(req *http.Request) format {
	accept := req.Header.Get("Accept")
	return format{
		xml:     !strings.Contains(accept, "json"),
		gzip:    strings.Contains(req.Header.Get("Accept-Encoding"), "gzip"),
		compact: strings.EqualFold(req.Header.Get("X-Eureka-Accept"), "compact"),
	}
}

// route a request to what answers it.
func (s *Server) route(r *request) answer {
	p := r.path
	switch read := r.Method == http.MethodGet; {
	case read && len(p) == 1 && p[0] == "apps":
		b, version := s.views.full(r.key, r.format)
		r.conn.answered(r.key, version)
		return s.document(r, b)
	case read && len(p) == 2 && p[0] == "apps" && p[1] == "delta":
		s.hold(r)
		b, version := s.views.delta(r.key, r.format)
		r.conn.answered(r.key, version)
		return s.document(r, b)
	case read && len(p) == 2 && p[0] == "apps":
		return s.document(r, s.views.app(r.key, r.format, p[1]))
	case read && len(p) == 3 && p[0] == "apps":
		return s.document(r, s.views.instance(r.key, r.format, p[1], p[2]))
	case read && len(p) == 2 && p[0] == "instances":
		return s.document(r, s.views.instance(r.key, r.format, "", p[1]))
	case read && len(p) == 2 && (p[0] == "vips" || p[0] == "svips"):
		return s.byVIP(r, p[1], p[0] == "svips")
	case len(p) == 2 && p[0] == "apps" && r.Method == http.MethodPost:
		return s.register(r, p[1])
	case len(p) == 2 && p[0] == "peerreplication" && p[1] == "batch" && r.Method == http.MethodPost:
		return s.replicate(r)
	case len(p) >= 3 && p[0] == "apps":
		return s.change(r, p[1], p[2], p[3:])
	}
	return refuse(http.StatusNotFound, fmt.Errorf("%s of %.100q is not part of Eureka's protocol", r.Method, r.URL.Path))
}

func (s *Server) document(r *request, b []byte) answer {
	if b == nil {
		return answer{status: http.StatusNotFound}
	}
	return answer{status: http.StatusOK, body: b, format: &r.format}
}

func (s *Server) byVIP(r *request, vip string, secure bool) answer {
	b, n := s.views.some(r.key, r.format, func(in *info) bool {
		names := in.VIP
		if secure {
			names = in.SecureVIP
		}
		return slices.Contains(strings.Split(names, ","), vip)
	})
	if n == 0 {
		return answer{status: http.StatusNotFound}
	}
	return s.document(r, b)
}

// body of a request, which may be packed.
func (r *request) body() ([]byte, error) {
	var from io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, fmt.Errorf("read the packed body: %w", err)
		}
		from = io.LimitReader(z, maxBody+1)
	}
	b, err := io.ReadAll(from)
	if len(b) > maxBody {
		return nil, fmt.Errorf("the body has more than %d bytes", maxBody)
	}
	return b, err
}

func (s *Server) register(r *request, app string) answer {
	b, err := r.body()
	if err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	decode := decodeJSON
	if strings.Contains(r.Header.Get("Content-Type"), "xml") || bytes.HasPrefix(bytes.TrimSpace(b), []byte("<")) {
		decode = decodeXML
	}
	in, err := decode(b)
	if err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	return s.registerInfo(r, app, in)
}

func (s *Server) registerInfo(r *request, app string, in *info) answer {
	if err := in.check(app); err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	now := millis(time.Now())
	in.Lease.Registered, in.LastUpdated = cmp.Or(in.Lease.Registered, now), now
	if in.Status == statusUp {
		in.Lease.ServiceUp = cmp.Or(in.Lease.ServiceUp, now)
	}
	out, err := in.instance(r.key.namespace)
	if err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	if err := s.core.CheckNamespace(r.key.namespace); err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	s.core.Place(out)
	if err := s.lease(r.Context(), r.user, out, in.duration()); err != nil {
		return s.failed(err)
	}
	return answer{status: http.StatusNoContent}
}

// lease registers an instance, by the session of its lease, or a new one.
func (s *Server) lease(ctx context.Context, user registry.User, in *registry.Instance, duration time.Duration) error {
	key := leaseKey(in)
	have := s.leases.get(key)
	var session *registry.Session
	if have != nil {
		session = have.session
	} else {
		session = s.core.Registrar.Open(registry.Eureka, 0)
	}
	if err := session.Register(ctx, in, user); err != nil && !errors.Is(err, registry.ErrOriginal) {
		if have == nil {
			session.Close(0)
		}
		return err
	}
	switch before := s.leases.put(&leased{key: key, session: session, duration: duration}); {
	case before == nil && have == nil:
		s.core.Meters.Client(registry.Eureka, 1)
	case before != nil: // another request was faster
		before.session.Close(0)
	}
	return nil
}

// paramCopy is a parameter of requests of a mirror: they are about the copy under an ID, and not about the instance itself.
// Other servers do not know it.
const paramCopy = "copy"

// leaseKey of an instance: a copy has a lease of its own beside that of the instance itself.
func leaseKey(in *registry.Instance) resource.Key {
	if in.MirroredFrom() != "" {
		return copyKey(in.Key())
	}
	return in.Key()
}

func copyKey(key resource.Key) resource.Key {
	key.Name += "#copy" // no object has such a name
	return key
}

// changeCopy renews or cancels a copy, which may be kept back as the instance itself is registered.
func (s *Server) changeCopy(r *request, in *registry.Instance, what []string) answer {
	key := in.Key()
	switch {
	case len(what) > 0:
		return refuse(http.StatusMethodNotAllowed, errors.New("a copy is only renewed and cancelled"))
	case r.Method == http.MethodPut && s.leases.renew(copyKey(key)):
		return answer{status: http.StatusOK}
	case r.Method == http.MethodDelete:
		l := s.leases.remove(copyKey(key))
		if l == nil {
			break
		}
		_, err := l.session.Withdraw(r.Context(), key)
		s.end(l)
		if err != nil {
			return s.failed(err)
		}
		return answer{status: http.StatusOK}
	}
	return answer{status: http.StatusNotFound}
}

// failed is the answer for an error of the core.
func (s *Server) failed(err error) answer {
	switch {
	case errors.As(err, new(*registry.ForbiddenError)):
		return refuse(http.StatusForbidden, err)
	case errors.Is(err, registry.ErrNotFound):
		return refuse(http.StatusNotFound, err)
	}
	s.log.Warn("a request of a client of Eureka failed", "error", err)
	return refuse(http.StatusInternalServerError, err)
}

// find the registered instance with an ID of an application.
func (s *Server) find(r *request, app, id string) *registry.Instance {
	name := registry.ParseGrouped(r.key.namespace, strings.ToLower(app))
	for _, in := range s.core.Index.Registered(name) {
		if infoOf(in, 1).id() == id {
			return in
		}
	}
	return nil
}

// change an instance: its lease, status or metadata.
func (s *Server) change(r *request, app, id string, what []string) answer {
	in := s.find(r, app, id)
	copied := r.URL.Query().Get(paramCopy) == "true"
	switch {
	case in == nil, in.MirroredFrom() != "" && !copied: // the client of a copied instance registers it
		return answer{status: http.StatusNotFound}
	case copied:
		return s.changeCopy(r, in, what)
	}
	switch part := strings.Join(what, "/"); {
	case part == "" && r.Method == http.MethodPut:
		return s.renew(r, in)
	case part == "" && r.Method == http.MethodDelete:
		return s.cancel(r, in)
	case part == "status" && r.Method == http.MethodPut:
		return s.override(r, in, r.URL.Query().Get("value"))
	case part == "status" && r.Method == http.MethodDelete:
		return s.override(r, in, statusUp)
	case part == "metadata" && r.Method == http.MethodPut:
		return s.edit(r, in, http.StatusOK, func(in *registry.Instance) error {
			next := map[string]string{}
			for key, value := range in.Metadata {
				next[key] = value
			}
			for key, values := range r.URL.Query() {
				next[key] = values[len(values)-1]
			}
			in.Metadata = next
			return nil
		})
	}
	return refuse(http.StatusMethodNotAllowed, fmt.Errorf("%s of %.100q is not part of Eureka's protocol", r.Method, r.URL.Path))
}

// renew a lease. The client of an instance that changed meanwhile registers again (404); one that is
// renewed here for the first time, as another instance of the control plane is gone, is taken over.
func (s *Server) renew(r *request, in *registry.Instance) answer {
	if in.Protocol != registry.Eureka || !in.Ephemeral {
		return answer{status: http.StatusNotFound}
	}
	stored := &info{}
	if err := json.Unmarshal(in.Detail, stored); err != nil {
		return answer{status: http.StatusNotFound}
	}
	if text := r.URL.Query().Get("lastDirtyTimestamp"); text != "" {
		if dirty, err := strconv.ParseInt(text, 10, 64); err == nil && dirty > int64(stored.LastDirty) {
			return answer{status: http.StatusNotFound}
		}
	}
	if s.leases.renew(in.Key()) {
		return answer{status: http.StatusOK}
	}
	if err := s.lease(r.Context(), r.user, in, stored.duration()); err != nil {
		return s.failed(err)
	}
	return answer{status: http.StatusOK}
}

func (s *Server) cancel(r *request, in *registry.Instance) answer {
	key := in.Key()
	if err := s.core.Registrar.Remove(r.Context(), key, r.user); err != nil {
		return s.failed(err)
	}
	if l := s.leases.remove(key); l != nil {
		s.end(l)
	}
	return answer{status: http.StatusOK}
}

// override the status that an instance registered.
func (s *Server) override(r *request, in *registry.Instance, status string) answer {
	if !validStatus(status) {
		return refuse(http.StatusBadRequest, fmt.Errorf("status %.40q is none of UP, DOWN, STARTING, OUT_OF_SERVICE, UNKNOWN", status))
	}
	return s.edit(r, in, http.StatusOK, func(in *registry.Instance) error {
		switch status {
		case statusOutOfService:
			in.Enabled = false
		case statusUp:
			in.Enabled, in.Healthy = true, true
		default:
			in.Healthy = false
		}
		return nil
	})
}

func (s *Server) edit(r *request, in *registry.Instance, status int, change func(*registry.Instance) error) answer {
	if err := s.core.Registrar.Edit(r.Context(), in.Key(), r.user, change); err != nil {
		return s.failed(err)
	}
	return answer{status: status}
}
