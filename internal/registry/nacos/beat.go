package nacos

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// beats are the ephemeral instances of clients by HTTP (version 1), which say every 5 s that they live.
// Each has a session of its own, that ends after deleteAfter.
type beats struct {
	server *Server

	mu  sync.Mutex
	all map[resource.Key]*registry.Session
}

const (
	// beatInterval is what clients are told; deleteAfter is Nacos' ipDeleteTimeout.
	beatInterval = 5000
	deleteAfter  = 30 * time.Second
	// codeNoInstance of an answer to a beat: the client registers again.
	codeNoInstance = 20404
	codeBeat       = 10200
)

func newBeats(s *Server) *beats { return &beats{server: s, all: map[resource.Key]*registry.Session{}} }

// register an instance, and begin its session.
func (b *beats) register(ctx context.Context, user registry.User, in *registry.Instance) error {
	key := in.Key()
	session := b.server.core.Registrar.Open(registry.Nacos, deleteAfter)
	if err := session.Register(ctx, in, user); err != nil {
		session.Close(0)
		return err
	}
	b.mu.Lock()
	before := b.all[key]
	b.all[key] = session
	b.mu.Unlock()
	if before != nil {
		before.Close(0)
	}
	return nil
}

// renew the session of an instance; false: it has none here.
func (b *beats) renew(key resource.Key) bool {
	b.mu.Lock()
	session := b.all[key]
	b.mu.Unlock()
	return session != nil && session.Renew() == nil
}

func (b *beats) forget(key resource.Key) {
	b.mu.Lock()
	session := b.all[key]
	delete(b.all, key)
	b.mu.Unlock()
	if session != nil {
		session.Close(0)
	}
}

// run forgets sessions that have ended, until ctx ends.
func (b *beats) run(ctx context.Context) {
	ticker := time.NewTicker(deleteAfter)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		b.mu.Lock()
		for key, session := range b.all {
			select {
			case <-session.Done():
				delete(b.all, key)
			default:
			}
		}
		b.mu.Unlock()
	}
}

// httpBeat renews an instance. One that is not known is registered by what the beat says of it, or its
// client is asked to.
func (s *Server) httpBeat(c *call) (any, error) {
	svc, err := c.named().service(s.core.Namespaces)
	if err != nil {
		return nil, err
	}
	beat := &instance{}
	if text := c.Form.Get("beat"); text != "" {
		if err := json.Unmarshal([]byte(text), beat); err != nil {
			return nil, invalid("beat: %v", err)
		}
	} else if _, beat, err = s.formInstance(c); err != nil {
		return nil, err
	}
	if cluster := struct {
		Name string `json:"cluster"`
	}{}; json.Unmarshal([]byte(c.Form.Get("beat")), &cluster) == nil && beat.ClusterName == "" {
		beat.ClusterName = cluster.Name
	}
	in, err := beat.of(svc, s.core)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"clientBeatInterval": beatInterval, "lightBeatEnabled": true, "code": codeBeat}
	switch {
	case s.beat.renew(in.Key()):
	case c.Form.Get("beat") == "":
		out["code"] = codeNoInstance
	default:
		in.Ephemeral = true
		if err := s.core.CheckNamespace(svc.Namespace); err != nil {
			return nil, &problem{codeInvalid, err.Error()}
		}
		return out, s.beat.register(c.Context(), c.user, in)
	}
	return out, nil
}
