package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// maxForm of a request by HTTP, in bytes: a configuration, escaped.
const maxForm = 4 << 20

func corev1Key(s registry.Service) resource.Key {
	return resource.Key{Namespace: s.Namespace, Name: s.ServiceName()}
}

// ServeHTTPOn answers by HTTP at l until ctx ends, and returns nil then. It closes l. It must be called
// once.
func (s *Server) ServeHTTPOn(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 2 * time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	running, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { s.beat.run(running) })
	beside.Go(func() { newChecks(s).run(running) })
	defer func() { stop(); beside.Wait() }()
	end := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer end()
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

// call is a request by HTTP.
type call struct {
	*http.Request
	user registry.User
	zone locality.Zone
}

// routes by method and path behind /nacos. v2 and v3 wrap their answers.
func (s *Server) routes() map[string]func(*call) (any, error) {
	return map[string]func(*call) (any, error){
		"POST /v1/ns/instance":                 s.httpRegister,
		"PUT /v1/ns/instance":                  s.httpUpdate,
		"PATCH /v1/ns/instance":                s.httpUpdate,
		"DELETE /v1/ns/instance":               s.httpDeregister,
		"GET /v1/ns/instance":                  s.httpInstance,
		"GET /v1/ns/instance/list":             s.httpInstances,
		"PUT /v1/ns/instance/beat":             s.httpBeat,
		"PUT /v1/ns/health/instance":           s.httpHealth,
		"PUT /v1/ns/health":                    s.httpHealth,
		"PUT /v2/ns/health/instance":           s.httpHealth,
		"PUT /v1/ns/cluster":                   s.httpPutCluster,
		"PUT /v3/admin/ns/cluster":             s.httpPutCluster,
		"POST /v1/ns/service":                  s.httpPutService,
		"PUT /v1/ns/service":                   s.httpPutService,
		"DELETE /v1/ns/service":                s.httpDeleteService,
		"GET /v1/ns/service":                   s.httpService,
		"GET /v1/ns/service/list":              s.httpServices,
		"GET /v1/ns/operator/metrics":          s.httpMetrics,
		"GET /v1/cs/configs":                   s.httpConfig,
		"POST /v1/cs/configs":                  s.httpPublish,
		"DELETE /v1/cs/configs":                s.httpRemove,
		"POST /v1/cs/configs/listener":         s.httpListen,
		"GET /v3/admin/cs/config/list":         s.httpSearch,
		"GET /v1/console/health/readiness":     s.httpReady,
		"GET /v1/console/health/liveness":      s.httpReady,
		"GET /v2/console/health/readiness":     s.httpReady,
		"GET /v2/console/health/liveness":      s.httpReady,
		"GET /v3/admin/core/state/liveness":    s.httpReady,
		"GET /v3/admin/core/state/readiness":   s.httpReady,
		"GET /v1/console/namespaces":           s.httpNamespaces,
		"POST /v2/ns/instance":                 s.httpRegister,
		"PUT /v2/ns/instance":                  s.httpUpdate,
		"DELETE /v2/ns/instance":               s.httpDeregister,
		"GET /v2/ns/instance":                  s.httpInstance,
		"GET /v2/ns/instance/list":             s.httpInstances,
		"GET /v2/ns/service/list":              s.httpServices,
		"GET /v2/cs/config":                    s.httpConfig,
		"POST /v2/cs/config":                   s.httpPublish,
		"DELETE /v2/cs/config":                 s.httpRemove,
		"POST /v3/client/ns/instance":          s.httpRegister,
		"DELETE /v3/client/ns/instance":        s.httpDeregister,
		"GET /v3/client/ns/instance/list":      s.httpInstances,
		"GET /v3/client/cs/config":             s.httpConfig,
		"GET /v1/core/cluster/nodes":           s.httpNodes,
		"GET /v1/ns/catalog/services":          s.httpServices,
		"GET /v3/admin/core/cluster/node/list": s.httpNodes,
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	req.Body = http.MaxBytesReader(w, req.Body, maxForm)
	path := strings.TrimPrefix(strings.TrimSuffix(req.URL.Path, "/"), "/nacos")
	out, err := s.serve(req, path)
	s.core.Meters.Request(registry.Nacos, err)
	wrapped := strings.HasPrefix(path, "/v2/") || strings.HasPrefix(path, "/v3/")
	if err != nil {
		s.writeError(w, err, wrapped)
		return
	}
	if _, login := out.(*loginAnswer); wrapped && !login {
		out = map[string]any{"code": 0, "message": "success", "data": out}
	}
	if text, ok := out.(string); ok {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(text)) // the client may be gone
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(out)
}

func (s *Server) writeError(w http.ResponseWriter, err error, wrapped bool) {
	r := s.refusal(err, "")
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, errNoConfig), errors.Is(err, errNoPath):
		status = http.StatusNotFound
	case errors.Is(err, registry.ErrStarting):
		status = http.StatusServiceUnavailable
	case r.ErrorCode == codeForbidden:
		status = http.StatusForbidden
	case r.ErrorCode == codeInvalid:
		status = http.StatusBadRequest
	}
	if !wrapped {
		http.Error(w, r.Message, status)
		return
	}
	code := status
	if errors.Is(err, errNoConfig) {
		code = 20004 // "resource not found" of Nacos' own codes
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": code, "message": r.Message, "data": nil})
}

