package console

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// questions of users, each with the page that answers it, a line each: of the tests of internal/docs, too.
const questions = "../../internal/docs/testdata/questions.txt"

// openDocs serves the documentation as users do, and opens it.
func openDocs(t *testing.T) *tab {
	t.Helper()
	line := start(t, "http://", "docs", "--no-browser")
	address, err := url.Parse(strings.TrimRight(strings.Fields(line[strings.Index(line, "http://"):])[0], ".,;"))
	if err != nil {
		t.Fatal(err)
	}
	b := openTab(t, "http://"+address.Host)
	b.do(chromedp.Navigate(address.String()), chromedp.WaitVisible("#q"))
	return b
}

// ask the search of the documentation.
func (b *tab) ask(question string) {
	b.Helper()
	const typed = "(e => { e.value = %; e.dispatchEvent(new Event('input', {bubbles: true})); return 0; })(document.getElementById('q'))"
	b.eval(strings.Replace(typed, "%", "''", 1), nil)
	b.is("document.getElementById('found').hidden")
	b.eval(strings.Replace(typed, "%", quote(question), 1), nil)
	b.is("!document.getElementById('found').hidden")
}

// TestDocsSearch: at least 30 questions in users' words find their page among the first three, in the browser alone: the index is a
// file, and nothing else is asked for.
func TestDocsSearch(t *testing.T) {
	data, err := os.ReadFile(questions)
	if err != nil {
		t.Fatal(err)
	}
	b := openDocs(t)
	n := 0
	for line := range strings.Lines(string(data)) {
		question, want, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			t.Fatalf("%q: want a question, a tab and a page", line)
		}
		n++
		b.ask(question)
		var found []string
		b.eval("[...document.querySelectorAll('#found a')].slice(0, 3).map(a => new URL(a.href).pathname)", &found)
		if !strings.Contains(strings.Join(found, " ")+" ", "/"+want+".html ") {
			t.Errorf("%q finds %q, not %s", question, found, want)
		}
	}
	if n < 30 {
		t.Errorf("%d questions", n)
	}
}
