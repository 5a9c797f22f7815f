package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/speakeasy-api/openapi/linter"
	"github.com/speakeasy-api/openapi/openapi"
	openapilinter "github.com/speakeasy-api/openapi/openapi/linter"
)

// lint prints everything that the rules of a configuration find in documents. Hints and
// warnings fail as errors do: a rule that is not for March is off in the configuration.
func lint(config string, files []string) error {
	cfg, err := linter.LoadConfigFromFile(config)
	if err != nil {
		return err
	}
	found := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		doc, invalid, err := openapi.Unmarshal(context.Background(), bytes.NewReader(b))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		examples, err := openapi3.NewLoader().LoadFromData(b)
		if err == nil {
			err = examples.Validate(context.Background()) // of their schemas: the linter does not
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		l, err := openapilinter.NewLinter(cfg)
		if err != nil {
			return err
		}
		out, err := l.Lint(context.Background(), linter.NewDocumentInfo(doc, file), invalid, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, problem := range out.Results {
			fmt.Printf("%s:%v\n", file, problem)
		}
		found += len(out.Results)
	}
	if found > 0 {
		return errors.New("the documents break rules")
	}
	return nil
}
