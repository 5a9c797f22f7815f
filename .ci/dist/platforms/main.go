// Command platforms checks that the program compiles for each platform, GOOS/GOARCH, that it is
// given. It checks the types of all packages that the program has in it, functions and
// dependencies included, and generates no code: that takes some seconds, and a build more than a minute.
//
//	platforms FOLDER PACKAGE GOOS/GOARCH...
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "platforms: FOLDER PACKAGE GOOS/GOARCH...")
		os.Exit(2)
	}
	for _, platform := range os.Args[3:] {
		began := time.Now()
		n, err := check(os.Args[1], os.Args[2], platform)
		if err != nil {
			fmt.Fprintf(os.Stderr, "platforms: %s: %v\n", platform, err)
			os.Exit(1)
		}
		fmt.Printf("%s: %d packages, %v\n", platform, n, time.Since(began).Round(time.Millisecond))
	}
}

// check returns how many packages the program of a folder has for a platform. Its error is the
// first fault in one of them.
func check(folder, program, platform string) (n int, err error) {
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
		Dir: folder,
		Env: append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor),
	}, program)
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
