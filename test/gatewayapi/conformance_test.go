package gatewayapi

import (
	"io/fs"
	"os"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/version"
)

// echoImage is that of the suite's Pods.
const echoImage = "registry.k8s.io/gateway-api/echo-advanced:v1.5.1"

// inboundPorts of the suite's Pods, whose containers declare none.
const inboundPorts = "8080,7070,9090"

// claimed are the features above Core that Proxima has: all that are a mesh's own, and those of HTTPRoute
// that cases of meshes need besides. The suite runs no case that needs another one.
func claimed() []features.FeatureName {
	out := features.SetsToNamesSet(features.MeshExtendedFeatures).UnsortedList()
	out = append(out,
		features.SupportHTTPRouteResponseHeaderModification, features.SupportHTTPRouteParentRefPort,
		features.SupportHTTPRoute303RedirectStatusCode, features.SupportHTTPRoute307RedirectStatusCode, features.SupportHTTPRoute308RedirectStatusCode,
	)
	slices.Sort(out)
	return out
}

// TestConformance runs the suite, with its own manifests, in the profiles of meshes.
func TestConformance(t *testing.T) {
	if testing.Short() || os.Getenv("PROXIMA_GATEWAYAPI") == "" {
		t.Skip("it takes minutes: make interop-gatewayapi")
	}
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := newMesh(t, self)
	m.otherNamespaces()
	of := results{}
	s := m.suite(of)
	s.Setup(t, tests.ConformanceTests)
	t.Run("suite", func(t *testing.T) {
		if err := s.Run(t, meshTests()); err != nil {
			t.Fatal(err)
		}
	})
	of.tell()
	m.wantHandshakes()
	report, err := s.Report()
	if err != nil {
		t.Fatal(err)
	}
	if s.RunTest == "" {
		wantCases(t, of)
		wantReport(t, report)
	}
}

// meshTests are the cases of the suite that are about meshes.
func meshTests() []suite.ConformanceTest {
	return slices.DeleteFunc(slices.Clone(tests.ConformanceTests), func(test suite.ConformanceTest) bool {
		return !slices.Contains(test.Features, features.SupportMesh)
	})
}

// otherNamespaces are two of the suite's Gateways, in which it waits for Pods in a run of meshes alone, too.
func (m *mesh) otherNamespaces() {
	m.t.Helper()
	for _, name := range []string{suite.AppBackendNamespace, suite.WebBackendNamespace} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := m.client.CoreV1().Namespaces().Create(m.t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			m.t.Fatal(err)
		}
		labels := map[string]string{"app": "idle"}
		_, err := m.client.AppsV1().Deployments(name).Create(m.t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "idle"},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "idle", Image: echoImage}}},
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *mesh) suite(of results) *suite.ConformanceTestSuite {
	m.t.Helper()
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, gatewayv1.Install, apiextensionsv1.AddToScheme} {
		utilruntime.Must(add(all))
	}
	config := m.Admin(m.t)
	c, err := client.New(config, client.Options{Scheme: all})
	if err != nil {
		m.t.Fatal(err)
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		m.t.Fatal(err)
	}
	s, err := suite.NewConformanceTestSuite(suite.ConformanceOptions{
		ConfigurableOptions: suite.ConfigurableOptions{
			NamespaceLabels:      map[string]string{meshv1alpha1.LabelSidecarInjection: "enabled"},
			NamespaceAnnotations: map[string]string{meshv1alpha1.AnnotationInboundPorts: inboundPorts},
			CleanupTestResources: true,
			SupportedFeatures:    claimed(),
			ConformanceProfiles:  []suite.ConformanceProfileName{suite.MeshHTTPConformanceProfileName, suite.MeshGRPCConformanceProfileName},
			RunTest:              os.Getenv("PROXIMA_GATEWAYAPI_TEST"),
			Implementation: confv1.Implementation{
				Organization: "proxima-mesh", Project: "proxima", URL: "https://github.com/proxima-mesh/proxima", Version: version.Get().Version,
				Contact: []string{"https://github.com/proxima-mesh/proxima/issues"},
			},
		},
		Client: c, ClientOptions: client.Options{Scheme: all}, Clientset: clientset, RestConfig: config,
		ManifestFS: []fs.FS{&conformance.Manifests}, Hook: of.record,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}
