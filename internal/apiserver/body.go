package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/apiserver/quota"
	"github.com/proxima-mesh/proxima/internal/payload"
)

// Bounds of bodies that have no flag.
const (
	// DefaultBodyTime is what the default MaxRequestBytes take at 1 Mbit/s.
	DefaultBodyTime = 30 * time.Second
	// DefaultBodyMemory is for bodies and what they are decoded to, of all users. One
	// user gets a quarter, which is enough for one body of the largest size.
	DefaultBodyMemory = 256 << 20
	// maxDepth, maxValues and maxMembers (of one object) of one body. Objects of Kubernetes' APIs are nested
	// about 20 deep, twice that with their managed fields; an EndpointSlice of 1,000
	// endpoints has 25,000 values.
	maxDepth   = 100
	maxValues  = 100_000
	maxMembers = 10_000
	// bytesPerValue is what a value takes while it is decoded: the element of a list
	// of containers, the largest that two bytes of a body can make.
	bytesPerValue = 512
	// bytesPerRequest is what a request with a body takes while it is being read: the
	// buffers of TLS and HTTP, and two goroutines.
	bytesPerRequest = 32 << 10
	// maxPatchCopy bounds what the "copy" operations of one JSON patch copy. The
	// result is decoded, and may have a value in every two bytes.
	maxPatchCopy = 256 << 10
	// maxLeaseBytes of a body in the lane of node leases. A Lease has some 500.
	maxLeaseBytes = 64 << 10
	// firstRead is the first buffer for a body; most are smaller.
	firstRead = 4 << 10
)

// transfer is what is known of a request's connection. The handlers further in find
// it in the context.
type transfer struct {
	// until is when the request must be over.
	until time.Time
	// unread: there is a body that has not been read to its end.
	unread atomic.Bool

	// control is nil once the request is over, as the server may use what is behind it for another request then. A handler may
	// still be at work: the one that Kubernetes' timeout left.
	mu      sync.Mutex
	control *http.ResponseController
}

func newTransfer(w http.ResponseWriter, until time.Time) *transfer {
	return &transfer{until: until, control: http.NewResponseController(w)}
}

// readUntil sets the deadline of reads. It does nothing where the connection has none, as recorders of tests, or is gone.
func (t *transfer) readUntil(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.control != nil {
		_ = t.control.SetReadDeadline(at)
	}
}

// writeUntil is like readUntil, for writes.
func (t *transfer) writeUntil(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.control != nil {
		_ = t.control.SetWriteDeadline(at)
	}
}

// over: the request is.
func (t *transfer) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.control = nil
}

type transferKey struct{}

// context of a request, which ends with the connection's, but not at once while a
// body is being read: the server ends the connection's context when a read of the
// body fails, as it does when its time is over, and that is still to be answered.
func (t *transfer) context(connection context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(connection), transferKey{}, t))
	stop := context.AfterFunc(connection, func() {
		end := func() { cancel(context.Cause(connection)) }
		if !t.unread.Load() {
			end()
			return
		}
		late := time.AfterFunc(drainTime, end)
		context.AfterFunc(ctx, func() { late.Stop() })
	})
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

func transferFrom(ctx context.Context) *transfer {
	t, _ := ctx.Value(transferKey{}).(*transfer)
	return t
}

// reservation is the memory that one request has of a pool.
type reservation struct {
	pool *quota.Pool
	user string
	// beyond the total: the user may always write.
	beyond bool
	held   int64
}

// grow by n bytes; the error is an API error.
func (r *reservation) grow(n int64) error {
	switch r.pool.Take(r.user, n, r.beyond) {
	case quota.ShareUsed:
		why := "the requests of %s that are in progress take as much memory as one user may have: send fewer or smaller ones at a time"
		return apierrors.NewTooManyRequests(fmt.Sprintf(why, r.user), retryAfterSeconds)
	case quota.TotalUsed:
		return apierrors.NewTooManyRequests("the requests in progress take all memory that there is for them: try again", retryAfterSeconds)
	}
	r.held += n
	return nil
}

