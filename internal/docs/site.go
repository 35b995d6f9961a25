package docs

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// Page of the documentation.
type Page struct {
	// Path without extension, below the root: how-to/backup.
	Path string
	// Section is the folder that the page is in; empty: the root.
	Section string
	Title   string
	// Summary is its first paragraph, in plain text.
	Summary string
	// Headings below the title.
	Headings []Heading

	source []byte
	body   template.HTML
	words  []weighted
}

// Heading of a page.
type Heading struct {
	Level  int
	Text   string
	Anchor string
}

// Site is all pages of a version.
type Site struct {
	// Version that the pages are of.
	Version string
	// Pages in the order of the menu.
	Pages []*Page

	byPath map[string]*Page
	files  map[string][]byte // images
	index  *index
}

// sections in the order of the menu, and their titles. Others follow by name.
var sections = []struct{ folder, title string }{
	{"", "Start"}, {"tutorials", "Tutorials"}, {"how-to", "How to"}, {"concepts", "Concepts"}, {"reference", "Reference"},
	{"compared", "Compared"}, {"examples", "Examples"}, {"adr", "Decisions"},
}

// Home is the path of the first page.
const Home = "index"

// sourceURL of files that are not in the documentation.
const sourceURL = "https://github.com/proxima-mesh/proxima/blob/"

// New reads the Markdown files of a repository: README.md, CHANGELOG.md and what is below docs. An error names the file.
func New(files fs.FS, version string) (*Site, error) {
	s := &Site{Version: version, byPath: map[string]*Page{}, files: map[string][]byte{}}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		switch path.Ext(name) {
		case ".md":
			p := &Page{Path: pathOf(name), source: data}
			p.Section = strings.TrimPrefix(path.Dir(p.Path), ".")
			s.Pages, s.byPath[p.Path] = append(s.Pages, p), p
		default:
			s.files[strings.TrimPrefix(name, "docs/")] = data
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the documentation: %w", err)
	}
	for _, p := range s.Pages {
		if err := s.render(p); err != nil {
			return nil, fmt.Errorf("page %s: %w", p.Path, err)
		}
	}
	slices.SortFunc(s.Pages, func(a, b *Page) int {
		return cmp.Or(rank(a.Section)-rank(b.Section), strings.Compare(a.Section, b.Section), first(a)-first(b), strings.Compare(strings.ToLower(a.Title), strings.ToLower(b.Title)))
	})
	s.index = newIndex(s.Pages)
	return s, nil
}

// pathOf a page in the site: README.md is its home, and docs its root.
func pathOf(file string) string {
	switch file {
	case "README.md":
		return Home
	case "CHANGELOG.md":
		return "changelog"
	}
	return strings.TrimSuffix(strings.TrimPrefix(file, "docs/"), ".md")
}

// fileOf a page in the repository.
func fileOf(page string) string {
	switch page {
	case Home:
		return "README.md"
	case "changelog":
		return "CHANGELOG.md"
	}
	return "docs/" + page + ".md"
}

func rank(section string) int {
	for i, s := range sections {
		if s.folder == section {
			return i
		}
	}
	return len(sections)
}

func first(p *Page) int {
	if p.Path == Home {
		return 0
	}
	return 1
}

// titleOf a section.
func titleOf(section string) string {
	for _, s := range sections {
		if s.folder == section {
			return s.title
		}
	}
	return section
}

// Page of a path, also with .md or .html, or below docs; ok is false if there is none.
func (s *Site) Page(name string) (p *Page, ok bool) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	for _, try := range []string{name, strings.TrimSuffix(name, ".html"), pathOf(name)} {
		if p, ok = s.byPath[try]; ok {
			return p, true
		}
	}
	// A name without its folder, where one page alone has it.
	for _, other := range s.Pages {
		if path.Base(other.Path) == strings.TrimSuffix(name, ".md") {
			if p != nil {
				return nil, false
			}
			p = other
		}
	}
	return p, p != nil
}

// render a page.
func (s *Site) render(p *Page) error {
	md := goldmark.New(goldmark.WithExtensions(extension.Table, extension.Strikethrough, extension.TaskList), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	root := md.Parser().Parse(text.NewReader(p.source), parser.WithContext(parser.NewContext(parser.WithIDs(&ids{used: map[string]int{}}))))
	var weights weigher
	err := ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			id, _ := n.AttributeString("id")
			anchor, _ := id.([]byte)
			h := Heading{Level: n.Level, Text: plain(n, p.source), Anchor: string(anchor)}
			if n.Level == 1 && p.Title == "" {
				p.Title = h.Text
				weights.add(h.Text, weightTitle)
				return ast.WalkSkipChildren, nil
			}
			p.Headings = append(p.Headings, h)
			weights.add(h.Text, weightHeading)
		case *ast.Paragraph:
			if p.Summary == "" {
				p.Summary = plain(n, p.source)
			}
		case *ast.Text:
			weights.add(string(n.Segment.Value(p.source)), weightText)
		case *ast.FencedCodeBlock:
			for i := range n.Lines().Len() {
				line := n.Lines().At(i)
				weights.add(string(line.Value(p.source)), weightCode)
			}
		case *ast.Link:
			n.Destination = []byte(s.link(p, string(n.Destination)))
		case *ast.Image:
			n.Destination = []byte(s.image(p, string(n.Destination)))
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return err
	}
	if p.Title == "" {
		return errors.New("it has no title: begin it with a heading of level 1")
	}
	weights.add(p.Path, weightTitle)
	p.words = weights.list()
	var out bytes.Buffer
	if err := md.Renderer().Render(&out, p.source, root); err != nil {
		return err
	}
	p.body = template.HTML(out.String()) // goldmark leaves raw HTML out
	return nil
}

