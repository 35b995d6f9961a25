package local

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Checkpoints keep what one inlet remembers, by type.
type Checkpoints interface {
	// Load returns all that were stored.
	Load(ctx context.Context) (map[string]federation.Checkpoint, error)
	// Store replaces those of some types, durably.
	Store(ctx context.Context, changed map[string]federation.Checkpoint) error
}

// ConfigMapCheckpoints keeps checkpoints in a ConfigMap: a key for each type, in which
// "/" is "_".
type ConfigMapCheckpoints struct {
	Client resource.Client
	// Kind is the descriptor of ConfigMaps.
	Kind *resource.Descriptor
	Key  resource.Key
}

// Load implements Checkpoints.
func (c *ConfigMapCheckpoints) Load(ctx context.Context) (map[string]federation.Checkpoint, error) {
	obj, err := c.Client.Get(ctx, c.Kind, c.Key)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get ConfigMap %s: %w", c.Key, err)
	}
	out := map[string]federation.Checkpoint{}
	for key, text := range obj.(*corev1.ConfigMap).Data {
		checkpoint, err := parseCheckpoint(text)
		if err != nil {
			return nil, fmt.Errorf("read key %s of ConfigMap %s (delete the key to begin again by versions): %w", key, c.Key, err)
		}
		out[strings.ReplaceAll(key, "_", "/")] = checkpoint
	}
	return out, nil
}

// Store implements Checkpoints.
func (c *ConfigMapCheckpoints) Store(ctx context.Context, changed map[string]federation.Checkpoint) error {
	obj, err := c.Client.Get(ctx, c.Kind, c.Key)
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get ConfigMap %s: %w", c.Key, err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Key.Namespace, Name: c.Key.Name}}
	if exists {
		m = obj.(*corev1.ConfigMap)
	}
	data := maps.Clone(m.Data)
	if data == nil {
		data = map[string]string{}
	}
	for _, typ := range slices.Sorted(maps.Keys(changed)) {
		text, err := json.Marshal(changed[typ])
		if err != nil {
			return fmt.Errorf("encode checkpoint of %s: %w", typ, err)
		}
		data[strings.ReplaceAll(typ, "/", "_")] = string(text)
	}
	m.Data = data
	if exists {
		_, err = c.Client.Update(ctx, c.Kind, m)
	} else {
		_, err = c.Client.Create(ctx, c.Kind, m)
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", c.Key, err)
	}
	return nil
}

func parseCheckpoint(text string) (federation.Checkpoint, error) {
	var c federation.Checkpoint
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return c, fmt.Errorf("parse checkpoint: %w", err)
	}
	return c, c.Check()
}
