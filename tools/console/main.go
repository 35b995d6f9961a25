// Command console bundles the web console: it writes the files of internal/console/dist from those of web.
//
//	go run . [-root DIR]
//
// The bundler is a Go program, and the two libraries that pages use are in web/vendor with their licences, so that nothing but Go is
// needed. Equal sources give equal bytes.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/evanw/esbuild/pkg/api"
)

func main() {
	root := flag.String("root", filepath.Join("..", ".."), "directory of the repository")
	flag.Parse()
	if err := bundle(filepath.Join(*root, "web"), filepath.Join(*root, "internal", "console", "dist")); err != nil {
		fmt.Fprintln(os.Stderr, "console:", err)
		os.Exit(1)
	}
}

// tsconfig for the bundler: types are checked apart.
const tsconfig = `{"compilerOptions": {"jsx": "react-jsx", "jsxImportSource": "preact", "strict": true, "target": "es2022"}}`

// sumOf the files in a directory, with their names. A test of internal/console compares it: that test runs again whenever a source
// changes, as those of this module do not.
func sumOf(dir string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", filepath.ToSlash(name), len(data))
		sum.Write(data)
		return nil
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// bundle the sources in web to files in dist.
func bundle(web, dist string) error {
	web, err := filepath.Abs(web)
	if err != nil {
		return err
	}
	if dist, err = filepath.Abs(dist); err != nil {
		return err
	}
	result := api.Build(api.BuildOptions{
		AbsWorkingDir:       web,
		EntryPointsAdvanced: []api.EntryPoint{{InputPath: "src/main.tsx", OutputPath: "console"}},
		NodePaths:           []string{filepath.Join(web, "vendor")},
		TsconfigRaw:         tsconfig,
		Bundle:              true,
		Format:              api.FormatIIFE, // a module would not run from a file of another type
		Target:              api.ES2022,
		MinifySyntax:        true,
		MinifyWhitespace:    true,
		MinifyIdentifiers:   true,
		LegalComments:       api.LegalCommentsNone, // LICENSES.txt has them
		Charset:             api.CharsetUTF8,
		Outdir:              dist,
		Write:               true,
		LogLevel:            api.LogLevelWarning,
	})
	if len(result.Errors) > 0 {
		return errors.New("esbuild failed")
	}
	sum, err := sumOf(web)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dist, "sources.sha256"), []byte(sum+"\n"), 0o644); err != nil {
		return err
	}
	licences := ""
	for _, name := range []string{"preact", "uplot"} {
		text, err := os.ReadFile(filepath.Join(web, "vendor", name, "LICENSE"))
		if err != nil {
			return err
		}
		licences += name + "\n\n" + string(text) + "\n"
	}
	if err := os.WriteFile(filepath.Join(dist, "LICENSES.txt"), []byte(licences), 0o644); err != nil {
		return err
	}
	for _, name := range []string{"index.html", "icon.svg"} {
		data, err := os.ReadFile(filepath.Join(web, "src", name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dist, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