var (
	errNoConfig = errors.New("config data not exist")
	errNoPath   = errors.New("this is not part of what is served of Nacos")
)

func (s *Server) serve(req *http.Request, path string) (any, error) {
	if err := req.ParseForm(); err != nil {
		return nil, invalid("the form: %v", err)
	}
	if req.Method == http.MethodPost && (path == "/v1/auth/users/login" || path == "/v1/auth/login" || path == "/v3/auth/user/login") {
		return s.login(req)
	}
	handle := s.byPath[req.Method+" "+path]
	if handle == nil {
		return nil, fmt.Errorf("%w: %s %.100s", errNoPath, req.Method, req.URL.Path)
	}
	if err := s.core.Started(); err != nil {
		return nil, err
	}
	from, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return nil, err
	}
	user, err := s.core.Gate.Admit(req.Context(), from.Addr(), tokenOf(req))
	if err != nil {
		return nil, &problem{codeForbidden, err.Error()}
	}
	_, zone := s.core.Locate(from.Addr())
	return handle(&call{Request: req, user: user, zone: zone})
}

// tokenOf a request: that of a login, or a password.
func tokenOf(req *http.Request) string {
	if t := req.Form.Get("accessToken"); t != "" {
		return t
	}
	if t := req.Header.Get("accessToken"); t != "" {
		return t
	}
	if t, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); ok {
		return t
	}
	if _, password, ok := req.BasicAuth(); ok {
		return password
	}
	return req.Form.Get("password")
}

// loginAnswer is what a login answers: the token is the access token, so it is valid at every instance
// of the control plane.
type loginAnswer struct {
	AccessToken string `json:"accessToken"`
	TokenTTL    int    `json:"tokenTtl"`
	GlobalAdmin bool   `json:"globalAdmin"`
	Username    string `json:"username"`
}

// tokenTTL is when clients log in again, in seconds.
const tokenTTL = 18_000

func (s *Server) login(req *http.Request) (any, error) {
	token := req.Form.Get("password")
	if token == "" {
		return nil, &problem{codeForbidden, "password is missing: it is a token of the control plane (proxima token create --kind workload)"}
	}
	user, err := s.core.Gate.Check(req.Context(), token)
	if err != nil {
		return nil, &problem{codeForbidden, err.Error()}
	}
	return &loginAnswer{AccessToken: token, TokenTTL: tokenTTL, GlobalAdmin: user.Admin, Username: req.Form.Get("username")}, nil
}