// ids of headings as GitHub makes them, by which pages link to each other.
type ids struct{ used map[string]int }

// Generate implements parser.IDs.
func (g *ids) Generate(value []byte, _ ast.NodeKind) []byte {
	var b strings.Builder
	for _, r := range strings.ToLower(string(value)) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127 && !strings.ContainsRune("…–—×≤≥→“”‘’", r):
			b.WriteRune(r)
		}
	}
	id := b.String()
	n := g.used[id]
	if g.used[id]++; n > 0 {
		id = fmt.Sprintf("%s-%d", id, n)
	}
	return []byte(id)
}

// Put implements parser.IDs.
func (g *ids) Put(value []byte) { g.used[string(value)]++ }

// plain text of a node.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // it returns no error
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
			if t.SoftLineBreak() {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// link of a page: to another page of the site, to a place in it, or to the repository.
func (s *Site) link(from *Page, target string) string {
	if target == "" || target[0] == '#' || strings.Contains(target, ":") {
		return target
	}
	file, anchor, _ := strings.Cut(target, "#")
	file = path.Join(path.Dir(fileOf(from.Path)), file)
	if anchor != "" {
		anchor = "#" + anchor
	}
	if _, ok := s.byPath[pathOf(file)]; ok && strings.HasSuffix(file, ".md") {
		return up(from.Path) + pathOf(file) + ".html" + anchor
	}
	return sourceURL + s.revision() + "/" + file + anchor
}

// revision of the repository that the site is of.
func (s *Site) revision() string {
	if strings.HasPrefix(s.Version, "v") {
		return s.Version
	}
	return "main"
}

func (s *Site) image(from *Page, target string) string {
	if strings.Contains(target, ":") {
		return target
	}
	file := path.Join(path.Dir(fileOf(from.Path)), target)
	return up(from.Path) + strings.TrimPrefix(file, "docs/")
}

// up leads from a page to the root.
func up(page string) string { return strings.Repeat("../", strings.Count(page, "/")) }

//go:embed assets/page.html
var pageHTML string

//go:embed assets/docs.css
var styleCSS []byte

//go:embed assets/icon.svg
var iconSVG []byte

//go:embed assets/docs.js
var searchJS []byte

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

type menuSection struct {
	Title string
	Pages []menuEntry
}

type menuEntry struct {
	Title, Link string
	Here        bool
}

// HTML of a page.
func (s *Site) HTML(p *Page) ([]byte, error) {
	root := up(p.Path)
	var menu []menuSection
	for _, other := range s.Pages {
		title := titleOf(other.Section)
		if len(menu) == 0 || menu[len(menu)-1].Title != title {
			menu = append(menu, menuSection{Title: title})
		}
		last := &menu[len(menu)-1]
		last.Pages = append(last.Pages, menuEntry{other.Title, root + other.Path + ".html", other == p})
	}
	var contents []Heading
	for _, h := range p.Headings {
		if h.Level == 2 {
			contents = append(contents, h)
		}
	}
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, map[string]any{
		"Page": p, "Body": p.body, "Menu": menu, "Contents": contents, "Root": root, "Version": s.Version, "Source": sourceURL + s.revision() + "/" + fileOf(p.Path),
	})
	return out.Bytes(), err
}

// Files of the site, by their paths.
func (s *Site) Files() (map[string][]byte, error) {
	out := map[string][]byte{"docs.css": styleCSS, "docs.js": searchJS, "icon.svg": iconSVG}
	for name, data := range s.files {
		out[name] = data
	}
	index, err := json.Marshal(s.index)
	if err != nil {
		return nil, err
	}
	out["index.json"] = index
	for _, p := range s.Pages {
		if out[p.Path+".html"], err = s.HTML(p); err != nil {
			return nil, fmt.Errorf("page %s: %w", p.Path, err)
		}
	}
	return out, nil
}

// Export writes the site below dir/VERSION and returns that folder. Files that were there stay, unless they are of the site.
func (s *Site) Export(dir string) (string, error) {
	files, err := s.Files()
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, s.Version)
	for name, data := range files {
		file := filepath.Join(to, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return "", fmt.Errorf("export the documentation: %w", err)
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return "", fmt.Errorf("export the documentation: %w", err)
		}
	}
	return to, nil
}
