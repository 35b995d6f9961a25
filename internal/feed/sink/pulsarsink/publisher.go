package pulsarsink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/pulsar"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/feed/sink"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// publisher is the sink.Target.
type publisher struct {
	cfg    Config
	broker broker
	log    *slog.Logger
	wait   time.Duration // ackTimeout

	session session // nil: there is none
	end     end
	// proven: the broker has acknowledged a message of this session, so nothing of an earlier one can come behind it.
	proven bool
}

func newPublisher(cfg Config, b broker, log *slog.Logger) *publisher {
	return &publisher{cfg: cfg, broker: b, log: log, wait: ackTimeout}
}

// Close implements sink.Target.
func (p *publisher) Close() {
	p.drop()
	p.broker.close()
}

// drop the session. The next one reads where the topic ends.
func (p *publisher) drop() {
	if p.session != nil {
		p.session.close()
		p.session = nil
	}
}

// ready has a session.
func (p *publisher) ready(ctx context.Context) error {
	if p.session != nil {
		select {
		case <-p.session.lost():
			p.drop()
		default:
			return nil
		}
	}
	s, err := p.broker.connect(ctx)
	if err != nil {
		return err
	}
	p.session, p.proven = s, false
	if p.end, err = s.end(ctx); err != nil {
		p.drop()
		return err
	}
	p.log.Debug("the sink publishes", "after", p.end.position)
	return nil
}

// Deliver implements sink.Target.
func (p *publisher) Deliver(ctx context.Context, b *sink.Batch) (seglog.Position, error) {
	if err := p.ready(ctx); err != nil {
		return 0, err
	}
	messages, next, err := p.messages(ctx, b)
	if err != nil {
		return 0, err
	}
	if len(messages) > 0 && !p.proven {
		if messages, err = p.prove(ctx, messages); err != nil {
			p.drop()
			return 0, err
		}
	}
	sent, err := p.publish(ctx, messages)
	if err != nil {
		p.drop()
		if sent == 0 {
			return 0, err
		}
		return seglog.Position(messages[sent-1].position), err
	}
	if n := len(messages); n > 0 {
		p.end = end{messages[n-1].position, p.cfg.Epoch}
	}
	return next, nil
}

// prove publishes the first message alone, and returns what is left then. What the broker had already is left out, as is what an earlier session's
// message, which was on its way when the end was read, says.
func (p *publisher) prove(ctx context.Context, messages []*message) ([]*message, error) {
	for len(messages) > 0 {
		_, err := p.publish(ctx, messages[:1])
		switch {
		case err == nil:
			p.proven = true
			return messages[1:], nil
		case !errors.Is(err, errTwice):
			return nil, err
		}
		at := messages[0].position
		if p.end, err = p.session.end(ctx); err != nil {
			return nil, err
		}
		p.log.Info("the broker had a message of an earlier connection", "position", at, "end", p.end.position)
		// It may have removed the message since, and so the end may be before it.
		for messages = messages[1:]; len(messages) > 0 && messages[0].position <= p.end.position; {
			messages = messages[1:]
		}
	}
	return nil, nil
}

// errTwice: the broker has left a message out, as it had it.
var errTwice = errors.New("the broker says that it has the message already")

// publish messages, and wait until the broker has all. It returns how many of the first are acknowledged.
func (p *publisher) publish(ctx context.Context, messages []*message) (int, error) {
	if len(messages) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := p.session
	answers := make(chan error, len(messages))
	go func() { // what blocks in the client ends with the connection
		select {
		case <-s.lost():
			cancel(errLost)
		case <-ctx.Done():
		}
	}()
	slow := time.AfterFunc(p.wait, func() { cancel(fmt.Errorf("the broker has acknowledged nothing for %s", p.wait)) })
	defer slow.Stop()
	for _, m := range messages {
		s.send(ctx, m, func(twice bool, err error) {
			if twice {
				err = errTwice
			}
			slow.Reset(p.wait)
			answers <- err
		})
	}
	s.flush(ctx)
	for n := range messages {
		select {
		case err := <-answers:
			if err != nil {
				if cause := context.Cause(ctx); cause != nil {
					err = cause
				}
				return n, p.lost(err, messages[n])
			}
		case <-ctx.Done():
			return n, p.lost(context.Cause(ctx), messages[n])
		}
	}
	return len(messages), nil
}

