package nacos

import (
	"context"
	"errors"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// key of the entry that a request is about.
func (n *configNamed) key(namespaces registry.Namespaces) (registry.ConfigKey, error) {
	key := registry.ConfigKey{Namespace: namespaces.Of(n.Tenant), Group: n.Group, DataID: n.DataID}
	if key.Group == "" {
		key.Group = defaultGroup
	}
	switch {
	case key.DataID == "":
		return key, invalid("dataId is missing")
	case len(key.DataID) > maxName/2, len(key.Group) > maxName/2:
		return key, invalid("dataId or group has more than %d bytes", maxName/2)
	}
	return key, nil
}

// goClient begins the version that the SDK of Go names.
const goClient = "Nacos-Go-Client"

// queryConfig for a client. The SDK of Go before 2.3 (dubbo-go 3.3 has 2.2.5), when it is answered that an
// entry is gone that it listens to, does not tell its listener, and asks again without a pause: it is
// answered that the entry is empty, which is what 2.3 makes of it.
func (c *conn) queryConfig(user registry.User, r *configRequest) (any, error) {
	out, err := c.server.queryConfig(user, r)
	if err != nil {
		return nil, err
	}
	if out.ErrorCode != codeNotFound {
		return out, nil
	}
	key, _ := r.key(c.server.core.Namespaces)
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.listened[key]; c.golang && l != nil && l.md5 != "" {
		return &configQueryResponse{result: success(r.RequestID), ContentType: "text"}, nil
	}
	return out, nil
}

// readable is the entry that a request is about, of a user who may read it.
func (s *Server) readable(user registry.User, n *configNamed) (registry.ConfigKey, error) {
	key, err := n.key(s.core.Namespaces)
	if err == nil && !user.MayReadEntry(key) {
		err = &registry.ForbiddenError{User: user.String(), What: "read configuration " + key.String()}
	}
	return key, err
}

func (s *Server) queryConfig(user registry.User, r *configRequest) (*configQueryResponse, error) {
	key, err := s.readable(user, &r.configNamed)
	if err != nil {
		return nil, err
	}
	o := s.core.Configs.Get(key)
	if o == nil {
		return &configQueryResponse{result: result{
			ResultCode: resultFailed, ErrorCode: codeNotFound, Message: "config data not exist", RequestID: r.RequestID,
		}}, nil
	}
	return &configQueryResponse{
		result: success(r.RequestID), Content: o.Spec.Content, ContentType: typeOf(o), MD5: s.core.Configs.MD5(key),
		LastModified: modifiedAt(o), EncryptedKey: o.Annotations[registry.AnnotationEncryptedKey],
	}, nil
}

func typeOf(o *meshv1alpha1.RegistryConfig) string {
	if o.Spec.Type == "" {
		return "text"
	}
	return o.Spec.Type
}

// modifiedAt is when an entry was written last, in milliseconds since 1970, as far as is known.
func modifiedAt(o *meshv1alpha1.RegistryConfig) int64 {
	at := o.CreationTimestamp.Time
	for _, m := range o.ManagedFields {
		if m.Time != nil && m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at.UnixMilli()
}

// publishConfig writes an entry; with an MD5 only if that is of what there is ("0": there is none).
func (s *Server) publishConfig(ctx context.Context, user registry.User, r *configRequest) error {
	key, err := r.key(s.core.Namespaces)
	if err != nil {
		return err
	}
	if err := s.core.CheckNamespace(key.Namespace); err != nil {
		return &problem{codeInvalid, err.Error()}
	}
	if n := len(r.Content); n > meshv1alpha1.MaxRegistryContent {
		return invalid("content has %d bytes; at most %d are stored", n, meshv1alpha1.MaxRegistryContent)
	}
	return s.core.Configs.PutEncrypted(ctx, user, key, r.Addition["encryptedDataKey"], func(spec *meshv1alpha1.RegistryConfigSpec, exists bool) error {
		switch {
		case r.CasMD5 == "", r.CasMD5 == "0" && !exists:
		case !exists, kind.ContentMD5(spec.Content) != r.CasMD5:
			return &problem{codeConflict, "Cas publish fail,server md5 may have changed."}
		}
		spec.Content = registry.MergeConfig(key, spec.Content, r.Content)
		if t := r.Addition["type"]; t != "" {
			spec.Type = t
		}
		if app := r.Addition["appName"]; app != "" {
			spec.Application = app
		}
		if text := r.Addition["desc"]; text != "" {
			spec.Description = text
		}
		return nil
	})
}

// removeConfig, or answer that it is removed where instances need it still (registry.Core.Withdraw): clients of
// Dubbo that end remove what their replicas use.
func (s *Server) removeConfig(ctx context.Context, user registry.User, named *configNamed) error {
	key, err := named.key(s.core.Namespaces)
	if err != nil {
		return err
	}
	kept, err := s.core.Withdraw(ctx, user, key)
	if kept {
		s.log.Debug("a client removes an entry that instances need: it stays until they are gone", "entry", key.String(), "user", user.String())
	}
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		return err
	}
	return nil
}

// listen to entries, or no more; the answer has those that are others than the client has.
func (c *conn) listen(user registry.User, r *configListenRequest) (any, error) {
	out := &configListenResponse{result: success(r.RequestID), Changed: []configNamed{}}
	configs := c.server.core.Configs
	for i := range r.Contexts {
		context := &r.Contexts[i]
		key, err := c.server.readable(user, &context.configNamed)
		if err != nil {
			return nil, err
		}
		if !r.Listen {
			c.unlisten(key)
			continue
		}
		if err := c.follow(key, context.configNamed, context.MD5); err != nil {
			return nil, err
		}
		if configs.MD5(key) != context.MD5 {
			out.Changed = append(out.Changed, context.configNamed)
		}
	}
	return out, nil
}

func (c *conn) follow(key registry.ConfigKey, named configNamed, md5 string) error {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return registry.ErrEnded
	case c.listened[key] != nil:
		c.listened[key].md5 = md5
		c.mu.Unlock()
		return nil
	case len(c.listened) >= maxListened:
		c.mu.Unlock()
		return invalid("a connection may listen to %d configurations at most", maxListened)
	}
	l := &listened{key: key, named: named, md5: md5}
	c.listened[key] = l
	c.mu.Unlock()
	f := c.server.core.Configs.Follow(key, func() { c.queueConfig(l) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.listened[key] != l {
		defer f.Close()
		return registry.ErrEnded
	}
	l.follower = f
	return nil
}

func (c *conn) unlisten(key registry.ConfigKey) {
	c.mu.Lock()
	l := c.listened[key]
	delete(c.listened, key)
	c.mu.Unlock()
	if l != nil && l.follower != nil {
		l.follower.Close()
	}
}