func (c *call) named() *named {
	n := &named{Namespace: c.Form.Get("namespaceId"), ServiceName: c.Form.Get("serviceName"), GroupName: c.Form.Get("groupName")}
	return n
}

// instance of a form.
func (s *Server) formInstance(c *call) (registry.Service, *instance, error) {
	svc, err := c.named().service(s.core.Namespaces)
	if err != nil {
		return svc, nil, err
	}
	i := &instance{IP: c.Form.Get("ip"), ClusterName: firstOf(c.Form, "clusterName", "cluster")}
	if i.Port, err = strconv.Atoi(c.Form.Get("port")); err != nil {
		return svc, nil, invalid("port %.20q is no number", c.Form.Get("port"))
	}
	if text := c.Form.Get("weight"); text != "" {
		weight, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return svc, nil, invalid("weight %.20q is no number", text)
		}
		i.Weight = &weight
	}
	for name, to := range map[string]**bool{"enabled": &i.Enabled, "enable": &i.Enabled, "healthy": &i.Healthy, "ephemeral": &i.Ephemeral} {
		if text := c.Form.Get(name); text != "" {
			v, err := strconv.ParseBool(text)
			if err != nil {
				return svc, nil, invalid("%s %.20q is neither true nor false", name, text)
			}
			*to = &v
		}
	}
	if text := c.Form.Get("metadata"); text != "" {
		if i.Metadata, err = parseMetadata(text); err != nil {
			return svc, nil, err
		}
	}
	return svc, i, nil
}

func firstOf(form url.Values, names ...string) string {
	for _, name := range names {
		if v := form.Get(name); v != "" {
			return v
		}
	}
	return ""
}

// parseMetadata reads JSON, or the older form k=v,k=v.
func parseMetadata(text string) (map[string]string, error) {
	out := map[string]string{}
	if err := json.Unmarshal([]byte(text), &out); err == nil {
		return out, nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, invalid("metadata %.60q are neither JSON nor k=v,k=v", text)
		}
		out[strings.TrimSpace(key)] = value
	}
	return out, nil
}

const ok = "ok"

func (s *Server) httpRegister(c *call) (any, error) {
	svc, i, err := s.formInstance(c)
	if err != nil {
		return nil, err
	}
	if err := s.core.CheckNamespace(svc.Namespace); err != nil {
		return nil, &problem{codeInvalid, err.Error()}
	}
	in, err := i.of(svc, s.core)
	if err != nil {
		return nil, err
	}
	if in.Ephemeral {
		return ok, s.beat.register(c.Context(), c.user, in)
	}
	if have, there := s.core.Index.Get(svc, in.Key()); there && s.checkOf(svc, in.Cluster).Type != checkNone {
		in.Healthy = have.Healthy // as the checks have it
	}
	return ok, s.core.Registrar.Put(c.Context(), in, c.user)
}

// found is the instance that a form names.
func (s *Server) found(c *call) (*registry.Instance, *instance, error) {
	svc, i, err := s.formInstance(c)
	if err != nil {
		return nil, nil, err
	}
	in, err := i.of(svc, s.core)
	if err != nil {
		return nil, nil, err
	}
	have, there := s.core.Index.Get(svc, in.Key())
	if !there {
		return nil, nil, &problem{codeInvalid, fmt.Sprintf("there is no instance of %s at %s:%d", svc, i.IP, i.Port)}
	}
	return have, i, nil
}

func (s *Server) httpUpdate(c *call) (any, error) {
	have, i, err := s.found(c)
	if err != nil {
		return nil, err
	}
	return ok, s.core.Registrar.Edit(c.Context(), have.Key(), c.user, func(in *registry.Instance) error {
		if i.Weight != nil {
			if *i.Weight < 0 || *i.Weight > 10_000 {
				return invalid("weight %g is not from 0 to 10000", *i.Weight)
			}
			in.Weight = weightOf(*i.Weight)
		}
		if i.Enabled != nil {
			in.Enabled = *i.Enabled
		}
		if i.Healthy != nil && !in.Ephemeral && s.checkOf(in.Service, in.Cluster).Type == checkNone {
			in.Healthy = *i.Healthy
		}
		if i.Metadata != nil {
			in.Metadata = i.Metadata
		}
		return nil
	})
}

