package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// annotationChecks on a Service says how persistent instances are checked: a JSON object of healthCheck, by
// the name of the cluster.
const annotationChecks = registry.GroupName + "/health-checks"

const (
	// checkEvery, checkTimeout and checkTimes are those of Nacos: the health of an instance changes with
	// as many checks in a row that say so. One whose host refuses the connection is unhealthy at once.
	checkEvery   = 5 * time.Second
	checkTimeout = time.Second
	checkTimes   = 3
	// checksAtOnce bounds the connections; a round of more instances that do not answer takes longer.
	checksAtOnce = 128
	// maxCheckPath in bytes.
	maxCheckPath = 1024
)

// Types of a healthCheck.
const (
	checkTCP  = "TCP"
	checkHTTP = "HTTP"
	checkNone = "NONE"
)

// healthCheck of the persistent instances of a cluster. The zero value is that of Nacos: a connection to
// the instance's port.
type healthCheck struct {
	Type string `json:"type"`
	// Path that is asked for by HTTP, and the status that it is to answer; 0: 200.
	Path     string `json:"path,omitempty"`
	Expected int    `json:"expectedResponseCode,omitempty"`
	// Port that is checked; 0: that of the instance.
	Port uint16 `json:"port,omitempty"`
}

// parseCheck reads the healthChecker of a cluster, as clients of Nacos write it.
func parseCheck(text string) (healthCheck, error) {
	var in struct {
		healthCheck
		Headers string `json:"headers"`
	}
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return in.healthCheck, invalid("healthChecker: %v", err)
	}
	if in.Headers != "" {
		return in.healthCheck, invalid("healthChecker: headers are not sent: check a path that needs none")
	}
	in.Type = strings.ToUpper(in.Type)
	return in.healthCheck, in.validate()
}

func (h *healthCheck) validate() error {
	switch {
	case h.Type != checkTCP && h.Type != checkHTTP && h.Type != checkNone:
		return invalid("healthChecker: type %.20q is none of TCP, HTTP and NONE", h.Type)
	case h.Type == checkHTTP && (!strings.HasPrefix(h.Path, "/") || len(h.Path) > maxCheckPath || strings.ContainsFunc(h.Path, isControl)):
		return invalid("healthChecker: path %.60q is no path of a URL of at most %d bytes", h.Path, maxCheckPath)
	case h.Expected != 0 && (h.Expected < 100 || h.Expected > 599):
		return invalid("healthChecker: expectedResponseCode %d is no status of HTTP", h.Expected)
	}
	return nil
}

func isControl(r rune) bool { return r <= ' ' || r == 0x7f }

// checksOf a service, by cluster.
func (s *Server) checksOf(name registry.Service) map[string]healthCheck {
	out := map[string]healthCheck{}
	if object := s.serviceObject(name); object != nil {
		_ = json.Unmarshal([]byte(object.Annotations[annotationChecks]), &out) // an operator's mistake: the default
	}
	return out
}

// checkOf a cluster of a service. What cannot be understood is the default.
func (s *Server) checkOf(name registry.Service, cluster string) healthCheck {
	h, ok := s.checksOf(name)[cluster]
	if !ok || h.validate() != nil {
		return healthCheck{Type: checkTCP}
	}
	return h
}

// httpPutCluster sets how the persistent instances of a cluster are checked.
func (s *Server) httpPutCluster(c *call) (any, error) {
	svc, err := c.named().service(s.core.Namespaces)
	if err != nil {
		return nil, err
	}
	cluster := firstOf(c.Form, "clusterName")
	if cluster == "" || len(cluster) > maxName {
		return nil, invalid("clusterName is missing, or has more than %d bytes", maxName)
	}
	check := healthCheck{Type: checkTCP}
	if text := c.Form.Get("healthChecker"); text != "" {
		if check, err = parseCheck(text); err != nil {
			return nil, err
		}
	}
	check.Port = 0
	if own, err := strconv.ParseBool(firstOf(c.Form, "useInstancePort4Check", "useInstancePortForCheck")); err == nil && !own {
		port, err := strconv.ParseUint(firstOf(c.Form, "checkPort", "healthyCheckPort"), 10, 16)
		if err != nil || port == 0 {
			return nil, invalid("checkPort %.20q is not from 1 to 65535", firstOf(c.Form, "checkPort", "healthyCheckPort"))
		}
		check.Port = uint16(port)
	}
	checks := s.checksOf(svc)
	checks[cluster] = check
	if len(checks) > maxClusters {
		return nil, invalid("service %s has checks for %d clusters; at most %d are kept", svc, len(checks), maxClusters)
	}
	text, err := json.Marshal(checks)
	if err != nil {
		return nil, err
	}
	return ok, s.annotate(c, svc, annotationChecks, string(text))
}

// maxClusters of a service whose checks are not the default.
const maxClusters = 100

// annotate the Service of a name, which exists when it has instances.
func (s *Server) annotate(c *call, svc registry.Service, key, value string) error {
	if !c.user.May(svc.Namespace) {
		return &registry.ForbiddenError{User: c.user.String(), What: "write in namespace " + svc.Namespace}
	}
	object := s.serviceObject(svc)
	if object == nil {
		return invalid("service %s has no instances yet: its settings are set when it has", svc)
	}
	object = object.DeepCopy()
	metav1.SetMetaDataAnnotation(&object.ObjectMeta, key, value)
	_, err := s.core.Client.Update(c.Context(), kind.Service, object)
	return err
}