var errLost = errors.New("the connection to the broker was lost")

// lost explains why a message was not acknowledged.
func (p *publisher) lost(err error, m *message) error {
	if errors.Is(err, errTwice) {
		return err
	}
	if why := p.session.why(); why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return explain(fmt.Errorf("the message at position %d (%d bytes): %w", m.position, len(m.payload), err))
}

// messages of a batch that the topic has not, and the position up to which they are.
func (p *publisher) messages(ctx context.Context, b *sink.Batch) (out []*message, next seglog.Position, err error) {
	if b.Expired {
		if there, err := p.there(b.Next); there || err != nil {
			return nil, b.Next, err
		}
		m, err := p.expired(b)
		return []*message{m}, b.Next, err
	}
	size := 0
	for _, e := range b.Entries {
		if there, err := p.there(e.Position); there || err != nil {
			if err != nil {
				return nil, 0, err
			}
			continue
		}
		m := p.message(ctx, e)
		if size += len(m.payload); size > maxInFlight && len(out) > 0 {
			return out, e.Position - 1, nil
		}
		out = append(out, m)
	}
	return out, b.Next, nil
}

// there reports whether the topic has a position.
func (p *publisher) there(at seglog.Position) (bool, error) {
	if int64(at) > p.end.position {
		return false, nil
	}
	if p.end.epoch != p.cfg.Epoch {
		return false, fmt.Errorf("the topic ends with position %d of another control plane (epoch %q), and the next of this one is %d; use another topic, or delete this one",
			p.end.position, p.end.epoch, at)
	}
	return true, nil
}

func (p *publisher) message(ctx context.Context, e *seglog.Entry) *message {
	kind, name, _ := p.cfg.Objects.ObjectOf(e.Key)
	out := &message{position: int64(e.Position), key: keyOf(kind, name), time: e.Time, properties: map[string]string{"epoch": p.cfg.Epoch}}
	m, err := pulsar.MessageOf(ctx, p.cfg.Objects, e, kind, name, false)
	if err != nil { // it stays so: what follows is not to wait for it
		p.log.Error("a change is published without its object", "position", e.Position, "error", err)
		m = unreadable(e, kind, name, err)
	}
	out.payload = m.Payload
	for _, property := range m.Properties {
		out.properties[property[0]] = property[1]
	}
	return out
}

// unreadable is the message of an entry whose value cannot be decoded: only what the key tells. It has a payload, as it is not a deletion.
func unreadable(e *seglog.Entry, kind *resource.Descriptor, name resource.Key, why error) *pulsar.Message {
	operation := "put"
	apiVersion, kindName := kind.GVK.ToAPIVersionAndKind()
	metadata := map[string]string{"name": name.Name}
	if name.Namespace != "" {
		metadata["namespace"] = name.Namespace
	}
	payload, _ := json.Marshal(map[string]any{"apiVersion": apiVersion, "kind": kindName, "metadata": metadata}) // texts can be encoded
	if e.Kind == seglog.Delete {
		operation, payload = "delete", nil
	}
	position := strconv.FormatInt(int64(e.Position), 10)
	return &pulsar.Message{Payload: payload, Time: e.Time, Properties: [][2]string{
		{"position", position}, {"kind", kindName}, {"namespace", name.Namespace}, {"name", name.Name}, {"operation", operation},
		{"resourceVersion", position}, {"problem", why.Error()},
	}}
}

// keyOf an object: KIND/NAMESPACE/NAME, KIND/NAME without a namespace. KIND is as in topics of the Pulsar protocol.
func keyOf(kind *resource.Descriptor, name resource.Key) string {
	if name.Namespace == "" {
		return kind.GroupResource().String() + "/" + name.Name
	}
	return kind.GroupResource().String() + "/" + name.Namespace + "/" + name.Name
}

// expired is the message that says that changes are missing. It has no key: it is not of an object, and compaction may remove it.
func (p *publisher) expired(b *sink.Batch) (*message, error) {
	payload, err := json.Marshal(b.Gap())
	return &message{
		position: int64(b.Next), payload: payload,
		properties: map[string]string{"position": strconv.FormatInt(int64(b.Next), 10), "epoch": p.cfg.Epoch, "operation": "expired"},
	}, err
}