func (s *Server) httpDeregister(c *call) (any, error) {
	svc, i, err := s.formInstance(c)
	if err != nil {
		return nil, err
	}
	in, err := i.of(svc, s.core)
	if err != nil {
		return nil, err
	}
	s.beat.forget(in.Key())
	if err := s.core.Registrar.Remove(c.Context(), in.Key(), c.user); err != nil && !errors.Is(err, registry.ErrNotFound) {
		return nil, err
	}
	return ok, nil
}

func (s *Server) httpInstance(c *call) (any, error) {
	svc, i, err := s.formInstance(c)
	if err != nil {
		return nil, err
	}
	for _, h := range s.infoOf(s.core.Index.Listing(svc, c.zone), i.ClusterName, false).Hosts {
		if h.IP == i.IP && h.Port == i.Port {
			return struct {
				instance
				Service string `json:"service"`
			}{h, h.ServiceName}, nil
		}
	}
	return nil, &problem{codeInvalid, fmt.Sprintf("there is no instance of %s at %s:%d", svc, i.IP, i.Port)}
}

func (s *Server) httpInstances(c *call) (any, error) {
	svc, err := c.named().service(s.core.Namespaces)
	if err != nil {
		return nil, err
	}
	healthy, _ := strconv.ParseBool(c.Form.Get("healthyOnly")) // else all
	return s.infoOf(s.core.Index.Listing(svc, c.zone), firstOf(c.Form, "clusters", "clusterName"), healthy), nil
}

// httpPutService sets the threshold of a service. A service is there when it has instances.
func (s *Server) httpPutService(c *call) (any, error) {
	svc, err := c.named().service(s.core.Namespaces)
	if err != nil {
		return nil, err
	}
	threshold := c.Form.Get("protectThreshold")
	if threshold == "" {
		return ok, nil
	}
	if v, err := strconv.ParseFloat(threshold, 64); err != nil || v < 0 || v > 1 {
		return nil, invalid("protectThreshold %.20q is not from 0 to 1", threshold)
	}
	return ok, s.annotate(c, svc, annotationProtect, threshold)
}

func (s *Server) httpDeleteService(c *call) (any, error) {
	svc, err := c.named().service(s.core.Namespaces)
	if err != nil {
		return nil, err
	}
	if len(s.core.Index.Listing(svc, "").Instances) > 0 {
		return nil, invalid("service %s has instances", svc)
	}
	return ok, nil
}

func (s *Server) httpService(c *call) (any, error) {
	svc, err := c.named().service(s.core.Namespaces)
	if err != nil {
		return nil, err
	}
	info := s.infoOf(s.core.Index.Listing(svc, c.zone), "", false)
	clusters, seen := []map[string]any{}, map[string]bool{}
	for _, h := range info.Hosts {
		if !seen[h.ClusterName] {
			seen[h.ClusterName] = true
			clusters = append(clusters, map[string]any{"name": h.ClusterName, "healthChecker": s.checkOf(svc, h.ClusterName), "metadata": map[string]string{}})
		}
	}
	protect := 0.0
	if object := s.serviceObject(svc); object != nil {
		protect, _ = strconv.ParseFloat(object.Annotations[annotationProtect], 64)
	}
	return map[string]any{
		"namespaceId": c.Form.Get("namespaceId"), "groupName": info.GroupName, "name": svc.Name, "protectThreshold": protect,
		"metadata": map[string]string{}, "selector": map[string]string{"type": "none"}, "clusters": clusters,
	}, nil
}

