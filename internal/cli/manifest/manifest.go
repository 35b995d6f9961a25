// Package manifest reads the objects that a user wrote down: YAML or JSON, in
// one document or many, in files, directories or on standard input.
//
// It owns the reading alone. Enter at Read. It never talks to a server and
// does not depend on kinds; every mistake is reported with its file and place, all at once.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubejson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/payload"
)

// maxFile bounds a file; the server takes 3 MiB for one object.
const maxFile = 64 << 20

// Document is one object and where it was found.
type Document struct {
	Object *unstructured.Unstructured
	// Source is the file, with the line where its document begins.
	Source string
}

// Read the objects of files, directories and, as "-", of stdin, in the order
// given. A directory is read without those in it, by file name: *.yaml, *.yml
// and *.json. If anything can't be read, all mistakes are in the error and there
// are no documents.
func Read(paths []string, stdin io.Reader) ([]Document, error) {
	var documents []Document
	var errs []error
	for _, path := range paths {
		files, err := expand(path)
		errs = append(errs, err)
		for _, file := range files {
			data, err := readFile(file, stdin)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			found, err := Parse(displayName(file), data)
			errs = append(errs, err)
			documents = append(documents, found...)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("%s: there is no object in it", strings.Join(paths, ", "))
	}
	return documents, nil
}

func displayName(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

// expand a directory to its files.
func expand(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, nil // reading it returns the reason
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("directory %s: there is no .yaml, .yml or .json file in it (directories below it are not read)", path)
	}
	return files, nil
}

func readFile(path string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", displayName(path), err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: is larger than %d MiB", displayName(path), maxFile>>20)
	}
	return data, nil
}

// Parse the documents of one file. Empty ones are skipped, and Lists are taken
// apart. All mistakes are in the error, each with its place.
func Parse(source string, data []byte) ([]Document, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // some editors' mark
	var documents []Document
	var errs []error
	for part := range split(data) {
		found, err := parsePart(source, part)
		errs = append(errs, err)
		documents = append(documents, found...)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return documents, nil
}

// part of a file between two document marks.
type part struct {
	line int // of the file, from 1, where text begins
	text []byte
}

// split at the lines that YAML reserves for it: "---", alone or before a space.
func split(data []byte) func(yield func(part) bool) {
	return func(yield func(part) bool) {
		current, line, start := part{line: 1}, 0, 0
		for offset := 0; offset < len(data); {
			end := len(data)
			if i := bytes.IndexByte(data[offset:], '\n'); i >= 0 {
				end = offset + i + 1
			}
			line++
			if isMark(data[offset:end]) {
				current.text = data[start:offset]
				if !yield(current) {
					return
				}
				// What follows the mark on its line belongs to the document.
				current, start = part{line: line}, offset+len("---")
			}
			offset = end
		}
		current.text = data[start:]
		yield(current)
	}
}

func isMark(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// parsePart reads one YAML document, or JSON values one after the other.
func parsePart(source string, p part) ([]Document, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(p.text), []byte("{")) {
		body, err := toJSON(p.text)
		if err != nil {
			// Read again behind as many empty lines as precede it in the file, so
			// that the error names the right line.
			padded := append(bytes.Repeat([]byte("\n"), p.line-1), p.text...)
			if _, again := toJSON(padded); again != nil {
				err = again
			}
			return nil, fmt.Errorf("%s: %w", source, tidy(err))
		}
		return parseObject(source, p.startLine(0), body)
	}
	// JSON is YAML too, but several values in a row are not.
	var documents []Document
	values := json.NewDecoder(bytes.NewReader(p.text))
	for {
		var body json.RawMessage
		err := values.Decode(&body)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			if documents == nil {
				// YAML in braces: flow style.
				if body, yamlErr := toJSON(p.text); yamlErr == nil {
					return parseObject(source, p.startLine(0), body)
				}
			}
			return nil, fmt.Errorf("%s: line %d: %w", source, p.lineOf(brokenAt(p.text, int(values.InputOffset()))), err)
		}
		found, err := parseObject(source, p.startLine(int(values.InputOffset())-len(body)), body)
		if err != nil {
			return nil, err
		}
		documents = append(documents, found...)
	}
}

