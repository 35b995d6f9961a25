package witness

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	witnessv1 "github.com/proxima-mesh/proxima/api/witness/v1"
)

const (
	// answerPart is the size of the parts of an answer.
	answerPart = 256 << 10
	// maxCalls that an agent works on at the same time; more are refused.
	maxCalls = 4
	// maxCallTime bounds the work on one call, whatever the control plane says.
	maxCallTime = 5 * time.Second
)

// callOutcome is a label of a metric.
type callOutcome int

const (
	callAnswered callOutcome = iota
	callFailed
	callRefused // too many at the same time
)

// String implements fmt.Stringer.
func (o callOutcome) String() string {
	return [...]string{"answered", "failed", "refused"}[o]
}

// answer a call. A control plane that cannot be reached has nobody who waits any more.
func (c *Client) answer(ctx context.Context, call *witnessv1.Call) {
	ctx, cancel := context.WithTimeout(ctx, min(time.Duration(call.GetTimeoutMilliseconds())*time.Millisecond, maxCallTime))
	defer cancel()
	body, outcome, err := c.work(ctx, call)
	if err == nil && len(body) > maxAnswer {
		outcome, err = callFailed, status.Errorf(codes.ResourceExhausted, "the answer has %d bytes, the limit is %d", len(body), maxAnswer)
	}
	if sendErr := c.sendAnswer(ctx, call.GetId(), body, err); sendErr != nil {
		outcome = callFailed
		c.config.Logger.Info("a call of the control plane was not answered", "kind", call.GetKind(), "error", sendErr)
	}
	c.answered[outcome].Add(1)
}

func (c *Client) work(ctx context.Context, call *witnessv1.Call) ([]byte, callOutcome, error) {
	if c.config.Answer == nil {
		return nil, callRefused, status.Error(codes.Unimplemented, "it answers no calls")
	}
	select {
	case c.calls <- struct{}{}:
		defer func() { <-c.calls }()
	default:
		return nil, callRefused, status.Errorf(codes.ResourceExhausted, "it works on %d calls already", maxCalls)
	}
	body, err := c.config.Answer(ctx, call)
	if err != nil {
		return nil, callFailed, err
	}
	return body, callAnswered, nil
}

// sendAnswer sends a body, or the error in its place.
func (c *Client) sendAnswer(ctx context.Context, id uint64, body []byte, failure error) error {
	stream, err := witnessv1.NewWitnessClient(c.config.Conn).Answer(ctx, grpc.UseCompressor(gzip.Name))
	if err != nil {
		return fmt.Errorf("open the stream of an answer: %w", err)
	}
	if failure != nil {
		s, given := status.FromError(failure)
		if !given {
			s = status.FromContextError(failure) // its time may be over a moment before that of who waits
		}
		_ = stream.Send(&witnessv1.AnswerPart{Id: id, Code: uint32(s.Code()), Message: s.Message()})
		_, _ = stream.CloseAndRecv() // the control plane repeats the failure
		return nil
	}
	for {
		part := body[:min(len(body), answerPart)]
		body = body[len(part):]
		// A failed Send says io.EOF; the end of the stream says why.
		if err := stream.Send(&witnessv1.AnswerPart{Id: id, Part: part}); err != nil || len(body) == 0 {
			break
		}
	}
	_, err = stream.CloseAndRecv()
	return err
}
