package registry

import (
	"context"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// SecretTypeConfig is the type of Secrets that are entries of the configuration: those whose name begins
// as Nacos names what its clients encrypt. A Secret is encrypted where it is stored, and not for readers of
// other kinds.
const SecretTypeConfig corev1.SecretType = GroupName + "/config"

const (
	// labelConfig is on Secrets that are entries; annotations have what names and describes them.
	labelConfig           = GroupName + "/config"
	annotationGroup       = GroupName + "/group"
	annotationDataID      = GroupName + "/data-id"
	annotationType        = GroupName + "/type"
	annotationApplication = GroupName + "/application"
	annotationDescription = GroupName + "/description"
	// AnnotationEncryptedKey of an entry is the key of its content, as its writer has encrypted it.
	AnnotationEncryptedKey = GroupName + "/encrypted-data-key"
	// Keys of the data of a Secret.
	secretContent = "content"
	secretDataKey = "encryptedDataKey"
)

// Secret reports whether an entry is stored as a Secret.
func (k ConfigKey) Secret() bool { return strings.HasPrefix(k.DataID, kind.SecretDataID) }

// configOf a Secret that is an entry, in the form of others; nil: it is none.
func configOf(s *corev1.Secret) *meshv1alpha1.RegistryConfig {
	if s == nil || s.Type != SecretTypeConfig || !strings.HasPrefix(s.Annotations[annotationDataID], kind.SecretDataID) {
		return nil
	}
	content := string(s.Data[secretContent])
	return &meshv1alpha1.RegistryConfig{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion, Generation: s.Generation,
			CreationTimestamp: s.CreationTimestamp, ManagedFields: s.ManagedFields,
			Annotations: map[string]string{AnnotationEncryptedKey: string(s.Data[secretDataKey])},
		},
		Spec: meshv1alpha1.RegistryConfigSpec{
			Group: s.Annotations[annotationGroup], DataID: s.Annotations[annotationDataID], Content: content, Type: s.Annotations[annotationType],
			Application: s.Annotations[annotationApplication], Description: s.Annotations[annotationDescription],
		},
		Status: meshv1alpha1.RegistryConfigStatus{MD5: kind.ContentMD5(content)},
	}
}

// fillSecret with an entry, whose name it has.
func fillSecret(s *corev1.Secret, o *meshv1alpha1.RegistryConfig) {
	s.Type = SecretTypeConfig
	metav1.SetMetaDataLabel(&s.ObjectMeta, labelConfig, "true")
	metav1.SetMetaDataLabel(&s.ObjectMeta, meshv1alpha1.LabelOrigin, meshv1alpha1.OriginZone)
	for key, value := range map[string]string{
		annotationGroup: o.Spec.Group, annotationDataID: o.Spec.DataID, annotationType: o.Spec.Type,
		annotationApplication: o.Spec.Application, annotationDescription: o.Spec.Description,
	} {
		if delete(s.Annotations, key); value != "" {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, value)
		}
	}
	s.Data = map[string][]byte{secretContent: []byte(o.Spec.Content)}
	if text := o.Annotations[AnnotationEncryptedKey]; text != "" {
		s.Data[secretDataKey] = []byte(text)
	}
}

// writeSecret writes an entry that exists, or does not, and returns it as it is stored.
func (c *Configs) writeSecret(ctx context.Context, o *meshv1alpha1.RegistryConfig, have *corev1.Secret) (resource.Object, error) {
	if have == nil {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
		fillSecret(s, o)
		return c.client.Create(ctx, kind.Secret, s)
	}
	fillSecret(have, o)
	return c.client.Update(ctx, kind.Secret, have)
}

// followSecrets that are entries, until ctx ends.
func (c *Configs) followSecrets(ctx context.Context) error {
	return reflector.Run(ctx, reflector.Config{
		Client: c.client, Kind: kind.Secret, Select: resource.ListOptions{Labels: labels.SelectorFromSet(labels.Set{labelConfig: "true"})},
		Backoff: backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.2}, Logger: c.log, Level: slog.LevelDebug,
	}, func(e reflector.Event) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch e.Type {
		case reflector.Replace:
			here := e.Keys()
			for key := range c.secrets {
				if !here[key] {
					c.setSecret(key, nil)
				}
			}
			for _, o := range e.Objects {
				c.setSecret(resource.KeyOf(o), configOf(o.(*corev1.Secret)))
			}
			c.secretsListed.Do(func() { close(c.secretsReady) })
		case reflector.Set:
			c.setSecret(resource.KeyOf(e.Object()), configOf(e.Object().(*corev1.Secret)))
		case reflector.Delete:
			c.setSecret(resource.KeyOf(e.Object()), nil)
		default:
			return nil
		}
		c.signalChanged()
		return nil
	})
}

// setSecret replaces what a Secret is as an entry; nil: it is none. It is called with the lock.
func (c *Configs) setSecret(name resource.Key, now *meshv1alpha1.RegistryConfig) {
	before := c.secrets[name]
	if delete(c.secrets, name); now != nil {
		c.secrets[name] = now
	}
	if before != nil || now != nil {
		c.setEntry(name, before, now)
	}
}
