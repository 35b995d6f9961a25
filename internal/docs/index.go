package docs

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Weights of a word, by where it is.
const (
	weightTitle   = 12
	weightHeading = 5
	weightText    = 1
	weightCode    = 1
	maxText       = 8
	maxWeight     = 35 // one digit of base 36
)

// weighted is a word of a page.
type weighted struct {
	word   string
	weight int
}

// weigher counts the words of a page: those of titles, and, up to maxText, those of its text.
type weigher struct{ words, text map[string]int }

func (w *weigher) add(text string, weight int) {
	if w.words == nil {
		w.words, w.text = map[string]int{}, map[string]int{}
	}
	for _, word := range words(text) {
		if weight > weightText {
			w.words[word] += weight
		} else if w.text[word] < maxText {
			w.text[word]++
			w.words[word]++
		}
	}
}

func (w *weigher) list() (out []weighted) {
	for _, word := range slices.Sorted(maps.Keys(w.words)) {
		out = append(out, weighted{word, min(w.words[word], maxWeight)})
	}
	return out
}

// stop words say nothing about a page.
var stop = map[string]bool{}

func init() {
	for word := range strings.FieldsSeq(`a an and are as at be but by can do does for from has have how i if in into is it its my not of on or
		so that the their them then there they this to was we what when where which who whose why will with you your`) {
		stop[word] = true
	}
}

// words of a text, lower case and without the endings of plurals and verbs. docs.js does the same.
func words(text string) (out []string) {
	for _, word := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		if n := len(word); n < 2 || n > 24 || stop[word] || word[0] >= '0' && word[0] <= '9' {
			continue
		}
		out = append(out, stem(word))
	}
	return out
}

// stem of a word: roughly, and alike for a question and a page.
func stem(word string) string {
	for _, e := range []struct {
		ending, by string
		least      int
	}{{"ies", "y", 5}, {"sses", "ss", 6}, {"ing", "", 6}, {"ed", "", 5}, {"es", "", 5}, {"s", "", 4}} {
		if rest, ok := strings.CutSuffix(word, e.ending); ok && len(word) >= e.least && !strings.HasSuffix(word, "ss") {
			word = rest + e.by
			break
		}
	}
	if n := len(word); n > 4 && word[n-1] == 'e' {
		return word[:n-1]
	}
	return word
}

// index of all pages: for each word the pages that have it.
type index struct {
	// Pages: path, title, title of the section, summary.
	Pages [][4]string `json:"pages"`
	// Sizes of the pages, as factors by which their words count less.
	Sizes []float64 `json:"sizes"`
	// Words: for each page that has it two digits of its number and one of the weight, in base 36.
	Words map[string]string `json:"words"`
}

const maxPages = 36 * 36

func newIndex(pages []*Page) *index {
	x := &index{Words: map[string]string{}}
	mean := 0.0
	for _, p := range pages {
		mean += float64(len(p.words)) / float64(len(pages))
	}
	for i, p := range pages[:min(len(pages), maxPages)] {
		// The words of long pages say less of each of them (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009).
		size := math.Round(100*(0.4+0.6*float64(len(p.words))/mean)) / 100
		if p.Section == "" && p.Path != Home {
			size *= 3 // of all versions, or for contributors
		}
		x.Sizes = append(x.Sizes, size)
		x.Pages = append(x.Pages, [4]string{p.Path, p.Title, titleOf(p.Section), short(p.Summary)})
		for _, w := range p.words {
			x.Words[w.word] += fmt.Sprintf("%02s%s", strconv.FormatInt(int64(i), 36), strconv.FormatInt(int64(w.weight), 36))
		}
	}
	// A word that is on one page, in its text, once, is a name or a number of an example.
	maps.DeleteFunc(x.Words, func(_ string, of string) bool { return len(of) == 3 && of[2] == '1' })
	return x
}

// short form of a summary.
func short(text string) string {
	const most = 160
	if len(text) <= most {
		return text
	}
	cut := strings.LastIndexByte(text[:most], ' ')
	if cut < 0 {
		return ""
	}
	return text[:cut] + " …"
}

// Found is a page that answers a question.
type Found struct {
	*Page
	score float64
}

// Search for pages, the best first: those that have the most of the question's words, rare words before frequent ones. The last word may
// be the beginning of one. docs.js finds the same.
func (s *Site) Search(question string, most int) []Found {
	asked := words(question)
	scores := map[int]float64{}
	for k, word := range asked {
		add := func(of string, part float64) {
			idf := math.Log(1 + float64(len(s.index.Pages))/float64(len(of)/3))
			for i := 0; i+2 < len(of); i += 3 {
				page, _ := strconv.ParseInt(of[i:i+2], 36, 32) // as it was written
				weight, _ := strconv.ParseInt(of[i+2:i+3], 36, 32)
				scores[int(page)] += part * idf * float64(weight) / (float64(weight) + 4*s.index.Sizes[page])
			}
		}
		if of, ok := s.index.Words[word]; ok {
			add(of, 1)
			continue
		}
		if k < len(asked)-1 || len(word) < 3 {
			continue
		}
		for _, longer := range slices.Sorted(maps.Keys(s.index.Words)) {
			if strings.HasPrefix(longer, word) {
				add(s.index.Words[longer], 0.5)
			}
		}
	}
	var out []Found
	for page, score := range scores {
		out = append(out, Found{s.Pages[page], score})
	}
	slices.SortFunc(out, func(a, b Found) int { return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.Path, b.Path)) })
	return out[:min(most, len(out))]
}
