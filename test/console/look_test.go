package console

import (
	"os"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/proxima-mesh/proxima/test/console/fake"
)

func TestLook(t *testing.T) {
	for _, c := range []struct {
		name string
		size fake.Size
		dark bool
	}{
		{"three", fake.Size{Zones: 3, Regions: 1, Services: 40, Measured: true, Priced: true}, false},
		{"three-dark", fake.Size{Zones: 3, Regions: 1, Services: 40, Measured: true, Priced: true}, true},
		{"guess", fake.Size{Zones: 6, Regions: 2, Services: 40}, false},
		{"hundred", fake.Size{Zones: 100, Regions: 8, Services: 3000, Measured: true, Priced: true}, false},
	} {
		_, url := serve(t, c.size)
		b := openTab(t, url)
		b.standStill()
		scheme := "light"
		if c.dark {
			scheme = "dark"
		}
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
		b.enter()
		for name, hash := range map[string]string{"overview": "#/", "services": "#/services", "service": "#/services/shop/web", "problems": "#/problems", "nodes": "#/nodes", "sites": "#/sites", "policies": "#/policies", "registries": "#/registries", "history": "#/history?kind=services&namespace=shop"} {
			if c.name != "three" && name != "overview" && name != "services" && name != "service" {
				continue
			}
			b.at(hash)
			b.is("document.querySelector('main h1') && !document.querySelector('.loading')")
			var data []byte
			b.do(chromedp.FullScreenshot(&data, 100))
			if err := os.WriteFile("/tmp/console-npm/"+c.name+"-"+name+".png", data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
