package app

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	// authorityObject is the name of the Secret with certificate and key of the authority, and
	// of the ConfigMap with the certificate alone (authorityFile), which agents mount.
	authorityObject = "proxima-ca"
	authorityFile   = "ca.crt"
)

// shareAuthority puts the authority that all replicas share into the data directory: that of the
// Secret, or a new one, which is put there. Of replicas that are first at the same time one
// creates the Secret; the others take that. The certificate is published for agents.
func shareAuthority(ctx context.Context, cfg ControlPlaneConfig) error {
	client, err := kubeclient.New(clusterREST(cfg.Cluster), []*resource.Descriptor{kind.Secret, kind.ConfigMap})
	if err != nil {
		return err
	}
	key := resource.Key{Namespace: cfg.Namespace, Name: authorityObject}
	obj, err := client.Get(ctx, kind.Secret, key)
	if apierrors.IsNotFound(err) {
		if obj, err = createAuthority(ctx, client, key, cfg.DataDir); apierrors.IsAlreadyExists(err) {
			obj, err = client.Get(ctx, kind.Secret, key)
		}
	}
	if err != nil {
		return explainCluster(cfg.Cluster, fmt.Errorf("secret %s, for the certificate authority of all replicas: %w", key, err))
	}
	secret := obj.(*corev1.Secret)
	cert, private := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if len(cert) == 0 || len(private) == 0 {
		return fmt.Errorf("secret %s has no %s or no %s: restore it from a backup; if there is none, delete it, and let every agent join again",
			key, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	if err := writeAuthority(cfg.DataDir, cert, private); err != nil {
		return err
	}
	return explainConfigMap(cfg, publishAuthority(ctx, client, key, cert))
}

func explainConfigMap(cfg ControlPlaneConfig, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("configmap %s/%s, by which agents trust this control plane: %w", cfg.Namespace, authorityObject, err)
	return explainCluster(cfg.Cluster, err)
}

// createAuthority makes one, and the Secret of it.
func createAuthority(ctx context.Context, client resource.Client, key resource.Key, dataDir string) (resource.Object, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	dir, err := os.MkdirTemp(dataDir, ".authority-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if _, err := identity.Open(dir); err != nil {
		return nil, err
	}
	data := map[string][]byte{}
	for file, name := range map[string]string{"ca.crt": corev1.TLSCertKey, "ca.key": corev1.TLSPrivateKeyKey} {
		if data[name], err = os.ReadFile(filepath.Join(dir, "ca", file)); err != nil {
			return nil, err
		}
	}
	return client.Create(ctx, kind.Secret, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Type: corev1.SecretTypeTLS, Data: data,
	})
}

// writeAuthority to the data directory, where package identity expects it.
func writeAuthority(dataDir string, cert, private []byte) error {
	dir := filepath.Join(dataDir, "pki", "ca")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return errors.Join(
		atomicfile.Write(filepath.Join(dir, "ca.crt"), cert, 0o600),
		atomicfile.Write(filepath.Join(dir, "ca.key"), private, 0o600),
	)
}

// publishAuthority for agents.
func publishAuthority(ctx context.Context, client resource.Client, key resource.Key, cert []byte) error {
	want := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Data: map[string]string{authorityFile: string(cert)},
	}
	obj, err := client.Get(ctx, kind.ConfigMap, key)
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, kind.ConfigMap, want)
		if apierrors.IsAlreadyExists(err) { // another replica, of the same authority
			err = nil
		}
		return err
	}
	if err != nil || bytes.Equal([]byte(obj.(*corev1.ConfigMap).Data[authorityFile]), cert) {
		return err
	}
	want.ResourceVersion = obj.GetResourceVersion()
	_, err = client.Update(ctx, kind.ConfigMap, want)
	if apierrors.IsConflict(err) {
		err = nil
	}
	return err
}

// instanceIdentity names this run of a pod; the host name of a pod is its name.
func instanceIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return strings.ToLower(host + "_" + rand.Text())
}
