package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// checkTimeout bounds how long a dry run waits for zones, all at the same time.
const checkTimeout = 2 * time.Second

// dryRuns has each zone say what it would make of an object that is written at global in a
// dry run. A zone may be of another version, or have an object of its own in the way.
type dryRuns struct {
	// global is set before the server runs; nil: this is not the global control plane.
	global *global
}

// zoneVerdict is the answer of one zone, or why there is none.
type zoneVerdict struct {
	zone   string
	answer admin.CheckAnswer
	err    error
}

func (d *dryRuns) allow(ctx context.Context, w access.Write) error {
	if !w.DryRun || d.global == nil || w.Subresource != "" {
		return nil
	}
	obj, deletion := w.Object, false
	if obj == nil {
		obj, deletion = w.Old, true
	}
	i := slices.IndexFunc(d.global.kinds, func(k local.Kind) bool { return k.Descriptor.GVK.GroupKind() == w.Kind })
	if i < 0 {
		return nil
	}
	k := d.global.kinds[i]
	if k.Type.Direction != federation.GlobalToZone || k.Type.FanOut != federation.EveryZone {
		return nil
	}
	body, err := k.Marshal(obj)
	if err != nil {
		return err
	}
	verdicts, err := d.ask(ctx, admin.CheckRequest{Type: k.Type.Name, Object: body, Deletion: deletion})
	if err != nil {
		return err
	}
	return judge(w, k.Descriptor, obj.GetName(), verdicts)
}

// ask all zones that may connect.
func (d *dryRuns) ask(ctx context.Context, r admin.CheckRequest) ([]zoneVerdict, error) {
	objects, _, err := d.global.api.client.List(ctx, kind.Zone, resource.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list zones: %w", err)
	}
	var out []zoneVerdict
	for _, obj := range objects {
		if kind.ZoneEnabled(obj.(*meshv1alpha1.Zone)) {
			out = append(out, zoneVerdict{zone: obj.GetName()})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for i := range out {
		asking.Go(func() {
			v := &out[i]
			r := r
			r.Zone = v.zone
			v.answer, v.err = d.global.Check(ctx, r)
			if errors.Is(v.err, admin.ErrElsewhere) {
				v.answer, v.err = admin.CheckElsewhere(ctx, d.global.instances, d.global.log, r, v.err)
			}
		})
	}
	asking.Wait()
	return out, nil
}

// judge what zones have answered: a refusal of one of them is the answer to the user.
func judge(w access.Write, d *resource.Descriptor, name string, verdicts []zoneVerdict) error {
	warn := func(format string, args ...any) {
		if w.Warn != nil {
			w.Warn(oneLine(fmt.Sprintf(format, args...)))
		}
	}
	var refusals, silent []string
	for _, v := range verdicts {
		switch {
		case errors.Is(v.err, admin.ErrElsewhere):
			silent = append(silent, v.zone+" (not connected)")
		case status.Code(v.err) == codes.DeadlineExceeded:
			silent = append(silent, fmt.Sprintf("%s (no answer within %s)", v.zone, checkTimeout))
		case v.err != nil:
			silent = append(silent, fmt.Sprintf("%s (%s)", v.zone, status.Convert(v.err).Message()))
		}
		for _, text := range v.answer.Warnings {
			warn("zone %s: %s", v.zone, text)
		}
		if v.answer.Refusal != "" {
			refusals = append(refusals, fmt.Sprintf("zone %s would refuse it: %s", v.zone, v.answer.Refusal))
		}
	}
	if len(silent) > 0 {
		warn("zones that were not asked: %s", strings.Join(silent, ", "))
	}
	if len(refusals) == 0 {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Details: &metav1.StatusDetails{Group: w.Kind.Group, Kind: w.Kind.Kind, Name: name},
		Message: fmt.Sprintf("%s %q is not for all zones: %s", d.Singular, name, strings.Join(refusals, "; ")),
	}}
}

// oneLine is a text as a header may have it.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// Check implements admin.ZoneChecks: a zone that has a stream to this instance is asked.
func (g *global) Check(ctx context.Context, r admin.CheckRequest) (admin.CheckAnswer, error) {
	call := &federationv1.Call{Kind: federationv1.CallKind_CALL_KIND_CHECK, Type: r.Type, Body: r.Object}
	if r.Deletion {
		call.Kind = federationv1.CallKind_CALL_KIND_CHECK_DELETION
	}
	body, err := g.zones.Call(ctx, r.Zone, call)
	var none *stream.NoStreamError
	switch {
	case errors.As(err, &none):
		return admin.CheckAnswer{}, &elsewhereError{err}
	case status.Code(err) == codes.Unimplemented:
		return admin.CheckAnswer{}, status.Error(codes.Unavailable, "its version does not answer that")
	case err != nil:
		return admin.CheckAnswer{}, err
	}
	var answer federationv1.CheckAnswer
	if err := proto.Unmarshal(body, &answer); err != nil {
		return admin.CheckAnswer{}, status.Errorf(codes.Internal, "its answer cannot be read: %v", err)
	}
	return admin.CheckAnswer{Refusal: answer.GetRefusal(), Warnings: answer.GetWarnings()}, nil
}

// check answers a call of global: what this zone would make of an object, or of its end.
func (l *zoneLink) check(ctx context.Context, call *federationv1.Call) ([]byte, error) {
	judge := l.checker.Check
	if call.GetKind() == federationv1.CallKind_CALL_KIND_CHECK_DELETION {
		judge = l.checker.CheckDeletion
	}
	verdict, err := judge(ctx, call.GetType(), call.GetBody())
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&federationv1.CheckAnswer{Refusal: verdict.Refusal, Warnings: verdict.Warnings})
}

// answer a call of global.
func (l *zoneLink) answer(ctx context.Context, call *federationv1.Call) ([]byte, error) {
	switch call.GetKind() {
	case federationv1.CallKind_CALL_KIND_CHECK, federationv1.CallKind_CALL_KIND_CHECK_DELETION:
		return l.check(ctx, call)
	default:
		return l.calls.answer(ctx, call)
	}
}
