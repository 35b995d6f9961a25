package console

import (
	"fmt"
	"image"
	"image/draw"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGuardsBite: what must fail a test by what happens in its page does so.
func TestGuardsBite(t *testing.T) {
	for name, c := range map[string]struct{ do, want string }{
		"error on the console": {"console.error('a word'); 0", "a word"},
		"exception":            {"setTimeout(() => { throw new Error('a throw'); }); 0", "a throw"},
		"unhandled rejection":  {"Promise.reject(new Error('a rejection')); 0", "a rejection"},
		"text as markup":       {"setTimeout(() => { document.body.innerHTML = '<b>x</b>'; }); 0", "TrustedHTML"},
		"inline script":        {"setTimeout(() => document.body.setAttribute('onclick', 'ran=1')); 0", "TrustedScript"},
		"inline style":         {"document.body.setAttribute('style', 'color: red'); 0", "Content Security Policy"},
		"request elsewhere":    {"fetch('http://127.0.0.2:1/').catch(() => 0); 0", "127.0.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := serve(t, small)
			b := openTab(t, url)
			b.enter()
			b.expect(c.want) // it is what is tested, so that it is no fault of this test
			b.eval(c.do, nil)
			if !b.came(c.want) {
				t.Error("it is not noticed")
			}
		})
	}
}

// TestGuardsBiteText: what TestHostileText looks for is found where it is. Elements are made by the page's own way, which no policy
// forbids.
func TestGuardsBiteText(t *testing.T) {
	_, url := serve(t, small)
	b := openTab(t, url)
	b.enter()
	b.at("#/services")
	b.is(settled)
	for element, attribute := range map[string]string{
		"a": "javascript:ran=1", "iframe": "about:blank", "form": "https://example.com", "img": "", "base": "", "object": "", "embed": "",
	} {
		var before, after string
		b.eval(strange, &before)
		b.expect("Content Security Policy")
		b.eval(fmt.Sprintf(`(() => { const e = document.createElement(%q); e.setAttribute(e.tagName == 'FORM' ? 'action' : e.tagName == 'A' ? 'href' : 'title', %q); document.body.append(e); })(); 0`,
			element, attribute), nil)
		b.eval(strange, &after)
		if before != "" || !strings.HasPrefix(after, "<"+element) {
			t.Errorf("%s is not found: %q, then %q", element, before, after)
		}
		b.eval("document.body.lastElementChild.remove(), 0", nil)
	}
	for file, want := range map[string]int{
		`"name,zone\r\nweb,a"`: 0, `"name,zone\r\n=1+1,a"`: 1, `"name,zone\r\nweb,\"=1+1\"\r\n+1,a"`: 2, `"name,zone\r\nweb,'=1+1"`: 0, `"@x,y"`: 1,
	} {
		var got int
		b.eval(formulasIn(file), &got)
		if got != want {
			t.Errorf("%s has %d formulas, found %d", file, want, got)
		}
	}
	var before, after bool
	b.eval(textRan, &before)
	b.eval("window.ran = 1", nil)
	b.eval(textRan, &after)
	if before || !after {
		t.Errorf("that a text ran is found: %t, and before: %t", after, before)
	}
}

// TestGuardsBiteScreens: a difference of more than 0.1 % is found, and one that no eye sees is none.
func TestGuardsBiteScreens(t *testing.T) {
	committed, err := os.ReadFile(filepath.Join("testdata", "screens", "sites.png"))
	if err != nil {
		t.Fatal(err)
	}
	a := decode(t, committed)
	for name, c := range map[string]struct {
		side, step int // of a square whose pixels are another colour, and by how much
		differs    bool
	}{
		"the same": {0, 0, false}, "a faint square": {100, 5, false}, "a small square": {20, 90, false}, "a square": {60, 90, true},
	} {
		b := image.NewRGBA(a.Bounds())
		draw.Draw(b, b.Bounds(), a, a.Bounds().Min, draw.Src)
		for i := range c.side * c.side {
			at := b.RGBAAt(i%c.side, i/c.side)
			if at.R > 127 {
				at.R -= uint8(c.step)
			} else {
				at.R += uint8(c.step)
			}
			b.SetRGBA(i%c.side, i/c.side, at)
		}
		if different, size := differing(a, b); (1000*different > size) != c.differs {
			t.Errorf("%s: %d of %d pixels differ", name, different, size)
		}
	}
}
