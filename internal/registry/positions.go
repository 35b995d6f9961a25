package registry

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// PositionBlock is how many positions an instance of the control plane reserves at a time.
const PositionBlock = 1000

// annotationReserved on the Lease of Positions is the number of positions that are reserved.
const annotationReserved = GroupName + "/reserved-positions"

// Positions hands out positions where the revisions of kinds have no common order, as in a Kubernetes cluster. They
// come from a counter in an annotation of a Lease: an instance of the control plane reserves a block of it before it
// uses one, by a write that fails if another instance has written meanwhile. So no position is used twice, whatever
// instances are restarted, or run at the same time. Make it with NewPositions. Safe for concurrent use.
type Positions struct {
	client resource.Client
	lease  resource.Key
	holder string

	mu        sync.Mutex // held during requests
	next, end Position   // next to end-1 are reserved, and not used
}

// NewPositions makes it; it reserves none yet. The Lease is made where it is missing. holder is the
// name of this instance, for people.
func NewPositions(client resource.Client, lease resource.Key, holder string) *Positions {
	return &Positions{client: client, lease: lease, holder: holder}
}

// Take returns the next position. It blocks for a request, or some, when the block is used up, and tries again until
// ctx ends, whose error it returns.
func (p *Positions) Take(ctx context.Context) (Position, error) {
	retry := backoff.Backoff{Policy: backoff.Policy{First: 50 * time.Millisecond, Last: 5 * time.Second}}
	for {
		at, err := p.take(ctx)
		if err == nil {
			return at, nil
		}
		backoff.Sleep(ctx, retry.Next())
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}

func (p *Positions) take(ctx context.Context) (Position, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == p.end {
		if err := p.reserve(ctx); err != nil {
			return 0, err
		}
	}
	p.next++
	return p.next - 1, nil
}

// CatchUp returns whether further positions are above all that any instance has used up to now. It gives up the block
// of this instance, and reserves another one, if another instance has reserved one since. It blocks for a request,
// or some.
func (p *Positions) CatchUp(ctx context.Context) (moved bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lease, err := p.get(ctx)
	if err != nil {
		return false, err
	}
	reserved, err := reservedOf(lease)
	if err != nil {
		return false, err
	}
	if p.end == reserved && p.next < p.end { // its block is the newest
		return false, nil
	}
	return true, p.reserve(ctx)
}

// get the Lease; one without a counter if there is none.
func (p *Positions) get(ctx context.Context) (*coordinationv1.Lease, error) {
	out, err := p.client.Get(ctx, kind.Lease, p.lease)
	switch {
	case apierrors.IsNotFound(err):
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.lease.Namespace, Name: p.lease.Name}}, nil
	case err != nil:
		return nil, fmt.Errorf("read the counter of positions: %w", err)
	}
	return out.(*coordinationv1.Lease).DeepCopy(), nil
}

// reserve a block, under p.mu.
func (p *Positions) reserve(ctx context.Context) error {
	for range attempts {
		lease, err := p.get(ctx)
		if err != nil {
			return err
		}
		reserved, err := reservedOf(lease)
		if err != nil {
			return err
		}
		end := reserved + PositionBlock
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, annotationReserved, strconv.FormatInt(int64(end), 10))
		lease.Spec.HolderIdentity = &p.holder
		write := p.client.Update
		if lease.ResourceVersion == "" {
			write = p.client.Create
		}
		_, err = write(ctx, kind.Lease, lease)
		switch {
		case err == nil:
			p.next, p.end = max(reserved, 1), end // 0 is no position
			return nil
		case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err):
			return fmt.Errorf("reserve positions: %w", err)
		}
	}
	return fmt.Errorf("reserve positions: others wrote Lease %s %d times meanwhile", p.lease, attempts)
}

// reservedOf a Lease: the end of the newest block; 0: there was none.
func reservedOf(lease *coordinationv1.Lease) (Position, error) {
	text, ok := lease.Annotations[annotationReserved]
	if !ok {
		if lease.ResourceVersion != "" {
			return 0, fmt.Errorf("annotation %s of Lease %s/%s is missing: restore it with a number above all before, as positions must not go back",
				annotationReserved, lease.Namespace, lease.Name)
		}
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("annotation %s of Lease %s/%s: %q is no number from 0", annotationReserved, lease.Namespace, lease.Name, text)
	}
	return Position(n), nil
}
