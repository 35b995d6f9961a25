package console

import "testing"

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
