package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/imports"
)

// importFlags are those of `march tag import`.
type importFlags struct {
	Margin  int64 `flag:"margin" help:"how many IDs to leave free above the other system's (default: see above)"`
	Dry     bool  `flag:"dry-run" help:"only say what would be done"`
	SkipBad bool  `flag:"skip-bad" help:"import the other rows although some are bad; the exit code is 1 then"`
}

func newTagImport(c *common, t *target) *cobra.Command {
	var f importFlags
	cmd := command(callRow{
		use: "import SYSTEM SOURCE...", short: "Go on above the counters of Leaf, TinyId, CosId, Redis or MySQL",
		long: `Go on above the counters of another system: leaf, tinyid, cosid, redis or mysql.
A name that has no tag gets one; a tag that may issue IDs below its counter skips
ahead. It only ever raises, so run it again until the other system has stopped.

A source is a file, or - for standard input: TSV as mysql --batch writes it, or CSV
as psql --csv writes it, with a first line that names the columns or with the columns
in this order:

  leaf     biz_tag, max_id, step              table leaf_alloc
  tinyid   biz_type, max_id, step, delta, remainder   table tiny_id_info
  cosid    name, last_max_id                  table cosid
  redis    key, value
  mysql    table_name, auto_increment         of information_schema.tables

docs/import.md has for each system the line that writes it. The rows of several
sources count together: of each name the largest.

IDs begin at the other system's next ID and a margin, which is for what its servers
and clients take after the table was read. Default margin:

` + margins(),
		example: `  mysql --batch -e "SELECT biz_tag, max_id, step FROM leaf_alloc" leaf | march tag import leaf - --dry-run
  march tag import tinyid db1.tsv db2.tsv
  psql --csv -c "SELECT name, last_max_id FROM cosid" shop | march tag import cosid - --margin 50000`,
	}, atLeast("a system", "a source"), func(cmd *cobra.Command, args []string) error {
		return f.run(cmd, c, t, args[0], args[1:])
	})
	return addFlags(cmd, &f)
}

