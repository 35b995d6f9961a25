package pulsar

import (
	"context"
	"errors"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// Types of commands (PulsarApi.proto, BaseCommand.Type).
const (
	typeConnected                   = 3
	typeMessage                     = 9
	typeSuccess                     = 13
	typeError                       = 14
	typeCloseConsumer               = 16
	typePing                        = 18
	typePong                        = 19
	typePartitionedMetadataResponse = 22
	typeLookupResponse              = 24
	typeLastMessageID               = 30
	typeActiveConsumerChange        = 31
	typeTopics                      = 33
	typeSchemaResponse              = 35
	typeAckResponse                 = 38

	// protocolVersion that is spoken: acknowledgements are answered.
	protocolVersion = 17
	// maxMessage is the default of Pulsar, in bytes; objects are smaller.
	maxMessage = 5 << 20
)

// handle a command. It may block for the store and the feed.
func (c *conn) handle(ctx context.Context, cmd *wire.Command) {
	switch {
	case cmd.Ping != nil:
		c.tell(&wire.Command{Type: ptr(int32(typePong)), Pong: &wire.Empty{}})
	case cmd.Pong != nil:
	case cmd.AuthResponse != nil:
		if err := c.authenticate(ctx, cmd.AuthResponse.GetResponse().GetMethod(), cmd.AuthResponse.GetResponse().GetData()); err != nil {
			c.fail(^uint64(0), err)
			c.flush()
		}
	case cmd.PartitionedMetadata != nil:
		c.partitions(ctx, cmd.PartitionedMetadata)
	case cmd.Lookup != nil:
		c.lookup(ctx, cmd.Lookup)
	case cmd.GetTopics != nil:
		q := cmd.GetTopics
		topics, err := c.s.topicsOf(ctx, q.GetNamespace(), c.may())
		if err != nil {
			c.fail(q.GetRequest(), err)
			return
		}
		if q.GetMode() == 1 {
			topics = nil
		}
		c.tell(&wire.Command{Type: ptr(int32(typeTopics)), TopicsResponse: &wire.Topics{Request: q.Request, Topics: topics}})
	case cmd.GetSchema != nil:
		code := wire.ServerError_TOPIC_NOT_FOUND
		c.tell(&wire.Command{Type: ptr(int32(typeSchemaResponse)), SchemaResponse: &wire.SchemaResponse{
			Request: cmd.GetSchema.Request, Error: &code, Message: ptr("topics of the change feed have no schema: messages are objects as JSON"),
		}})
	case cmd.Producer != nil:
		c.fail(cmd.Producer.GetRequest(), refuse(wire.ServerError_NOT_ALLOWED_ERROR,
			"topics of the change feed are for reading: change objects by the API, and publish messages of applications by a server of Pulsar"))
	case cmd.CloseProducer != nil:
		c.succeed(cmd.CloseProducer.GetRequest())
	default:
		if !c.handleConsumer(ctx, cmd) {
			c.unsupported(cmd)
		}
	}
}

// unsupported commands are refused if they expect an answer.
func (c *conn) unsupported(cmd *wire.Command) {
	for _, asked := range []*wire.Asked{cmd.ConsumerStats, cmd.GetOrCreateSchema, cmd.NewTransaction, cmd.TransactionCoordinator, cmd.WatchTopicList} {
		if asked != nil {
			c.fail(asked.GetRequest(), refuse(wire.ServerError_NOT_ALLOWED_ERROR, "the change feed has no command %d", cmd.GetType()))
		}
	}
}

func (c *conn) succeed(request uint64) {
	c.tell(&wire.Command{Type: ptr(int32(typeSuccess)), Success: &wire.Success{Request: &request}})
}

// codeOf an error, for answers that have their own fields for it.
func codeOf(err error) (*wire.ServerError, *string) {
	code := wire.ServerError_UNKNOWN_ERROR
	var p *problem
	if errors.As(err, &p) {
		code = p.code
	}
	return &code, ptr(err.Error())
}

func (c *conn) partitions(ctx context.Context, q *wire.PartitionedMetadata) {
	a := &wire.PartitionedMetadataResponse{Request: q.Request, Partitions: ptr(uint32(0)), Response: ptr(int32(0))}
	if _, err := c.s.topicOf(ctx, q.GetTopic(), c.may()); err != nil {
		c.s.meters.refused.Inc()
		a.Partitions, a.Response = nil, ptr(int32(1))
		a.Error, a.Message = codeOf(err)
	}
	c.tell(&wire.Command{Type: ptr(int32(typePartitionedMetadataResponse)), PartitionedMetadataResponse: a})
}

// lookup answers which instance of the control plane serves a topic: this one, by whichever address the client has come, unless there are
// others.
func (c *conn) lookup(ctx context.Context, q *wire.Lookup) {
	t, err := c.s.topicOf(ctx, q.GetTopic(), c.may())
	at, through := c.n.LocalAddr().String(), true
	if err == nil && c.s.cfg.Claims != nil {
		owner, here, failed := c.s.cfg.Claims.Find(ctx, t.String())
		switch {
		case failed != nil:
			err = refuse(wire.ServerError_SERVICE_NOT_READY, "topic %q: it is not known which instance of the control plane serves it: %v", q.GetTopic(), failed)
		case !here || c.s.cfg.Alone == nil || !c.s.cfg.Alone():
			at, through = owner.Address, false
		}
	}
	a := &wire.LookupResponse{
		Request: q.Request, Response: ptr(int32(1)), Url: ptr("pulsar://" + at), UrlTls: ptr("pulsar+ssl://" + at), Authoritative: ptr(true), ThroughServiceUrl: &through,
	}
	if err != nil {
		c.s.meters.refused.Inc()
		a = &wire.LookupResponse{Request: q.Request, Response: ptr(int32(2))}
		a.Error, a.Message = codeOf(err)
	}
	c.tell(&wire.Command{Type: ptr(int32(typeLookupResponse)), LookupResponse: a})
}

// handleConsumer handles the commands of consumers; false: it is none.
func (c *conn) handleConsumer(ctx context.Context, cmd *wire.Command) bool {
	switch {
	case cmd.Subscribe != nil:
		if err := c.subscribe(ctx, cmd.Subscribe); err != nil { // else it was answered before the first message
			c.fail(cmd.Subscribe.GetRequest(), err)
		}
	case cmd.Flow != nil:
		if m := c.consumer(cmd.Flow.GetConsumer()); m != nil {
			m.sub.flow(m, cmd.Flow.GetPermits())
		}
	case cmd.Ack != nil:
		c.ack(cmd.Ack)
	case cmd.Redeliver != nil:
		if m := c.consumer(cmd.Redeliver.GetConsumer()); m != nil {
			m.sub.redeliver(m, cmd.Redeliver.GetIds())
		}
	case cmd.CloseConsumer != nil:
		if m := c.consumer(cmd.CloseConsumer.GetConsumer()); m != nil && c.forget(m) {
			c.s.leave(m)
		}
		c.succeed(cmd.CloseConsumer.GetRequest())
	case cmd.Unsubscribe != nil:
		c.ofConsumer(cmd.Unsubscribe, func(m *consumer) error { return c.s.unsubscribe(ctx, m) })
	case cmd.Seek != nil:
		c.seek(ctx, cmd.Seek)
	case cmd.GetLastMessageId != nil:
		c.lastMessageID(ctx, cmd.GetLastMessageId)
	default:
		return false
	}
	return true
}

func (c *conn) ofConsumer(q *wire.OfConsumer, do func(*consumer) error) {
	m := c.consumer(q.GetConsumer())
	if m == nil {
		c.fail(q.GetRequest(), errNoConsumer)
		return
	}
	if err := do(m); err != nil {
		c.fail(q.GetRequest(), err)
		return
	}
	c.succeed(q.GetRequest())
}

var errNoConsumer = refuse(wire.ServerError_CONSUMER_NOT_FOUND, "there is no such consumer on this connection")

func (c *conn) subscribe(ctx context.Context, q *wire.Subscribe) error {
	t, err := c.s.topicOf(ctx, q.GetTopic(), c.may())
	if err != nil {
		return err
	}
	if q.GetSubscription() == "" {
		return refuse(wire.ServerError_METADATA_ERROR, "a subscription needs a name")
	}
	if q.GetKeyShared().GetMode() != 0 {
		return refuse(wire.ServerError_NOT_ALLOWED_ERROR, "key_shared subscriptions divide keys by themselves: ranges of hashes cannot be chosen")
	}
	if sharing := q.GetType(); q.GetReadCompacted() && sharing != wire.Subscribe_EXCLUSIVE && sharing != wire.Subscribe_FAILOVER {
		return refuse(wire.ServerError_NOT_ALLOWED_ERROR, "readCompacted is for exclusive and failover subscriptions")
	}
	m := &consumer{
		id: q.GetConsumer(), name: q.GetConsumerName(), priority: q.GetPriority(), conn: c,
		joined: func() { c.succeed(q.GetRequest()) },
	}
	c.mu.Lock()
	if c.consumers[m.id] != nil {
		c.mu.Unlock()
		return refuse(wire.ServerError_CONSUMER_BUSY, "the connection has a consumer %d", m.id)
	}
	c.mu.Unlock()
	return c.s.join(ctx, t, q, m)
}

func (c *conn) ack(q *wire.Ack) {
	m := c.consumer(q.GetConsumer())
	err := errNoConsumer
	if m != nil {
		err = m.sub.ack(q)
	}
	if q.Request == nil {
		return
	}
	a := &wire.AckResponse{Consumer: q.Consumer, Request: q.Request}
	if err != nil {
		a.Error, a.Message = codeOf(err)
	}
	c.tell(&wire.Command{Type: ptr(int32(typeAckResponse)), AckResponse: a})
}

func (c *conn) seek(ctx context.Context, q *wire.Seek) {
	m := c.consumer(q.GetConsumer())
	if m == nil {
		c.fail(q.GetRequest(), errNoConsumer)
		return
	}
	to, err := c.s.seekPosition(ctx, q)
	if err == nil {
		err = c.s.seek(ctx, m, to, func() { c.succeed(q.GetRequest()) })
	}
	if err != nil {
		c.fail(q.GetRequest(), err)
	}
}

// seekPosition is the position after which a seek begins: a message that is sought is the first. 0 is the beginning.
func (s *Server) seekPosition(ctx context.Context, q *wire.Seek) (seglog.Position, error) {
	switch {
	case q.PublishTime != nil:
		return s.since(time.UnixMilli(int64(q.GetPublishTime())))
	case q.Id == nil:
		return 0, refuse(wire.ServerError_METADATA_ERROR, "a seek needs a message ID or a time")
	case earliest(q.Id):
		return 0, nil
	case latest(q.Id):
		now, err := s.cfg.Store.Revision(ctx)
		return seglog.Position(now), err
	}
	at, err := s.positionOf(q.Id)
	return max(at-1, s.cfg.Feed.First()), err
}

// since is the position after which all changes are of a time or later; the first that there is, if that is later.
func (s *Server) since(t time.Time) (seglog.Position, error) {
	at, err := s.cfg.Feed.Log.Since(t)
	return max(at, s.cfg.Feed.First()), err
}

func (c *conn) lastMessageID(ctx context.Context, q *wire.OfConsumer) {
	m := c.consumer(q.GetConsumer())
	if m == nil {
		c.fail(q.GetRequest(), errNoConsumer)
		return
	}
	last, mark, err := m.sub.last(ctx)
	if err != nil {
		c.fail(q.GetRequest(), err)
		return
	}
	// As Pulsar, whose entries before the first are -1.
	a := &wire.LastMessageId{
		Request: q.Request, Last: &wire.MessageId{Ledger: ptr(^uint64(0)), Entry: ptr(^uint64(0))}, Mark: &wire.MessageId{Ledger: &c.s.ledger, Entry: ptr(^uint64(0))},
	}
	if last > 0 {
		a.Last = c.s.idOf(last)
	}
	if mark > 0 {
		a.Mark = c.s.idOf(mark)
	}
	c.tell(&wire.Command{Type: ptr(int32(typeLastMessageID)), LastMessageIdResponse: a})
}

// cursorType of a subscription's type.
func cursorType(t wire.Subscribe_Type) cursor.Type {
	switch t {
	case wire.Subscribe_SHARED:
		return cursor.Shared
	case wire.Subscribe_FAILOVER:
		return cursor.Failover
	case wire.Subscribe_KEY_SHARED:
		return cursor.KeyShared
	default:
		return cursor.Exclusive
	}
}
