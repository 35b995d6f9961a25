// Command platforms checks that programs compile for platforms, by the types of their packages and of those that these import,
// and vets them. It reads sources alone, so that a platform takes a minute where a build of everything takes ten; "make cross"
// builds.
//
//	platforms linux/arm64 windows/amd64 -- ./cmd/proxima
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/packages"
)

func main() {
	at := slices.Index(os.Args, "--")
	if at < 2 || at == len(os.Args)-1 {
		fmt.Fprintln(os.Stderr, "usage: platforms GOOS/GOARCH... -- PACKAGE...")
		os.Exit(2)
	}
	failed := false
	for _, platform := range os.Args[1:at] {
		begin := time.Now()
		n, problems := check(".", platform, os.Args[at+1:]...)
		for _, p := range problems {
			fmt.Fprintf(os.Stderr, "%s: %s\n", platform, p)
		}
		failed = failed || len(problems) > 0
		fmt.Printf("%-14s %d packages in %s, %d problems\n", platform, n, time.Since(begin).Round(time.Second), len(problems))
	}
	if failed {
		os.Exit(1)
	}
}

// check the types of packages of the module in dir, without cgo, and of all that they import, and vet those of the module. Of other
// modules it reads what packages offer, not the bodies of functions. n is how many packages there are.
func check(dir, platform string, patterns ...string) (n int, problems []string) {
	system, architecture, _ := strings.Cut(platform, "/")
	// Of what is imported, package packages leaves bodies out. So all packages of the module are named.
	config := &packages.Config{
		Dir: dir, Env: append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+architecture),
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedModule,
	}
	roots, err := packages.Load(config, patterns...)
	if err != nil {
		return 0, []string{err.Error()}
	}
	var own []string
	packages.Visit(roots, nil, func(p *packages.Package) {
		if p.Module != nil && p.Module.Main {
			own = append(own, p.PkgPath)
		}
	})
	config.Mode |= packages.NeedTypes | packages.NeedTypesInfo | packages.NeedSyntax | packages.NeedTypesSizes
	roots, err = packages.Load(config, own...)
	if err != nil {
		return 0, []string{err.Error()}
	}
	packages.Visit(roots, nil, func(p *packages.Package) {
		n++
		for _, e := range p.Errors {
			problems = append(problems, e.Error())
		}
	})
	if len(problems) > 0 {
		return n, problems
	}
	graph, err := checker.Analyze(vet.Suite, roots, &checker.Options{Sequential: true})
	if err != nil {
		return n, []string{err.Error()}
	}
	for _, a := range graph.Roots {
		if a.Err != nil {
			problems = append(problems, a.Err.Error())
		}
		for _, d := range a.Diagnostics {
			problems = append(problems, fmt.Sprintf("%s: %s (%s)", a.Package.Fset.Position(d.Pos), d.Message, a.Analyzer.Name))
		}
	}
	return n, problems
}
