// Command gitmodule makes a directory that the go command uses as a module proxy, with one
// module out of a git repository. It is for modules that the proxy in use does not have, and
// changes nothing about what is trusted: go.sum says what the module must contain.
//
//	go run ./tools/gitmodule -repo DIR -module PATH -version VERSION [-subdir DIR] -proxy DIR
//	GOPROXY=file://DIR,https://proxy.golang.org go test …
//
// The tag is that of the go command: VERSION, or SUBDIR/VERSION for a module below the root.
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	var m module
	flag.StringVar(&m.repo, "repo", "", "the git repository, a checkout or a bare one")
	flag.StringVar(&m.path, "module", "", "the path of the module")
	flag.StringVar(&m.version, "version", "", "its version")
	flag.StringVar(&m.subdir, "subdir", "", "where it is in the repository")
	proxy := flag.String("proxy", "", "the directory to write to")
	flag.Parse()
	if m.repo == "" || m.path == "" || m.version == "" || *proxy == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := m.write(*proxy); err != nil {
		fmt.Fprintf(os.Stderr, "gitmodule: %s@%s from %s: %v\n", m.path, m.version, m.repo, err)
		os.Exit(1)
	}
}

type module struct{ repo, path, version, subdir string }

func (m module) tag() string { return path.Join(m.subdir, m.version) }

// write the files of the module proxy protocol (go help goproxy). Paths with capital
// letters would need to be escaped; they are refused.
func (m module) write(proxy string) error {
	if strings.ToLower(m.path) != m.path {
		return errors.New("capital letters in the path of a module are not supported")
	}
	dir := filepath.Join(proxy, filepath.FromSlash(m.path), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	when, err := m.git("log", "-1", "--format=%cI", m.tag())
	if err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(string(when)))
	if err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{m.version, at.UTC()})
	if err != nil {
		return err
	}
	gomod, err := m.git("show", m.tag()+":"+path.Join(m.subdir, "go.mod"))
	if err != nil {
		return err
	}
	archive, err := m.zip()
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"list": []byte(m.version + "\n"), m.version + ".info": info, m.version + ".mod": gomod, m.version + ".zip": archive,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// zip is the module's zip file (go.dev/ref/mod#zip-files): its regular files, without those
// of modules below it, and with the LICENSE of the root if it has none.
func (m module) zip() ([]byte, error) {
	files, err := m.files()
	if err != nil {
		return nil, err
	}
	if _, ok := files["LICENSE"]; !ok && m.subdir != "" {
		if files["LICENSE"], err = m.git("show", m.tag()+":LICENSE"); err != nil {
			return nil, err
		}
	}
	var nested []string
	for name := range files {
		if dir := path.Dir(name); path.Base(name) == "go.mod" && dir != "." {
			nested = append(nested, dir+"/")
		}
	}
	var out bytes.Buffer
	w := zip.NewWriter(&out)
next:
	for name, data := range files {
		for _, dir := range nested {
			if strings.HasPrefix(name, dir) {
				continue next
			}
		}
		f, err := w.Create(m.path + "@" + m.version + "/" + name)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil { // it writes the directory
		return nil, err
	}
	return out.Bytes(), nil
}

// files of the module's folder, by their paths in it.
func (m module) files() (map[string][]byte, error) {
	data, err := m.git("archive", "--format=tar", m.tag()+":"+m.subdir)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

func (m module) git(args ...string) ([]byte, error) {
	cmd := exec.Command("git", append([]string{"-C", m.repo}, args...)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(complaint.String()))
	}
	return out, nil
}
