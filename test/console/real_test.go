package console

import (
	"os"
	"testing"

	"github.com/chromedp/chromedp"
)

func TestReal(t *testing.T) {
	url := os.Getenv("CONSOLE_URL")
	if url == "" {
		t.Skip("CONSOLE_URL")
	}
	b := openTab(t, os.Getenv("CONSOLE_ORIGIN"))
	b.do(chromedp.Navigate(url))
	b.is("document.querySelector('main h1') !== null")
	for name, hash := range map[string]string{"overview": "#/", "services": "#/services", "service": "#/services/shop/web", "problems": "#/problems", "nodes": "#/nodes", "policies": "#/policies", "history": "#/history?kind=services&namespace=shop&name=web&at=2s"} {
		b.at(hash)
		b.is("document.querySelector('main h1') && !document.querySelector('.loading')")
		var data []byte
		b.do(chromedp.FullScreenshot(&data, 100))
		if err := os.WriteFile("/tmp/console-npm/real-"+name+".png", data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
