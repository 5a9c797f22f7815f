// Program openapi makes the OpenAPI documents in api/gateway, and lints them.
//
//	openapi convert protos.binpb <room.swagger.json >room.openapi.json
//	openapi lint lint.yaml room.openapi.json...
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "convert":
		return convert(os.Stdin, os.Stdout, args[1])
	case len(args) > 2 && args[0] == "lint":
		return lint(args[1], args[2:])
	}
	return errors.New("usage: openapi convert DESCRIPTORS <SWAGGER >DOCUMENT, openapi lint CONFIG DOCUMENT")
}
