package sink

import (
	"context"
	"log/slog"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// Kind of sink.
type Kind interface {
	// Check completes the spec of a sink that is added. Errors: *InvalidError.
	Check(*Spec) error
	// Open makes the target of a sink, of whose spec Check was asked. It does not connect.
	Open(*Spec, *slog.Logger) (Target, error)
	// Pace of the deliveries.
	Pace() Pace
}

// Pace of deliveries.
type Pace struct {
	// Entries of a Batch at most.
	Entries int
	// Retry is how long after a failure a batch is delivered again.
	Retry backoff.Policy
}

// Target is where the changes of one sink go. It is called by one worker, and by Close when that has ended.
type Target interface {
	// Deliver hands a batch over, in its order, and blocks until the receiver has it or ctx ends. It returns the position up to which the receiver
	// has everything: less than the batch, if it is too large; also with an error, after which the rest is delivered again. Of an empty batch it
	// says whether the receiver is there, as far as it knows.
	Deliver(ctx context.Context, b *Batch) (seglog.Position, error)
	// Close ends it within 5 s.
	Close()
}

// Batch is what happened after a position, up to another.
type Batch struct {
	After, Next seglog.Position
	// Expired: the changes are not in the feed any more. There are no entries then.
	Expired bool
	// Entries that the sink selects, in order. They must not be changed.
	Entries []*seglog.Entry
}

// Gap is what receivers are told of a batch that is Expired, as JSON.
func (b *Batch) Gap() map[string]any {
	return map[string]any{
		"after": b.After, "upTo": b.Next,
		"message": "the changes after one position, up to the other, are not in the change feed any more; list the objects anew",
	}
}
