package traffic

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// MaxFileBytes of a file of traffic.
const MaxFileBytes = 32 << 20

// Parse reads a file of traffic: CSV with a line of names, or a list in JSON or YAML. The
// form follows from the ending of the name; others are taken for CSV. An error names the file,
// the line and the field.
func Parse(name string, data []byte) ([]Entry, error) {
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("%s: %d bytes, at most %d", name, len(data), MaxFileBytes)
	}
	read := parseCSV
	switch strings.ToLower(filepath.Ext(name)) {
	case ".json", ".yaml", ".yml":
		read = parseYAML
	}
	entries, lines, err := read(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(entries) > maxEntries {
		return nil, fmt.Errorf("%s: %d entries, at most %d", name, len(entries), maxEntries)
	}
	if err := checkAll(entries, func(i int) string { return fmt.Sprintf("%s: line %d", name, lines[i]) }); err != nil {
		return nil, err
	}
	return entries, nil
}

// fields by their names, without capitals, spaces, dashes and underscores.
var fields = map[string]func(*Entry, string) error{
	"namespace":           func(e *Entry, text string) error { e.Namespace = text; return nil },
	"service":             func(e *Entry, text string) error { e.Service = text; return nil },
	"fromzone":            func(e *Entry, text string) error { e.From = locality.Zone(text); return nil },
	"tozone":              func(e *Entry, text string) error { e.To = locality.Zone(text); return nil },
	"gb":                  func(e *Entry, text string) error { return number(&e.GB, text) },
	"gbpermonth":          func(e *Entry, text string) error { return number(&e.GB, text) },
	"connections":         func(e *Entry, text string) error { return number(&e.Connections, text) },
	"connectionspermonth": func(e *Entry, text string) error { return number(&e.Connections, text) },
}

const fieldNames = "namespace, service, gbPerMonth, connectionsPerMonth, fromZone and toZone"

// fieldOf a name; nil: there is none.
func fieldOf(name string) func(*Entry, string) error {
	return fields[strings.NewReplacer(" ", "", "_", "", "-", "").Replace(strings.ToLower(name))]
}

// number reads an amount; empty is none.
func number(to **float64, text string) error {
	if text == "" {
		return nil
	}
	if *to != nil {
		return errors.New("is there twice")
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !finite(v) {
		return fmt.Errorf("%q is no number", text)
	}
	*to = &v
	return nil
}

func parseCSV(data []byte) (entries []Entry, lines []int, err error) {
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff")))) // spreadsheets write a mark
	r.TrimLeadingSpace, r.Comment, r.ReuseRecord = true, '#', true
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, nil, errors.New("line 1: there is no line of names: " + fieldNames)
	}
	if err != nil {
		return nil, nil, err
	}
	names := make([]string, len(header))
	for i, name := range header {
		names[i] = strings.TrimSpace(name)
		if fieldOf(names[i]) == nil {
			return nil, nil, fmt.Errorf("line 1: there is no field %q, but %s", names[i], fieldNames)
		}
	}
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return entries, lines, nil
		}
		if err != nil {
			return nil, nil, err // it names the line
		}
		line, _ := r.FieldPos(0)
		var e Entry
		for i, text := range record {
			if err := fieldOf(names[i])(&e, strings.TrimSpace(text)); err != nil {
				return nil, nil, fmt.Errorf("line %d: %s: %w", line, names[i], err)
			}
		}
		entries, lines = append(entries, e), append(lines, line)
	}
}

// parseYAML reads a list of mappings; JSON is YAML.
func parseYAML(data []byte) (entries []Entry, lines []int, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, nil, err // it names the line
	}
	if doc.Kind == 0 {
		return nil, nil, nil // an empty file
	}
	list := doc.Content[0]
	if list.Kind != yaml.SequenceNode {
		return nil, nil, fmt.Errorf("line %d: must be a list", list.Line)
	}
	for _, item := range list.Content {
		if item.Kind != yaml.MappingNode {
			return nil, nil, fmt.Errorf("line %d: must be a mapping of %s", item.Line, fieldNames)
		}
		var e Entry
		for i := 0; i+1 < len(item.Content); i += 2 {
			key, value := item.Content[i], item.Content[i+1]
			set := fieldOf(key.Value)
			switch {
			case set == nil || key.Kind != yaml.ScalarNode:
				return nil, nil, fmt.Errorf("line %d: there is no field %q, but %s", key.Line, key.Value, fieldNames)
			case value.Kind != yaml.ScalarNode: // an alias is none
				return nil, nil, fmt.Errorf("line %d: %s: must be one value", value.Line, key.Value)
			}
			text := value.Value
			if value.Tag == "!!null" {
				text = ""
			}
			if err := set(&e, text); err != nil {
				return nil, nil, fmt.Errorf("line %d: %s: %w", value.Line, key.Value, err)
			}
		}
		entries, lines = append(entries, e), append(lines, item.Line)
	}
	return entries, lines, nil
}
