package nacos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// maxBatch is how many instances one request registers.
const maxBatch = 2000

// register or deregister one instance. As in Nacos, a client has one instance of a service by this
// request: another one takes its place.
func (c *conn) instance(ctx context.Context, user registry.User, r *instanceRequest) (any, error) {
	s, err := r.service(c.server.core.Namespaces)
	if err != nil {
		return nil, err
	}
	if r.Instance == nil {
		return nil, invalid("instance is missing")
	}
	switch r.Type {
	case "registerInstance":
		err = c.publish(ctx, user, s, []*instance{r.Instance})
	case "deregisterInstance":
		err = c.withdraw(ctx, user, s, r.Instance)
	default:
		err = invalid("type %.40q is neither registerInstance nor deregisterInstance", r.Type)
	}
	return &instanceResponse{result: success(r.RequestID), Type: r.Type}, err
}

// batch registers the instances that a client has of a service, in place of those that it had.
func (c *conn) batch(ctx context.Context, user registry.User, r *batchInstanceRequest) (any, error) {
	s, err := r.service(c.server.core.Namespaces)
	switch {
	case err != nil:
	case r.Type != "batchRegisterInstance":
		err = invalid("type %.40q is not batchRegisterInstance", r.Type)
	case len(r.Instances) > maxBatch:
		err = invalid("%d instances in one request; at most %d are registered", len(r.Instances), maxBatch)
	default:
		err = c.publish(ctx, user, s, r.Instances)
	}
	return &instanceResponse{result: success(r.RequestID), Type: r.Type}, err
}

// publish what the client has of a service. Instances of one address, port and cluster are one: clients
// of Dubbo register one for each URL.
func (c *conn) publish(ctx context.Context, user registry.User, s registry.Service, list []*instance) error {
	if err := c.server.core.CheckNamespace(s.Namespace); err != nil {
		return &problem{codeInvalid, err.Error()}
	}
	session, err := c.sessionOf()
	if err != nil {
		return &problem{codeUnregistered, err.Error()}
	}
	var instances []*registry.Instance
	seen := map[resource.Key]struct{}{}
	for _, i := range list {
		if i == nil {
			return invalid("an instance is null")
		}
		in, err := i.of(s, c.server.core)
		if err != nil {
			return err
		}
		if !in.Ephemeral {
			return invalid("an instance that is not ephemeral is registered by HTTP")
		}
		if _, twice := seen[in.Key()]; !twice {
			instances, seen[in.Key()] = append(instances, in), struct{}{}
		}
	}
	next := make([]resource.Key, 0, len(instances))
	for _, in := range instances {
		if err := session.Register(ctx, in, user); err != nil && !errors.Is(err, registry.ErrOriginal) {
			c.keep(s, next)
			return err
		}
		next = append(next, in.Key())
	}
	c.mu.Lock()
	before := c.published[s]
	if len(next) == 0 {
		delete(c.published, s)
	} else {
		c.published[s] = next
	}
	c.mu.Unlock()
	for n, key := range before {
		if _, stays := seen[key]; stays {
			continue
		}
		if err := session.Deregister(ctx, key, user); err != nil && !errors.Is(err, registry.ErrNotFound) {
			c.keep(s, before[n:])
			return err
		}
	}
	return nil
}

// keep in mind what a failure left of a service, so that the next list ends what is not in it.
func (c *conn) keep(s registry.Service, keys []resource.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.published[s]) // others read the list without the lock
	for _, key := range keys {
		if !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	if len(all) > 0 {
		c.published[s] = all
	}
}

// withdraw an instance. One that is not there is no error, as in Nacos.
func (c *conn) withdraw(ctx context.Context, user registry.User, s registry.Service, i *instance) error {
	in, err := i.of(s, c.server.core)
	if err != nil {
		return err
	}
	session, err := c.sessionOf()
	if err != nil {
		return &problem{codeUnregistered, err.Error()}
	}
	key := in.Key()
	c.mu.Lock()
	rest := slices.DeleteFunc(slices.Clone(c.published[s]), func(have resource.Key) bool { return have == key })
	if len(rest) == 0 {
		delete(c.published, s)
	} else {
		c.published[s] = rest
	}
	c.mu.Unlock()
	if err := session.Deregister(ctx, key, user); err != nil && !errors.Is(err, registry.ErrNotFound) {
		return err
	}
	return nil
}

func (c *conn) subscribeService(r *subscribeServiceRequest) (any, error) {
	s, err := r.service(c.server.core.Namespaces)
	if err != nil {
		return nil, err
	}
	key := subKey{service: s, clusters: r.Clusters}
	if !r.Subscribe {
		c.unsubscribe(key)
		return c.server.withInfo(success(r.RequestID), &registry.Listing{Service: s}, "", false)
	}
	l, err := c.subscribe(key, r.Namespace)
	if err != nil {
		return nil, err
	}
	return c.server.withInfo(success(r.RequestID), l, r.Clusters, false)
}

