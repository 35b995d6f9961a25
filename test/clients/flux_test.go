package clients

import (
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const fluxObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: clients-flux}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: clients-flux, labels: {app: web}}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: clients-flux}
data: {a: b}
---
apiVersion: mesh.proxima.dev/v1alpha1
kind: Dataplane
metadata: {name: web-1, namespace: clients-flux, labels: {app: web}}
spec: {addresses: [192.0.2.1], ports: [{name: http, port: 80}], drainSeconds: 0}
`

// TestFlux runs the apply engine of Flux's kustomize-controller: apply in stages with dry runs,
// nothing to do the second time, drift, removal.
func TestFlux(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: runtime.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	manager := ssa.NewResourceManager(c, polling.NewStatusPoller(c, c.RESTMapper(), polling.Options{}), ssa.Owner{Field: "flux", Group: "flux.example.com"})
	objects, err := utils.ReadObjects(strings.NewReader(fluxObjects))
	if err != nil {
		t.Fatal(err)
	}
	manager.SetOwnerLabels(objects, "all", "flux-system")
	apply := func(want ssa.Action) {
		t.Helper()
		changes, err := manager.ApplyAllStaged(t.Context(), objects, ssa.DefaultApplyOptions())
		if err != nil {
			t.Fatal(err)
		}
		if len(changes.Entries) != len(objects) {
			t.Errorf("%d changes, want %d", len(changes.Entries), len(objects))
		}
		for _, e := range changes.Entries {
			if e.Action != want {
				t.Errorf("%s: %s, want %s", e.Subject, e.Action, want)
			}
		}
	}
	apply(ssa.CreatedAction)
	apply(ssa.UnchangedAction)
	for _, o := range objects {
		if o.GetKind() != "Service" {
			continue
		}
		drifted := o.DeepCopy()
		drifted.SetLabels(map[string]string{"app": "other"})
		if err := c.Patch(t.Context(), drifted, client.Merge); err != nil {
			t.Fatal(err)
		}
		entry, _, _, err := manager.Diff(t.Context(), o, ssa.DefaultDiffOptions())
		if err != nil || entry.Action != ssa.ConfiguredAction {
			t.Errorf("the diff of what has drifted: %v %+v", err, entry)
		}
		break
	}
	if _, err := manager.DeleteAll(t.Context(), objects, ssa.DefaultDeleteOptions()); err != nil {
		t.Fatal(err)
	}
	if err := manager.WaitForTermination(objects, ssa.WaitOptions{Interval: 200 * time.Millisecond, Timeout: time.Minute}); err != nil {
		t.Error(err)
	}
}