// margins lists how the systems' default margins are computed.
func margins() string {
	var b strings.Builder
	for _, s := range imports.Systems {
		for i, line := range fold(strings.Fields(s.Margin), "", 70) {
			name := s.Name
			if i > 0 {
				name = ""
			}
			put(&b, "  %-8s %s\n", name, line)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (f *importFlags) run(cmd *cobra.Command, c *common, t *target, name string, sources []string) error {
	system, err := imports.ParseSystem(name)
	if err != nil {
		return usageError{err}
	}
	margin := int64(-1)
	if cmd.Flags().Changed("margin") {
		if margin = f.Margin; margin < 0 {
			return usagef("margin: %d; allowed: 0 or more", margin)
		}
	}
	digest := sha256.New()
	rows, bad, err := readSources(system, sources, digest)
	if err != nil {
		return err
	}
	counters, more := imports.Merge(system, rows, margin)
	if bad = append(bad, more...); len(bad) > 0 {
		printProblems(c.stderr, bad[:min(len(bad), mostBad)], int64(max(len(bad)-mostBad, 0)))
		if !f.SkipBad {
			return usagef("%d bad rows, so nothing was done; mend them, or leave them out with --skip-bad", len(bad))
		}
	}
	if len(counters) == 0 {
		return allocator.Errorf(allocator.NotFound, "there is no row of %s in %s", system.Name,
			strings.Join(sources, ", "))
	}
	r := imported{System: system.Name, SHA256: hex.EncodeToString(digest.Sum(nil)), DryRun: f.Dry,
		Bad: append([]*imports.Bad{}, bad...)}
	l, err := t.dial()
	if err != nil {
		return err
	}
	defer l.close()
	l.purpose = " importing " + system.Name + " sha256:" + r.SHA256[:32] // as much as the audit has room for
	p := newProgress(c, soon, soon)
	finished := 0
	results, err := imports.Apply(cmd.Context(), func(ctx context.Context,
		use func(context.Context, marchv1.ConsoleServiceClient) error) error {
		return callConsole(ctx, l, use)
	}, counters, f.Dry, func(imports.Result) {
		finished++
		p.tick(func() string { return fmt.Sprintf("%d of %d names", finished, len(counters)) })
	})
	p.end()
	if err != nil && len(results) == 0 {
		return err
	}
	r.add(results)
	if printErr := c.print(&r, r.text); printErr != nil {
		return printErr
	}
	switch {
	case err != nil:
		return fmt.Errorf("after %d of %d names: %w; run it again, it goes on", len(results), len(counters), err)
	case r.Refused > 0 || len(bad) > 0:
		return finding{refusedf("%d names were refused, and %d bad rows left out", r.Refused, len(bad))}
	}
	return nil
}

// readSources reads all sources. digest gets what was read.
func readSources(s *imports.System, sources []string,
	digest hash.Hash) (rows []imports.Row, bad []*imports.Bad, err error) {
	for i, source := range sources {
		scheme, _, isURL := strings.Cut(source, "://")
		switch {
		case isURL: // which may hold a password
			return nil, nil, invalidf(`source: "%s://..."; allowed: a file, or - for what `+
				"the server's client writes: docs/import.md has the line with `psql --csv`, `redis-cli` or "+
				"`mysql --batch`", scheme)
		case source == "-" && slices.Index(sources, "-") != i:
			return nil, nil, invalidf("source: - is named twice; allowed: once")
		}
		more, wrong, err := readSource(s, source, digest)
		if err != nil {
			return nil, nil, err
		}
		rows, bad = append(rows, more...), append(bad, wrong...)
	}
	return rows, bad, nil
}

func readSource(s *imports.System, path string, digest hash.Hash) ([]imports.Row, []*imports.Bad, error) {
	if path == "-" {
		return imports.ReadTable(io.TeeReader(os.Stdin, digest), "standard input", s)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, usagef("source: %w", err)
	}
	defer func() { _ = file.Close() }()
	return imports.ReadTable(io.TeeReader(file, digest), path, s)
}

// mostBad is how many bad rows are named.
const mostBad = 100

// imported is what an import did, as -o json has it. Numbers of 64 bits are texts there, as
// in the API.
type imported struct {
	System    string           `json:"system"`
	SHA256    string           `json:"sha256"` // of what was read
	DryRun    bool             `json:"dryRun"`
	Created   int              `json:"created"`
	Raised    int              `json:"raised"`
	Unchanged int              `json:"unchanged"`
	Refused   int              `json:"refused"`
	Renamed   int              `json:"renamed"`
	Tags      []imports.Result `json:"tags"`
	Bad       []*imports.Bad   `json:"bad"`
}

func (r *imported) add(results []imports.Result) {
	r.Tags = results
	for _, one := range results {
		if one.Name != string(one.Tag) {
			r.Renamed++
		}
		*map[imports.State]*int{imports.Created: &r.Created, imports.Raised: &r.Raised, imports.Unchanged: &r.Unchanged,
			imports.Failed: &r.Refused}[one.State]++
	}
}

func (r *imported) text(w *tabwriter.Writer) {
	table(w, "NAME THERE\tTAG\tNEXT THERE\tMARGIN\tFIRST HERE\tTAG IS", r.Tags, func(t imports.Result) []any {
		return []any{t.Name, t.Tag, t.Next, t.Margin, t.From, t.State}
	})
	_ = w.Flush()
	for _, t := range r.Tags {
		for _, note := range append(slices.Clone(t.Notes), t.Why) {
			if note != "" {
				put(w, "%s: %s\n", t.Tag, note)
			}
		}
	}
	begin := ""
	if r.DryRun {
		begin = "dry run, nothing was done: "
	}
	put(w, "%s%d created, %d raised, %d unchanged, %d refused; %d have another name as a tag\nsha256 %s\n",
		begin, r.Created, r.Raised, r.Unchanged, r.Refused, r.Renamed, r.SHA256)
}
