package extension

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"
)

// SecretName of the record of authorities, in the control plane's own namespace; recordKey is the
// part of its data.
const (
	SecretName = "proxima-extension"
	recordKey  = "authorities.json"
)

// RotateAnnotation on the Secret asks for another authority. It is removed when there is one.
const RotateAnnotation = "mesh.proxima.dev/rotate"

// manager of the fields that are written here.
const manager = "proxima"

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// Target is an object of the cluster that names the authorities to its API server.
type Target struct {
	Resource schema.GroupVersionResource
	Kind     string
	Name     string
}

// WebhookTarget is the configuration of the validating webhooks, all of which are ours.
func WebhookTarget(name string) Target {
	return Target{
		schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
		"ValidatingWebhookConfiguration", name,
	}
}

// MutatingTarget is the configuration of the webhook that adds sidecars.
func MutatingTarget(name string) Target {
	return Target{
		schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
		"MutatingWebhookConfiguration", name,
	}
}

// APIServiceTarget is the registration of the aggregated API.
func APIServiceTarget() Target {
	return Target{
		schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		"APIService", GroupVersion.Version + "." + GroupVersion.Group,
	}
}

// bundles that an object names.
func (t Target) bundles(obj *unstructured.Unstructured) []string {
	if t.Kind == "APIService" {
		text, _, _ := unstructured.NestedString(obj.Object, "spec", "caBundle")
		return []string{text}
	}
	var out []string
	hooks, _, _ := unstructured.NestedSlice(obj.Object, "webhooks")
	for _, h := range hooks {
		hook, _ := h.(map[string]any)
		text, _, _ := unstructured.NestedString(hook, "clientConfig", "caBundle")
		out = append(out, text)
	}
	return out
}

// patch names the authorities, and nothing else (server-side apply).
func (t Target) patch(obj *unstructured.Unstructured, bundle string) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{}}
	out.SetAPIVersion(t.Resource.GroupVersion().String())
	out.SetKind(t.Kind)
	out.SetName(t.Name)
	if t.Kind == "APIService" {
		out.Object["spec"] = map[string]any{"caBundle": bundle}
		return out
	}
	var all []any
	hooks, _, _ := unstructured.NestedSlice(obj.Object, "webhooks")
	for _, h := range hooks {
		hook, _ := h.(map[string]any)
		all = append(all, map[string]any{"name": hook["name"], "clientConfig": map[string]any{"caBundle": bundle}})
	}
	out.Object["webhooks"] = all
	return out
}

// KeeperConfig of a Keeper.
type KeeperConfig struct {
	Client    dynamic.Interface
	Namespace string // of the Secret
	Targets   []Target
	Clock     clock.WithTicker // nil: the real one
	Logger    *slog.Logger
}

// Keeper keeps the authorities for the leader: it makes them, names them to the API server, and
// replaces them in time. Make it with NewKeeper.
type Keeper struct {
	cfg   KeeperConfig
	clock clock.WithTicker
	wake  chan struct{}

	mu     sync.Mutex
	secret *unstructured.Unstructured // nil: there is none
	seen   map[string]*unstructured.Unstructured
}

// NewKeeper makes a Keeper; Run starts it.
func NewKeeper(cfg KeeperConfig) *Keeper {
	k := &Keeper{cfg: cfg, clock: cfg.Clock, wake: make(chan struct{}, 1), seen: map[string]*unstructured.Unstructured{}}
	if k.clock == nil {
		k.clock = clock.RealClock{}
	}
	return k
}

// retryAfter a request that failed.
const retryAfter = 5 * time.Second

// Run until ctx ends, and return nil then. It must be called once.
func (k *Keeper) Run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := []*follower{follow(ctx, &following, k.cfg.Client, secrets, k.cfg.Namespace, SecretName,
		func(obj *unstructured.Unstructured) { k.set(func() { k.secret = obj }) })}
	for _, t := range k.cfg.Targets {
		followed = append(followed, follow(ctx, &following, k.cfg.Client, t.Resource, "", t.Name,
			func(obj *unstructured.Unstructured) { k.set(func() { k.seen[t.Kind] = obj }) }))
	}
	for _, f := range followed {
		if !f.wait(ctx) {
			return nil
		}
	}
	for {
		due, err := k.reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			k.cfg.Logger.Warn("the authority that the API server trusts could not be brought up to date", "error", err)
			due = k.clock.Now().Add(retryAfter)
		}
		timer := k.clock.NewTimer(due.Sub(k.clock.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-k.wake:
		case <-timer.C():
		}
		timer.Stop()
	}
}

