package kube_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
)

// arguments of "proxima install kubernetes" for each preset.
var arguments = map[string][]string{
	"planner-only":           nil,
	"kube-proxy-replacement": {"--set", "apiServer=https://192.0.2.1:6443", "--set", "controlPlane.topologyMode=proxima.dev/Adaptive"},
	"zone": {
		"--set", "controlPlane.topologyMode=proxima.dev/Adaptive",
		"--set", "apiServer=https://192.0.2.1:6443", "--set", "zone.name=east", "--set", "zone.global=192.0.2.2:6444",
	},
	"global": nil,
}

// manifests of a preset. The webhook is off, as the API server is on no node: it does not reach
// virtual IPs. Tests that let it set webhook.enabled.
func (b *bench) manifests(preset string, more ...string) string {
	b.t.Helper()
	return b.proxima(slices.Concat([]string{"install", "kubernetes", "--preset", preset, "--set", "webhook.enabled=false"}, arguments[preset], more)...)
}

// extended is with all that the API server calls.
var extended = []string{"--set", "webhook.enabled=true", "--set", "aggregatedAPI.enabled=true", "--set", "aggregatedAPI.agents=true"}

// TestDryRun: the API server takes the manifests of each preset, with no field that it does
// not know.
func TestDryRun(t *testing.T) {
	b := newBench(t)
	b.kubectl("", "create", "namespace", manifests.Namespace)
	volumes := []string{"--set", "feed.enabled=true", "--set", "feed.persistence.enabled=true", "--set", "feed.offload=s3://bucket/prefix"}
	for _, preset := range manifests.Presets() {
		t.Run(preset, func(t *testing.T) {
			out := b.kubectl(b.manifests(preset, append(volumes, extended...)...), "apply", "--dry-run=server", "--validate=strict", "--server-side", "-f", "-")
			t.Logf("%d objects", strings.Count(out, "(server dry run)"))
			if strings.Contains(strings.ToLower(out), "warning") {
				t.Errorf("kubectl warns:\n%s", out)
			}
		})
	}
}

// TestLife: install, upgrade, change of the preset, rollback and uninstall of each preset
// leave nothing behind.
func TestLife(t *testing.T) {
	b := newBench(t)
	client, err := dynamic.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	before := b.settled(client)
	for _, preset := range manifests.Presets() {
		t.Run(preset, func(t *testing.T) {
			b.kubectl(b.manifests(preset, append(extended, "--set", "image.tag=v1")...), "apply", "--server-side", "-f", "-")
			b.wantImage("v1")
			if created := added(before, b.snapshot(client)); len(created) == 0 {
				t.Error("nothing was installed")
			}
			b.kubectl(b.manifests(preset, "--set", "image.tag=v2"), "apply", "--server-side", "-f", "-")
			b.wantImage("v2")
			b.kubectl("", "--namespace", manifests.Namespace, "rollout", "undo", "deployment/proxima")
			b.wantImage("v1")
			b.kubectl(b.manifests(preset, "--set", "image.tag=v1"), "apply", "--server-side", "--force-conflicts", "-f", "-")
			b.wantImage("v1")
			b.kubectl(b.proxima("uninstall", "kubernetes", "--crds"), "delete", "--ignore-not-found", "--wait", "--timeout=90s", "-f", "-")
			b.wantNothing(client, before)
		})
	}
}

// wantImage waits for nothing: the template of the Deployment has the image at once.
func (b *bench) wantImage(tag string) {
	b.t.Helper()
	got := b.kubectl("", "--namespace", manifests.Namespace, "get", "deployment", "proxima",
		"-o", "jsonpath={.spec.template.spec.containers[0].image}")
	if !strings.HasSuffix(got, ":"+tag) {
		b.t.Errorf("image %s, want tag %s", got, tag)
	}
}

// passing are kinds whose objects come and go by themselves.
var passing = []string{"events", "leases"}

// snapshot names all objects of the cluster that stay.
func (b *bench) snapshot(client dynamic.Interface) []string {
	b.t.Helper()
	disco, err := discovery.NewDiscoveryClientForConfig(b.Admin(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	lists, err := disco.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		b.t.Fatal(err)
	}
	var out []string
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || slices.Contains(passing, r.Name) {
				continue
			}
			all, err := client.Resource(gv.WithResource(r.Name)).List(context.Background(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue // its definition has just gone
			}
			if err != nil {
				b.t.Fatalf("list %s: %v", r.Name, err)
			}
			for _, o := range all.Items {
				out = append(out, fmt.Sprintf("%s.%s %s/%s", r.Name, gv.Group, o.GetNamespace(), o.GetName()))
			}
		}
	}
	slices.Sort(out)
	return out
}

// settled is the snapshot once nothing comes any more: a new cluster fills itself.
func (b *bench) settled(client dynamic.Interface) []string {
	b.t.Helper()
	var last []string
	b.until("the cluster has settled", func() bool {
		now := b.snapshot(client)
		same := slices.Equal(now, last) && slices.ContainsFunc(now, func(s string) bool { return strings.Contains(s, "kube-root-ca.crt") })
		last = now
		return same
	})
	return last
}

// until polls, slowly enough for a busy machine.
func (b *bench) until(what string, done func() bool) {
	b.t.Helper()
	deadline := time.NewTimer(slower(commandTimeout))
	defer deadline.Stop()
	tick := time.NewTicker(slower(500 * time.Millisecond))
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.t.Fatalf("%s: not within %s", what, commandTimeout)
		}
	}
}

// added are the names of b that a does not have.
func added(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(b), func(s string) bool {
		_, found := slices.BinarySearch(a, s)
		return found
	})
}

// wantNothing waits until only what was there before is there: controllers delete pods and
// replica sets after their owners.
func (b *bench) wantNothing(client dynamic.Interface, before []string) {
	b.t.Helper()
	var left []string
	defer func() {
		if b.t.Failed() {
			b.t.Logf("left: %q", left)
		}
	}()
	b.until("nothing is left", func() bool {
		left = added(before, b.snapshot(client))
		return len(left) == 0
	})
}
