package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"regexp"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/deploy/helm"
)

// root of the chart in its file system.
const root = "proxima"

// render executes the templates of the chart, in the order of their names.
func render(values map[string]any, name, namespace, service, appVersion string) ([]string, error) {
	data := map[string]any{
		"Values":  values,
		"Files":   files{},
		"Release": map[string]any{"Name": name, "Namespace": namespace, "Service": service},
		"Chart":   map[string]any{"AppVersion": appVersion},
	}
	all := template.New("").Option("missingkey=zero")
	all.Funcs(functions(all))
	names, err := fs.Glob(helm.Chart, root+"/templates/*")
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		text, err := fs.ReadFile(helm.Chart, n)
		if err != nil {
			return nil, err
		}
		if _, err := all.New(n).Parse(string(text)); err != nil {
			return nil, err
		}
	}
	var out []string
	for _, n := range names {
		if path.Ext(n) != ".yaml" {
			continue // helpers, and notes for people
		}
		var b strings.Builder
		if err := all.ExecuteTemplate(&b, n, data); err != nil {
			return nil, plain(err)
		}
		out = append(out, b.String())
	}
	return out, nil
}

// failure is what a template says of a value.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

// plain takes the places of templates from an error about a value.
func plain(err error) error {
	var f *failure
	if errors.As(err, &f) {
		return wrong(f, "")
	}
	return err
}

// files of the chart, as templates see them.
type files struct{}

// Get returns the text of a file; empty if there is none, as in Helm.
func (files) Get(name string) string {
	text, err := fs.ReadFile(helm.Chart, path.Join(root, name))
	if err != nil {
		return ""
	}
	return string(text)
}

// Glob returns the files whose names match.
func (files) Glob(pattern string) (map[string][]byte, error) {
	names, err := fs.Glob(helm.Chart, path.Join(root, pattern))
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, n := range names {
		text, err := fs.ReadFile(helm.Chart, n)
		if err != nil {
			return nil, err
		}
		out[strings.TrimPrefix(n, root+"/")] = text
	}
	return out, nil
}

// functions that the chart's templates use, as Helm has them.
func functions(all *template.Template) template.FuncMap {
	return template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := all.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
		"fail": func(text string) (string, error) { return "", &failure{text} },
		"toYaml": func(v any) (string, error) {
			text, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(text), "\n"), err
		},
		"fromYaml": func(text string) (map[string]any, error) {
			out := map[string]any{}
			return out, yaml.Unmarshal([]byte(text), &out)
		},
		"fromYamlArray": func(text string) ([]any, error) {
			var out []any
			return out, yaml.Unmarshal([]byte(text), &out)
		},
		"toJson": func(v any) (string, error) {
			text, err := json.Marshal(v)
			return string(text), err
		},
		"nindent": func(spaces int, text string) string {
			pad := strings.Repeat(" ", spaces)
			return "\n" + pad + strings.ReplaceAll(text, "\n", "\n"+pad)
		},
		"replace": func(old, with, text string) string { return strings.ReplaceAll(text, old, with) },
		"quote":   func(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) },
		"default": func(missing, v any) any {
			if empty(v) {
				return missing
			}
			return v
		},
		"int": func(v any) (int, error) {
			switch n := v.(type) {
			case int64:
				return int(n), nil
			case float64:
				return int(n), nil
			}
			return 0, fmt.Errorf("%v is no number", v)
		},
		"has": func(word any, list []any) bool {
			for _, v := range list {
				if reflect.DeepEqual(v, word) {
					return true
				}
			}
			return false
		},
		"splitList": func(by, text string) []any {
			var out []any
			for word := range strings.SplitSeq(text, by) {
				out = append(out, word)
			}
			return out
		},
		"regexReplaceAll": func(pattern, text, by string) (string, error) {
			r, err := regexp.Compile(pattern)
			if err != nil {
				return "", err
			}
			return r.ReplaceAllString(text, by), nil
		},
		"list": func(all ...any) []any { return all },
		"join": func(by string, list []any) string {
			var words []string
			for _, v := range list {
				words = append(words, fmt.Sprint(v))
			}
			return strings.Join(words, by)
		},
	}
}

func empty(v any) bool {
	r := reflect.ValueOf(v)
	switch {
	case !r.IsValid():
		return true
	case r.Kind() == reflect.Map || r.Kind() == reflect.Slice:
		return r.Len() == 0
	}
	return r.IsZero()
}