func (k *Keeper) set(change func()) {
	k.mu.Lock()
	change()
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// reconcile brings the record and what the API server knows of it one step forward. due is when
// to call it again, if nothing changes before: after a write the watch brings the record.
func (k *Keeper) reconcile(ctx context.Context) (due time.Time, err error) {
	k.mu.Lock()
	secret := k.secret
	k.mu.Unlock()
	now := k.clock.Now()
	var all Authorities
	if secret != nil {
		if all, err = recordOf(secret); err != nil {
			return due, fmt.Errorf("secret %s/%s: %w: delete it, so that it is made again", k.cfg.Namespace, SecretName, err)
		}
	}
	rotate := secret != nil && secret.GetAnnotations()[RotateAnnotation] != ""
	next, due, err := all.Next(now, rotate)
	if err != nil {
		return due, err
	}
	if len(next) != len(all) || secret == nil {
		return now.Add(retryAfter), k.write(ctx, secret, next, rotate && len(next) > len(all))
	}
	if err := k.publish(ctx, all.Bundle()); err != nil {
		return due, err
	}
	last := len(all) - 1
	if all[last].Published.IsZero() {
		all[last].Published = now.UTC().Truncate(time.Second)
		return now.Add(retryAfter), k.write(ctx, secret, all, false)
	}
	return due, nil
}

// write the record. The Secret that comes back by the watch is the next one to reconcile.
func (k *Keeper) write(ctx context.Context, was *unstructured.Unstructured, all Authorities, rotated bool) error {
	record, err := all.Encode()
	if err != nil {
		return err
	}
	client := k.cfg.Client.Resource(secrets).Namespace(k.cfg.Namespace)
	encoded := base64.StdEncoding.EncodeToString(record)
	if was == nil {
		obj := &unstructured.Unstructured{Object: map[string]any{"type": "Opaque", "data": map[string]any{recordKey: encoded}}}
		obj.SetAPIVersion("v1")
		obj.SetKind("Secret")
		obj.SetNamespace(k.cfg.Namespace)
		obj.SetName(SecretName)
		_, err = client.Create(ctx, obj, metav1.CreateOptions{FieldManager: manager})
		if apierrors.IsAlreadyExists(err) {
			err = nil // the watch brings it
		}
		return err
	}
	obj := was.DeepCopy()
	if err := unstructured.SetNestedField(obj.Object, encoded, "data", recordKey); err != nil {
		return err
	}
	if notes := obj.GetAnnotations(); rotated {
		delete(notes, RotateAnnotation)
		obj.SetAnnotations(notes)
	}
	k.cfg.Logger.Info("authorities that the API server trusts are written", "number", len(all))
	_, err = client.Update(ctx, obj, metav1.UpdateOptions{FieldManager: manager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		err = nil // the same
	}
	return err
}

// publish the bundle in all targets that are there.
func (k *Keeper) publish(ctx context.Context, bundle []byte) error {
	text := base64.StdEncoding.EncodeToString(bundle)
	for _, t := range k.cfg.Targets {
		k.mu.Lock()
		obj := k.seen[t.Kind]
		k.mu.Unlock()
		if obj == nil || !differs(t.bundles(obj), text) {
			continue
		}
		options := metav1.ApplyOptions{FieldManager: manager, Force: true}
		_, err := k.cfg.Client.Resource(t.Resource).Apply(ctx, t.Name, t.patch(obj, text), options)
		if err != nil {
			return fmt.Errorf("name the authority in %s %s: %w", t.Kind, t.Name, err)
		}
		k.cfg.Logger.Info("the API server was given the authority", "object", t.Kind, "name", t.Name)
	}
	return nil
}

func differs(all []string, want string) bool {
	for _, text := range all {
		if text != want {
			return true
		}
	}
	return false
}

func recordOf(secret *unstructured.Unstructured) (Authorities, error) {
	text, _, err := unstructured.NestedString(secret.Object, "data", recordKey)
	if err != nil {
		return nil, err
	}
	record, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", recordKey, err)
	}
	return Parse(bytes.TrimSpace(record))
}