func (s *Server) httpServices(c *call) (any, error) {
	page, _ := strconv.Atoi(firstOf(c.Form, "pageNo"))   // 0: the first
	size, _ := strconv.Atoi(firstOf(c.Form, "pageSize")) // 0: all
	names, count := s.names(s.core.Namespaces.Of(c.Form.Get("namespaceId")), c.Form.Get("groupName"), page, size)
	return map[string]any{"count": count, "doms": names, "services": names}, nil
}

func (s *Server) httpMetrics(*call) (any, error) {
	return map[string]any{"status": "UP"}, nil
}

func (s *Server) httpReady(*call) (any, error) { return ok, nil }

func (s *Server) httpNodes(c *call) (any, error) {
	host, port, _ := net.SplitHostPort(c.Host)
	return []map[string]any{{"ip": host, "port": port, "state": "UP"}}, nil
}

func (s *Server) httpNamespaces(*call) (any, error) {
	var out []map[string]any
	for key := range s.core.Index.Snapshot().Namespaces.All() {
		name := s.core.Namespaces.NameOf(key.Name)
		show := name
		if name == "" {
			show = publicName
		}
		out = append(out, map[string]any{"namespace": name, "namespaceShowName": show, "quota": 200, "configCount": 0, "type": 0})
	}
	return map[string]any{"code": 200, "message": nil, "data": out}, nil
}

func (c *call) configNamed() configNamed {
	return configNamed{DataID: c.Form.Get("dataId"), Group: firstOf(c.Form, "group", "groupName"), Tenant: firstOf(c.Form, "tenant", "namespaceId")}
}

func (s *Server) httpConfig(c *call) (any, error) {
	if c.Form.Get("search") != "" {
		return s.httpSearch(c)
	}
	n := c.configNamed()
	key, err := s.readable(c.user, &n)
	if err != nil {
		return nil, err
	}
	o := s.core.Configs.Get(key)
	if o == nil {
		return nil, errNoConfig
	}
	if strings.HasPrefix(c.URL.Path, "/nacos/v3/") {
		return withDataKey(map[string]any{"content": o.Spec.Content, "contentType": typeOf(o), "md5": s.core.Configs.MD5(key)}, o), nil
	}
	return o.Spec.Content, nil
}

// withDataKey adds the key of an entry that its writer has encrypted, without which its content cannot be read.
func withDataKey(answer map[string]any, o *meshv1alpha1.RegistryConfig) map[string]any {
	if key := o.Annotations[registry.AnnotationEncryptedKey]; key != "" {
		answer["encryptedDataKey"] = key
	}
	return answer
}

func (s *Server) httpPublish(c *call) (any, error) {
	r := &configRequest{configNamed: c.configNamed(), Content: c.Form.Get("content"), CasMD5: firstOf(c.Form, "casMd5")}
	r.Addition = map[string]string{"type": c.Form.Get("type"), "appName": c.Form.Get("appName"), "desc": c.Form.Get("desc"), "encryptedDataKey": c.Form.Get("encryptedDataKey")}
	if r.CasMD5 == "" {
		r.CasMD5 = c.Header.Get("casMd5")
	}
	return true, s.publishConfig(c.Context(), c.user, r)
}

func (s *Server) httpRemove(c *call) (any, error) {
	n := c.configNamed()
	return true, s.removeConfig(c.Context(), c.user, &n)
}