// maxValues that aliases make of one document.
const maxValues = 2_000_000

// toJSON replaces aliases, which the server does not accept. What they stand for is
// bounded: a few lines of them can make gigabytes.
func toJSON(text []byte) ([]byte, error) {
	if bytes.IndexByte(text, '*') >= 0 {
		limits := payload.Limits{Depth: 1000, Values: maxValues, Members: maxValues, Aliases: true}
		var large *payload.TooLargeError
		if _, err := payload.YAML(text, limits); errors.As(err, &large) {
			return nil, fmt.Errorf("with its aliases (*name) written out, %w", err)
		}
	}
	return yaml.YAMLToJSONStrict(text)
}

// brokenAt is where the JSON value at or after an offset breaks off.
func brokenAt(text []byte, offset int) int {
	var value any
	var syntax *json.SyntaxError
	if errors.As(json.Unmarshal(text[offset:], &value), &syntax) {
		return offset + int(syntax.Offset)
	}
	return len(text)
}

// startLine of the first word at or after an offset.
func (p part) startLine(offset int) int {
	for rest := p.text[offset:]; ; {
		line, after, more := bytes.Cut(rest, []byte("\n"))
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' {
			return p.lineOf(offset)
		}
		if !more {
			return p.line
		}
		offset += len(rest) - len(after)
		rest = after
	}
}

func (p part) lineOf(offset int) int {
	return p.line + bytes.Count(p.text[:min(offset, len(p.text))], []byte("\n"))
}

// tidy the prefixes that two libraries put in front of what matters.
func tidy(err error) error {
	text := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n  "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return errors.New(text)
}

func parseObject(source string, line int, body []byte) ([]Document, error) {
	var content any
	if err := kubejson.Unmarshal(body, &content); err != nil {
		return nil, fmt.Errorf("%s: line %d: %w", source, line, err)
	}
	if content == nil {
		return nil, nil // comments only
	}
	where := fmt.Sprintf("%s, line %d", source, line)
	fields, ok := content.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s: it is no object: an object begins with apiVersion, kind and metadata", where)
	}
	return objects(where, &unstructured.Unstructured{Object: fields})
}

// objects takes a List apart, and checks what every object must have.
func objects(where string, u *unstructured.Unstructured) ([]Document, error) {
	for _, key := range []string{"apiVersion", "kind"} {
		if text, ok := u.Object[key].(string); !ok || text == "" {
			return nil, fmt.Errorf("%s: %s is needed, and is text", where, key)
		}
	}
	if items, ok := u.Object["items"].([]any); ok && strings.HasSuffix(u.GetKind(), "List") {
		var documents []Document
		for i, item := range items {
			fields, ok := item.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%s: items[%d] is no object", where, i)
			}
			found, err := objects(fmt.Sprintf("%s, items[%d]", where, i), &unstructured.Unstructured{Object: fields})
			if err != nil {
				return nil, err
			}
			documents = append(documents, found...)
		}
		return documents, nil
	}
	if _, err := schema.ParseGroupVersion(u.GetAPIVersion()); err != nil {
		return nil, fmt.Errorf("%s: apiVersion: %w", where, err)
	}
	if err := checkMetadata(u); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", where, u.GetKind(), err)
	}
	return []Document{{Object: u, Source: where}}, nil
}

func checkMetadata(u *unstructured.Unstructured) error {
	meta, ok := u.Object["metadata"].(map[string]any)
	if !ok {
		return errors.New("metadata is needed")
	}
	for _, key := range []string{"name", "namespace"} {
		if value, ok := meta[key]; ok {
			if _, ok := value.(string); !ok {
				return fmt.Errorf("metadata.%s: %v is not text: write it in quotes", key, value)
			}
		}
	}
	switch {
	case u.GetName() != "":
		return nil
	case u.GetGenerateName() != "":
		return errors.New("metadata.name is needed: generateName makes another object each time")
	}
	return errors.New("metadata.name is needed")
}
