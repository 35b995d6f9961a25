package console

import (
	"bytes"
	"flag"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/test/console/fake"
)

var update = flag.Bool("update", false, "write the pictures anew")

// TestScreens compares pages with the committed pictures: clock, data, font and size are the same.
func TestScreens(t *testing.T) {
	for _, c := range []struct {
		name, hash, scheme, media string
		size                      fake.Size
		sites                     int // of a global control plane; 0: it is that of a site
	}{
		{"overview", "#/", "light", "", small, 0},
		{"overview-dark", "#/", "dark", "", small, 0},
		{"overview-print", "#/", "light", "print", small, 0},
		{"regions", "#/?fold=true", "light", "", fake.Size{Zones: 100, Regions: 8, Services: 3000, Measured: true, Priced: true}, 0},
		{"estimated", "#/", "light", "", fake.Size{Zones: 6, Regions: 2, Services: 40}, 0},
		{"service", "#/services/shop/web", "light", "", small, 0},
		{"sites", "#/sites", "light", "", small, 0},
		{"sites-dark", "#/sites", "dark", "", small, 0},
		{"sites-global", "#/sites", "light", "", small, 3},
		{"sites-100", "#/sites", "light", "", small, 100},
		{"policies", "#/policies", "light", "", small, 0},
		{"policies-dark", "#/policies", "dark", "", small, 0},
		{"proxy", "#/policies/shop/web-1", "light", "", small, 0},
		{"change", "#/changes/4100", "light", "", small, 0},
		{"registries", "#/registries", "light", "", small, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, url := serve(t, c.size)
			if c.sites > 0 {
				s.Put(admin.StatusPath, fake.Global(c.sites, now))
			}
			b := openTab(t, url)
			b.standStill()
			b.look(c.scheme, "none")
			height := int64(720)
			if c.hash == "#/sites" || c.hash == "#/policies" {
				height = 1500 // the whole page
			}
			b.do(chromedp.EmulateViewport(1000, height))
			b.enter()
			b.at(c.hash)
			b.is(settled)
			// The port is another one each time, and other machines have other fonts.
			b.eval(`document.documentElement.style.fontFamily = '"DejaVu Sans"'; document.querySelector('.server').textContent = 'server'; document.activeElement.blur(); 0`, nil)
			drawn := "document.fonts.status == 'loaded'"
			if c.sites == 0 {
				drawn += " && document.querySelector('.pulse.live')"
			}
			if c.hash == "#/" || strings.Contains(c.hash, "fold") || strings.Contains(c.hash, "services") {
				drawn += " && document.querySelectorAll('canvas').length > 0"
			}
			b.is(drawn)
			if c.media != "" {
				b.do(emulation.SetEmulatedMedia().WithMedia(c.media))
			}
			var got []byte
			b.do(chromedp.Evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(0))))", nil), chromedp.CaptureScreenshot(&got))
			path := filepath.Join("testdata", "screens", c.name+".png")
			if c.name == "overview" {
				path = filepath.Join("..", "..", "docs", "concepts", "img", "console.png") // the README shows it
			}
			compare(t, path, got)
		})
	}
}

func compare(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		var small bytes.Buffer
		if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, decode(t, got)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, small.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	committed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a, b := decode(t, committed), decode(t, got)
	if a.Bounds() != b.Bounds() {
		keep(t, path, got)
		t.Fatalf("the size is %v, not %v", b.Bounds().Max, a.Bounds().Max)
	}
	if different, size := differing(a, b); 1000*different > size {
		keep(t, path, got)
		t.Errorf("%d of %d pixels differ", different, size)
	}
}

// differing counts the pixels that differ in pictures of one size.
func differing(a, b image.Image) (different, size int) {
	for y := range a.Bounds().Dy() {
		for x := range a.Bounds().Dx() {
			if !near(a, b, x, y) {
				different++
			}
		}
	}
	return different, a.Bounds().Dx() * a.Bounds().Dy()
}

// near: a step that no eye sees, of another version of the rasteriser, is no difference.
func near(a, b image.Image, x, y int) bool {
	r, g, u, _ := a.At(x, y).RGBA()
	r2, g2, u2, _ := b.At(x, y).RGBA()
	for _, d := range [3]int{int(r>>8) - int(r2>>8), int(g>>8) - int(g2>>8), int(u>>8) - int(u2>>8)} {
		if d > 8 || d < -8 {
			return false
		}
	}
	return true
}

func decode(t *testing.T, data []byte) image.Image {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// keep a picture that is another, to be looked at.
func keep(t *testing.T, path string, got []byte) {
	t.Helper()
	other := filepath.Join(os.TempDir(), "proxima-console-"+filepath.Base(path))
	if err := os.WriteFile(other, got, 0o600); err == nil {
		t.Log("the page looks as in " + other + "; go test -run TestScreens -update, if it should")
	}
}