func (c *conn) query(r *serviceQueryRequest) (any, error) {
	s, err := r.service(c.server.core.Namespaces)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	zone := c.zone
	c.mu.Unlock()
	l := c.server.core.Index.Listing(s, zone)
	return c.server.withInfo(success(r.RequestID), l, r.Cluster, r.HealthyOnly)
}

func (c *conn) list(r *serviceListRequest) (any, error) {
	names, count := c.server.names(c.server.core.Namespaces.Of(r.Namespace), r.GroupName, r.PageNo, r.PageSize)
	return &serviceListResponse{result: success(r.RequestID), Count: count, ServiceNames: names}, nil
}

// names of the services of a group, a page of them.
func (s *Server) names(namespace, group string, page, size int) (names []string, count int) {
	if group == defaultGroup {
		group = ""
	}
	names = []string{}
	for _, svc := range s.core.Index.Names(namespace) {
		if svc.Group == group {
			names = append(names, svc.Name)
		}
	}
	slices.Sort(names)
	count = len(names)
	if size <= 0 {
		return names, count
	}
	from := min(max(page-1, 0)*size, count)
	return names[from:min(from+size, count)], count
}

// push tells the client of a service.
func (c *conn) push(s *subscription) ([]byte, error) {
	c.mu.Lock()
	zone := c.zone
	c.mu.Unlock()
	l := c.server.core.Index.Listing(s.key.service, zone)
	_, sum, err := c.server.info(l, s.key.clusters, false)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	known := l.Position <= s.position || sum == s.sum
	if l.Position > s.position {
		s.position, s.sum = l.Position, sum
	}
	c.mu.Unlock()
	if known {
		return nil, nil
	}
	c.server.pushed(l.Changed)
	return c.server.notification(s, l)
}

// notification of a service as subscribers are sent it, the same for all of them: its ID is unique among
// those of a connection, as no listing has the position of another one of the service.
func (s *Server) notification(sub *subscription, l *registry.Listing) ([]byte, error) {
	key := pushKey{sub.namespace, sub.key.clusters}
	out, err := l.Memo(key, func() (any, error) {
		message, err := s.withInfo(&notifySubscriber{
			header:    header{fmt.Sprintf("%d-%s-%s", l.Position, l.Service, sub.key.clusters)},
			Namespace: sub.namespace, ServiceName: l.Service.Name, GroupName: groupOf(l.Service), Module: "naming",
		}, l, sub.key.clusters, false)
		if err != nil {
			return nil, err
		}
		return encode("NotifySubscriberRequest", message)
	})
	if err != nil {
		return nil, err
	}
	return out.([]byte), nil
}

// Keys of what is kept with a listing.
type (
	pushKey struct{ namespace, clusters string }
	infoKey struct {
		clusters    string
		healthyOnly bool
		protect     float64
	}
)

// withInfo is a message with the instances of a service.
func (s *Server) withInfo(message any, l *registry.Listing, clusters string, healthyOnly bool) (any, error) {
	info, _, err := s.info(l, clusters, healthyOnly)
	if err != nil {
		return nil, err
	}
	return withInfo{message, info}, nil
}

// info is the instances of a service, encoded, and a sum of all of it but the position: a change that makes no
// difference to the client, as of metadata of Dubbo that its instances have already, leaves it as it was.
func (s *Server) info(l *registry.Listing, clusters string, healthyOnly bool) (encoded []byte, sum uint64, err error) {
	protect := s.protectOf(l.Service)
	made, err := l.Memo(infoKey{clusters, healthyOnly, protect}, func() (any, error) {
		b, err := json.Marshal(infoOf(l, clusters, healthyOnly, protect))
		if err != nil {
			return nil, err
		}
		return summed{b, sumOf(b)}, nil
	})
	if err != nil {
		return nil, 0, err
	}
	out := made.(summed)
	return out.encoded, out.sum, nil
}

type summed struct {
	encoded []byte
	sum     uint64
}

var sumSeed = maphash.MakeSeed()

// sumOf a serviceInfo without its lastRefTime, which is behind all texts of clients.
func sumOf(info []byte) uint64 {
	const field = `"lastRefTime":`
	var h maphash.Hash
	h.SetSeed(sumSeed)
	at := bytes.LastIndex(info, []byte(field))
	_, _ = h.Write(info[:at]) // a Hash takes everything
	_, _ = h.Write(bytes.TrimLeft(info[at+len(field):], "0123456789"))
	return h.Sum64()
}
