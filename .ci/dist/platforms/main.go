// Command platforms checks that packages compile for each platform, GOOS/GOARCH, that it is given.
// It checks the types of all that the packages have in them, functions and dependencies included,
// and generates no code: that takes some seconds, and a build more than a minute.
//
//	platforms [-tests TAGS] FOLDER PACKAGES GOOS/GOARCH...
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/tools/go/packages"
)

func main() {
	tests := flag.String("tests", "", "check the packages' tests, too, with these build `TAGS`")
	flag.Parse()
	if flag.NArg() < 3 {
		fmt.Fprintln(os.Stderr, "platforms: [-tests TAGS] FOLDER PACKAGES GOOS/GOARCH...")
		os.Exit(2)
	}
	for _, platform := range flag.Args()[2:] {
		began := time.Now()
		n, err := check(flag.Arg(0), flag.Arg(1), platform, *tests)
		if err != nil {
			fmt.Fprintf(os.Stderr, "platforms: %s: %v\n", platform, err)
			os.Exit(1)
		}
		fmt.Printf("%s: %d packages, %v\n", platform, n, time.Since(began).Round(time.Millisecond))
	}
}

// check returns how many packages those of a folder have in them for a platform, with their tests
// if these have tags. Its error is the first fault in one of them.
func check(folder, patterns, platform, tests string) (n int, err error) {
	system, processor, ok := strings.Cut(platform, "/")
	if !ok {
		return 0, fmt.Errorf("%q; allowed: GOOS/GOARCH", platform)
	}
	// With NeedDeps the functions of dependencies are checked, too. Their export
	// data cannot stand in for that: to have it, Go would compile them.
	all, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
			packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo |
			packages.NeedTypesSizes | packages.NeedModule,
		Dir:   folder,
		Tests: tests != "", BuildFlags: []string{"-tags=" + tests},
		Env: append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor),
	}, patterns)
	if err != nil {
		return 0, err
	}
	packages.Visit(all, nil, func(p *packages.Package) {
		n++
		for _, fault := range p.Errors {
			if err == nil {
				err = fmt.Errorf("%s: %w", p.PkgPath, fault)
			}
		}
	})
	return n, err
}