// httpHealth sets the health of a persistent instance of a cluster that is not checked.
func (s *Server) httpHealth(c *call) (any, error) {
	have, i, err := s.found(c)
	switch {
	case err != nil:
		return nil, err
	case i.Healthy == nil:
		return nil, invalid("healthy is missing")
	case have.Ephemeral:
		return nil, invalid("the instance is ephemeral: its connection is its health")
	case s.checkOf(have.Service, have.Cluster).Type != checkNone:
		return nil, invalid("health check is still working: the health checker of cluster %s is not NONE", have.Cluster)
	}
	return ok, s.core.Registrar.Edit(c.Context(), have.Key(), c.user, func(in *registry.Instance) error {
		in.Healthy = *i.Healthy
		return nil
	})
}

// checks keeps the health of persistent instances, as connections to them say.
type checks struct {
	server *Server
	client *http.Client
	dialer net.Dialer
	// instances that are checked, and how many checks in a row say another health than they have.
	instances map[resource.Key]*registry.Instance
	byService map[registry.Service][]resource.Key
	mu        sync.Mutex
	against   map[resource.Key]int
}

func newChecks(s *Server) *checks {
	k := &checks{
		server: s, dialer: net.Dialer{Timeout: checkTimeout}, instances: map[resource.Key]*registry.Instance{},
		byService: map[registry.Service][]resource.Key{}, against: map[resource.Key]int{},
	}
	k.client = &http.Client{
		Timeout: checkTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		// Without proxies of the environment: the instance itself is asked.
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: k.dialer.DialContext, MaxResponseHeaderBytes: 16 << 10},
	}
	return k
}

// run checks until ctx ends, where this instance of the control plane leads.
func (k *checks) run(ctx context.Context) {
	select {
	case <-k.server.core.Index.Ready():
	case <-ctx.Done():
		return
	}
	changes := k.server.core.Index.FollowAll()
	defer changes.Close()
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes.Ready():
			services, _ := changes.Take()
			for _, s := range services {
				k.learn(s)
			}
		case <-ticker.C:
			if k.server.core.Registrar.Leads() {
				k.round(ctx)
			}
		}
	}
}

// learn the persistent instances of a service.
func (k *checks) learn(s registry.Service) {
	for _, key := range k.byService[s] {
		delete(k.instances, key)
	}
	var keys []resource.Key
	for _, in := range k.server.core.Index.Registered(s) {
		if in.Protocol == registry.Nacos && !in.Ephemeral && in.Port != 0 && mayCheck(in.Address) {
			keys = append(keys, in.Key())
			k.instances[in.Key()] = in
		}
	}
	if k.byService[s] = keys; keys == nil {
		delete(k.byService, s)
	}
}

// mayCheck an address. Link-local ones are those of the metadata services of clouds, and of nobody else's
// network.
func mayCheck(a netip.Addr) bool { return a.IsGlobalUnicast() || a.IsLoopback() }

// round of checks.
func (k *checks) round(ctx context.Context) {
	k.mu.Lock()
	for key := range k.against {
		if k.instances[key] == nil {
			delete(k.against, key)
		}
	}
	k.mu.Unlock()
	var running sync.WaitGroup
	slots := make(chan struct{}, checksAtOnce)
	for key, in := range k.instances {
		how := k.server.checkOf(in.Service, in.Cluster)
		if how.Type == checkNone || in.Address.IsLoopback() && !k.server.core.Registrar.Here(key) {
			continue
		}
		slots <- struct{}{} // each is free again within checkTimeout
		running.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() == nil {
				k.settle(ctx, key, in, k.ask(ctx, in, how))
			}
		})
	}
	running.Wait()
}

// ask an instance; nil: it is healthy.
func (k *checks) ask(ctx context.Context, in *registry.Instance, how healthCheck) error {
	port := in.Port
	if how.Port != 0 {
		port = how.Port
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	address := netip.AddrPortFrom(in.Address, port).String()
	if how.Type == checkTCP {
		c, err := k.dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+how.Path, nil)
	if err != nil {
		return err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	expected := how.Expected
	if expected == 0 {
		expected = http.StatusOK
	}
	if resp.StatusCode != expected {
		return fmt.Errorf("status %d, not %d", resp.StatusCode, expected)
	}
	return nil
}

// settle the health of an instance, after a check.
func (k *checks) settle(ctx context.Context, key resource.Key, in *registry.Instance, failure error) {
	healthy := failure == nil
	k.mu.Lock()
	if healthy == in.Healthy {
		delete(k.against, key)
		k.mu.Unlock()
		return
	}
	k.against[key]++
	decided := k.against[key] >= checkTimes || errors.Is(failure, syscall.ECONNREFUSED)
	k.mu.Unlock()
	if !decided || ctx.Err() != nil {
		return
	}
	err := k.server.core.Registrar.Edit(ctx, key, registry.User{Name: "the health check", Admin: true}, func(in *registry.Instance) error {
		in.Healthy = healthy
		return nil
	})
	if err != nil && !errors.Is(err, registry.ErrNotFound) && ctx.Err() == nil {
		k.server.log.Warn("the health of an instance is not written; it is checked again", "instance", key, "error", err)
		return
	}
	k.server.log.Info("the health of a persistent instance has changed", "instance", key, "healthy", healthy, "check", failure)
}