// httpSearch lists entries: search=accurate compares, search=blur takes * for anything.
func (s *Server) httpSearch(c *call) (any, error) {
	n := c.configNamed()
	namespace := s.core.Namespaces.Of(n.Tenant)
	if !c.user.MayRead(namespace) {
		return nil, &registry.ForbiddenError{User: c.user.String(), What: "read the configuration of namespace " + namespace}
	}
	blur := c.Form.Get("search") == "blur"
	keys := s.core.Configs.List(namespace, func(k registry.ConfigKey) bool {
		return matches(n.DataID, k.DataID, blur) && matches(n.Group, k.Group, blur) && c.user.MayReadEntry(k)
	})
	page, _ := strconv.Atoi(c.Form.Get("pageNo"))   // 0: the first
	size, _ := strconv.Atoi(c.Form.Get("pageSize")) // 0: a usual one
	if size <= 0 || size > 500 {
		size = 100
	}
	from := min(max(page-1, 0)*size, len(keys))
	items := []map[string]any{}
	for i, k := range keys[from:min(from+size, len(keys))] {
		if o := s.core.Configs.Get(k); o != nil {
			items = append(items, withDataKey(map[string]any{
				"id": strconv.FormatInt(int64(from+i+1), 10), "dataId": k.DataID, "group": k.Group, "groupName": k.Group, "content": o.Spec.Content, "md5": s.core.Configs.MD5(k),
				"tenant": n.Tenant, "appName": o.Spec.Application, "type": typeOf(o), "lastModified": modifiedAt(o),
			}, o))
		}
	}
	return map[string]any{
		"totalCount": len(keys), "pageNumber": max(page, 1), "pagesAvailable": (len(keys) + size - 1) / size, "pageItems": items,
	}, nil
}

// matches a name with what is searched for; empty: everything.
func matches(pattern, name string, blur bool) bool {
	switch {
	case pattern == "" || pattern == name:
		return true
	case !blur:
		return false
	}
	parts := strings.Split(pattern, "*")
	if !strings.HasPrefix(name, parts[0]) {
		return false
	}
	rest := name[len(parts[0]):]
	for _, p := range parts[1:] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return rest == "" || strings.HasSuffix(pattern, "*") || strings.HasSuffix(name, parts[len(parts)-1])
}

const (
	// Separators of the entries that a client of version 1 listens to.
	wordSeparator = "\x02"
	lineSeparator = "\x01"
	// maxPoll is how long a listener waits for a change.
	maxPoll     = 60 * time.Second
	defaultPoll = 30 * time.Second
)

// httpListen waits until one of the entries is another than the client has, or its time is over.
func (s *Server) httpListen(c *call) (any, error) {
	type wanted struct {
		key registry.ConfigKey
		md5 string
		raw configNamed
	}
	var all []wanted
	for line := range strings.SplitSeq(c.Form.Get("Listening-Configs"), lineSeparator) {
		words := strings.Split(line, wordSeparator)
		if len(words) < 3 {
			continue
		}
		w := wanted{md5: words[2], raw: configNamed{DataID: words[0], Group: words[1]}}
		if len(words) > 3 {
			w.raw.Tenant = words[3]
		}
		var err error
		if w.key, err = s.readable(c.user, &w.raw); err != nil {
			return nil, err
		}
		if all = append(all, w); len(all) > maxListened {
			return nil, invalid("more than %d configurations", maxListened)
		}
	}
	changed := func() string {
		var out strings.Builder
		for _, w := range all {
			if s.core.Configs.MD5(w.key) == w.md5 {
				continue
			}
			words := []string{w.raw.DataID, w.raw.Group}
			if w.raw.Tenant != "" {
				words = append(words, w.raw.Tenant)
			}
			out.WriteString(url.QueryEscape(strings.Join(words, wordSeparator) + lineSeparator))
		}
		return out.String()
	}
	wake := make(chan struct{}, 1)
	for _, w := range all {
		f := s.core.Configs.Follow(w.key, func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		})
		defer f.Close()
	}
	wait := defaultPoll
	if ms, err := strconv.Atoi(c.Header.Get("Long-Pulling-Timeout")); err == nil && ms > 0 {
		wait = min(time.Duration(ms)*time.Millisecond, maxPoll)
	}
	timer := time.NewTimer(max(wait-500*time.Millisecond, 0))
	defer timer.Stop()
	for {
		if text := changed(); text != "" {
			return text, nil
		}
		select {
		case <-wake:
		case <-timer.C:
			return "", nil
		case <-c.Context().Done():
			return "", nil
		}
	}
}
