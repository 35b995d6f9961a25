package supervise

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// App is an application whose metrics are collected with those of the proxy.
type App struct {
	// Name is the label "mesh_application" of its samples, where there are several.
	Name string
	URL  string
}

const (
	// scrapeTimeout of one application: what it has not answered by then is left out.
	scrapeTimeout = 5 * time.Second
	// maxScrape bounds an answer, in bytes.
	maxScrape = 64 << 20
	// textFormat of Prometheus, version 0.0.4.
	textFormat = "text/plain; version=0.0.4; charset=utf-8"
)

// Metrics serves the metrics of Envoy, of this process and of applications, as one page.
type Metrics struct {
	Admin *Admin
	Apps  []App
	// Own metrics in the text format.
	Own func() string
	// Include and Exclude select those of Envoy and of this process by their names; nil: all, and
	// none. The names are those of the page, as in envoy_cluster_upstream_cx_total.
	Include, Exclude *regexp.Regexp
}

// shows reports whether a metric of Envoy or of this process is on the page.
func (m *Metrics) shows(name string) bool {
	return (m.Include == nil || m.Include.MatchString(name)) && (m.Exclude == nil || !m.Exclude.MatchString(name))
}

// ServeHTTP implements http.Handler.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	pages := make([][]byte, 2+len(m.Apps))
	up := make([]bool, len(m.Apps))
	var fetches sync.WaitGroup
	fetches.Go(func() {
		// Those that were never counted are left out: most are of clusters without traffic.
		if status, body, err := m.Admin.Do(ctx, http.MethodGet, "/stats/prometheus?usedonly"); err == nil && status == http.StatusOK {
			pages[1] = body
		}
	})
	for i, app := range m.Apps {
		fetches.Go(func() { pages[2+i], up[i] = scrape(ctx, app.URL) })
	}
	fetches.Wait()
	pages[0] = []byte(m.Own() + applicationsUp(m.Apps, up))
	var out families
	for i, page := range pages {
		label := ""
		if i >= 2 && len(m.Apps) > 1 {
			label = m.Apps[i-2].Name
		}
		out.add(page, label)
		if i == 1 {
			out.keep(m.shows)
		}
	}
	w.Header().Set("Content-Type", textFormat)
	_, _ = out.WriteTo(w) // a client that has gone does not matter
}

// applicationsUp is a metric that says which applications have answered.
func applicationsUp(apps []App, up []bool) string {
	var own strings.Builder
	if len(apps) > 0 {
		own.WriteString("# HELP proxima_sidecar_application_up Whether metrics of an application could be collected.\n" +
			"# TYPE proxima_sidecar_application_up gauge\n")
	}
	for i, app := range apps {
		value := 0
		if up[i] {
			value = 1
		}
		fmt.Fprintf(&own, "proxima_sidecar_application_up{mesh_application=%q} %d\n", app.Name, value)
	}
	return own.String()
}

func scrape(ctx context.Context, url string) (page []byte, ok bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, false
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, false
	}
	defer resp.Body.Close()
	page, err = io.ReadAll(io.LimitReader(resp.Body, maxScrape))
	return page, err == nil && resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain")
}

// families are metrics by name: the text format allows each name only once.
type families struct {
	order  []string
	byName map[string]*family
}

type family struct {
	help, typ string
	samples   bytes.Buffer
}

func (f *families) get(name string) *family {
	if f.byName == nil {
		f.byName = map[string]*family{}
	}
	out := f.byName[name]
	if out == nil {
		out = &family{}
		f.byName[name] = out
		f.order = append(f.order, name)
	}
	return out
}

// add a page; application, if not empty, is a label of its samples. Lines that are no metrics are
// left out.
func (f *families) add(page []byte, application string) {
	current := ""
	lines := bufio.NewScanner(bytes.NewReader(page))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if text, ok := strings.CutPrefix(line, "# "); ok {
			kind, rest, _ := strings.Cut(text, " ")
			name, _, _ := strings.Cut(rest, " ")
			if (kind == "HELP" || kind == "TYPE") && name != "" {
				current = name
				if fam := f.get(name); kind == "HELP" && fam.help == "" {
					fam.help = line
				} else if kind == "TYPE" && fam.typ == "" {
					fam.typ = line
				}
			}
			continue
		}
		end := strings.IndexAny(line, "{ ")
		if end <= 0 || line[0] == '#' {
			continue
		}
		name := line[:end]
		if !belongs(name, current) {
			current = name
		}
		fam := f.get(current)
		fam.samples.WriteString(labelled(line, end, application))
		fam.samples.WriteByte('\n')
	}
}

// keep the families whose names are wanted.
func (f *families) keep(wanted func(name string) bool) {
	f.order = slices.DeleteFunc(f.order, func(name string) bool {
		if wanted(name) {
			return false
		}
		delete(f.byName, name)
		return true
	})
}

// belongs reports whether a sample is of a family: histograms and summaries have suffixes.
func belongs(sample, family string) bool {
	suffix, ok := strings.CutPrefix(sample, family)
	return ok && family != "" && (suffix == "" || suffix == "_bucket" || suffix == "_sum" || suffix == "_count")
}

func labelled(line string, end int, application string) string {
	if application == "" {
		return line
	}
	label := fmt.Sprintf("mesh_application=%q", application)
	if line[end] != '{' {
		return line[:end] + "{" + label + "}" + line[end:]
	}
	if strings.HasPrefix(line[end:], "{}") {
		return line[:end+1] + label + line[end+1:]
	}
	return line[:end+1] + label + "," + line[end+1:]
}

// WriteTo writes all families.
func (f *families) WriteTo(w io.Writer) (int64, error) {
	var out bytes.Buffer
	for _, name := range f.order {
		fam := f.byName[name]
		if fam.samples.Len() == 0 {
			continue
		}
		for _, line := range []string{fam.help, fam.typ} {
			if line != "" {
				out.WriteString(line + "\n")
			}
		}
		out.Write(fam.samples.Bytes())
	}
	return out.WriteTo(w)
}
