package app

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/controller/event"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Events of Services of which the mode of a node does not do something.
const (
	reasonLimited   = "NotDoneByMode"
	limitsComponent = "proxima-node"
	// limitsPace is the pause between two looks at what the mode does not do.
	limitsPace = 10 * time.Second
)

// limits of the mode, for status.
func (a *agent) limits() (lines []string, problem string) {
	m, ok := a.mode.(modes.Limited)
	if !ok {
		return nil, ""
	}
	for name, limits := range m.Limits() {
		for _, l := range limits {
			lines = append(lines, name.String()+": "+l)
		}
	}
	slices.Sort(lines)
	return lines, m.Problem()
}

// reportLimits writes an Event of each Service of which the mode does not do something, until ctx ends.
func (a *agent) reportLimits(ctx context.Context) error {
	m, ok := a.mode.(modes.Limited)
	if !ok || a.gateway != nil {
		<-ctx.Done()
		return nil
	}
	client, err := kubeclient.New(a.restConfig(), []*resource.Descriptor{kind.Service, kind.Event})
	if err != nil {
		return err
	}
	r := limitReporter{client: client, node: a.cfg.Name, mode: a.mode.Name(), told: map[proxy.ServiceName]string{}}
	for backoff.Sleep(ctx, limitsPace) {
		if err := r.report(ctx, m.Limits()); err != nil && ctx.Err() == nil {
			a.log.Warn("an Event of what the mode does not do was not written; it is tried again", "error", err)
		}
	}
	return nil
}

// limitReporter writes Events of Services, one for each text.
type limitReporter struct {
	client     resource.Client
	node, mode string
	told       map[proxy.ServiceName]string
}

// report what is new.
func (r *limitReporter) report(ctx context.Context, limits map[proxy.PortName][]string) error {
	byService := map[proxy.ServiceName][]string{}
	for name, of := range limits {
		byService[name.ServiceName] = append(byService[name.ServiceName], of...)
	}
	maps.DeleteFunc(r.told, func(name proxy.ServiceName, _ string) bool { return byService[name] == nil })
	for name, of := range byService {
		slices.Sort(of)
		text := fmt.Sprintf("node %s (mode %s) does not do: %s", r.node, r.mode, strings.Join(slices.Compact(of), "; "))
		if r.told[name] == text {
			continue
		}
		if err := r.write(ctx, name, text); err != nil {
			return err
		}
		r.told[name] = text
	}
	return nil
}

// write an Event. Its name is that of what it says, so that an agent that starts again writes nothing
// while there is one.
func (r *limitReporter) write(ctx context.Context, name proxy.ServiceName, text string) error {
	about := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	found, err := r.client.Get(ctx, kind.Service, resource.Key{Namespace: name.Namespace, Name: name.Name})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		about.UID, about.ResourceVersion = found.GetUID(), found.GetResourceVersion()
	case !apierrors.IsForbidden(err): // a role may allow no more than lists
		return err
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, about.UID, "/", text)
	suffix := fmt.Sprintf(".%016x", h.Sum64())
	w := event.Warning(event.About(corev1.SchemeGroupVersion.WithKind("Service"), about), limitsComponent, time.Now(), reasonLimited, text)
	w.GenerateName = ""
	w.Name = name.Name[:min(len(name.Name), validation.DNS1123SubdomainMaxLength-len(suffix))] + suffix
	if _, err = r.client.Create(ctx, kind.Event, w); apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