func (r *reservation) shrink(n int64) {
	r.pool.Give(r.user, n)
	r.held -= n
}

// release everything. Idempotent.
func (r *reservation) release() {
	if r.held > 0 {
		r.shrink(r.held)
	}
}

// readBody reads the body of a request to its end and checks it, in bounded time and
// memory. Its error is an API error. The memory stays reserved until mem is released.
func (l *limiter) readBody(r *http.Request, resource bool, limit int64, mem *reservation) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	if err := mem.grow(bytesPerRequest); err != nil {
		return nil, err
	}
	t := transferFrom(r.Context())
	if t != nil {
		t.readUntil(time.Now().Add(l.BodyTime))
	}
	body, err := readAll(r.Body, r.ContentLength, limit, mem)
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		l.refused.WithLabelValues(limitTime).Inc()
		return nil, slowBody(l.BodyTime)
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return nil, err
	case err != nil:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body was cut off: %v", err))
	}
	if t != nil {
		t.unread.Store(false)
		t.readUntil(t.until)
	}
	return body, checkBody(r, resource, body, mem)
}

func tooLarge(limit int64) error {
	return apierrors.NewRequestEntityTooLargeError(
		fmt.Sprintf("limit is %d bytes: send a smaller object, or raise --max-request-bytes of the control plane", limit))
}

func slowBody(limit time.Duration) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusRequestTimeout, Reason: metav1.StatusReasonTimeout,
		Message: fmt.Sprintf("the body was not complete after %s: send it at once, or a smaller one", limit),
	}}
}

// readAll grows its buffer as bytes arrive, not as they are announced.
func readAll(from io.Reader, announced, limit int64, mem *reservation) ([]byte, error) {
	if from == nil {
		return nil, nil
	}
	most := limit + 1 // one more, to notice that there is more
	if announced >= 0 {
		most = announced + 1
	}
	var body []byte
	for {
		if len(body) == cap(body) {
			size := min(max(firstRead, 2*int64(cap(body))), most)
			if size <= int64(cap(body)) {
				return nil, tooLarge(limit)
			}
			if err := mem.grow(size); err != nil {
				return nil, err
			}
			old := int64(cap(body))
			body = append(make([]byte, 0, size), body...)
			mem.shrink(old)
		}
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			if int64(len(body)) > limit {
				return nil, tooLarge(limit)
			}
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// checkBody bounds the decoded size of a body and reserves memory for it. Handlers of
// paths that are no resources decode JSON, whatever the Content-Type.
func checkBody(r *http.Request, resource bool, body []byte, mem *reservation) error {
	media := "application/json"
	if resource {
		media, _, _ = strings.Cut(r.Header.Get("Content-Type"), ";")
		media = strings.ToLower(strings.TrimSpace(media))
	}
	limits := payload.Limits{Depth: maxDepth, Values: maxValues, Members: maxMembers}
	var values int
	var err error
	switch {
	case strings.Contains(media, "protobuf"):
		values, err = payload.Protobuf(body, limits)
	case strings.Contains(media, "yaml") && !json.Valid(body):
		// The check itself takes memory here.
		if err := mem.grow(bytesPerValue * int64(min(payload.AtMost(body), maxValues))); err != nil {
			return err
		}
		_, err = payload.YAML(body, limits)
	default:
		values, err = payload.JSON(body, limits)
	}
	var large *payload.TooLargeError
	switch {
	case errors.As(err, &large):
		return apierrors.NewRequestEntityTooLargeError("body: " + err.Error())
	case err != nil:
		return apierrors.NewBadRequest("body: " + err.Error())
	}
	return mem.grow(bytesPerValue * int64(values))
}

// withBody is the request with a body that has been read; nil: without one.
func withBody(r *http.Request, body []byte) *http.Request {
	out := r.WithContext(r.Context())
	if out.Body = http.NoBody; len(body) > 0 {
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
	out.ContentLength = int64(len(body))
	out.TransferEncoding = nil
	return out
}
