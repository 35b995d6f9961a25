package proxima_test

import (
	"reflect"
	"strings"
	"testing"

	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// TestKubeProxySettings: the page of kube-proxy's settings has each field of its configuration,
// and each flag that it names exists.
func TestKubeProxySettings(t *testing.T) {
	page := readText(t, "docs/reference/kube-proxy-settings.md")
	typ := reflect.TypeFor[kubeproxyv1alpha1.KubeProxyConfiguration]()
	for field := range typ.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "" && !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, "`"+name+".") {
			t.Errorf("field %s is not there", name)
		}
	}
	flags := readText(t, "docs/reference/commands.md")
	for _, part := range strings.Split(page, "`--")[1:] {
		flag, _, _ := strings.Cut(part, "`")
		if !strings.Contains(flags, "`--"+flag+"`") {
			t.Errorf("there is no flag --%s", flag)
		}
	}
}
