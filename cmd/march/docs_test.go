package main

import (
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var (
	docShell  = regexp.MustCompile("(?s)\n *```sh\n(.*?)\n *```\n")
	docInline = regexp.MustCompile("`march ([a-z][^`]*)`")
	docFlag   = regexp.MustCompile(`^--([a-z][a-z-]*)`)
)

// shellCommands returns the commands of march that a shell would run for a text, as words. All
// other programs do nothing in that shell.
func shellCommands(t *testing.T, text string) (commands [][]string) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	const stubs = `PATH= ; command_not_found_handle() { :; }
march() { printf '%s\0' "$@" '' >&3; }
bin/march() { march "$@"; }
`
	heard, ends, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bash, "-c", stubs+text) //nolint:gosec // the repository's own documents
	cmd.Dir, cmd.ExtraFiles = t.TempDir(), []*os.File{ends}
	said, err := cmd.CombinedOutput() // a few words fit into the pipe
	_ = ends.Close()
	if err != nil {
		t.Fatalf("%s: %v: %s", text, err, said)
	}
	all, err := io.ReadAll(heard)
	_ = heard.Close()
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range strings.SplitAfter(string(all), "\x00\x00") {
		if words != "" {
			commands = append(commands, strings.Split(strings.TrimRight(words, "\x00"), "\x00"))
		}
	}
	return commands
}

// TestDocsShell parses the commands of march in the sh blocks of documents. TestReadme cannot
// run these blocks: they need a MySQL or a Prometheus of the reader's.
func TestDocsShell(t *testing.T) {
	t.Parallel()
	parsed := 0
	for _, file := range documents(t) {
		for _, m := range docShell.FindAllStringSubmatch("\n"+readDocument(t, file), -1) {
			for _, words := range shellCommands(t, m[1]) {
				parsed++
				cmd, rest, err := newRoot(io.Discard, io.Discard).Find(words)
				if err == nil {
					err = cmd.ParseFlags(rest)
				}
				if err == nil {
					err = cmd.ValidateArgs(cmd.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s: march %s: %v", file, strings.Join(words, " "), err)
				}
			}
		}
	}
	if parsed < 4 {
		t.Errorf("%d commands found", parsed)
	}
}

// TestDocsCommands: the commands that the text of documents names exist, and have the flags with
// which the text shows them.
func TestDocsCommands(t *testing.T) {
	t.Parallel()
	commands, flags := 0, 0
	for _, file := range append(documents(t), "DESIGN.md") {
		for _, m := range docInline.FindAllStringSubmatch(strings.ReplaceAll(readDocument(t, file), "\n", " "), -1) {
			commands++
			words := strings.Fields(m[1])
			cmd, rest, err := newRoot(io.Discard, io.Discard).Find(words)
			if err != nil || len(rest) > 0 && cmd.HasSubCommands() && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: there is no command march %s", file, m[1])
				continue
			}
			for _, word := range words {
				if f := docFlag.FindStringSubmatch(word); f != nil {
					if flags++; !hasFlag(cmd, f[1]) {
						t.Errorf("%s: `march %s`: there is no flag --%s", file, m[1], f[1])
					}
				}
			}
		}
	}
	if commands < 30 || flags < 40 {
		t.Errorf("%d commands and %d flags found", commands, flags)
	}
}

// hasFlag reports whether a command has a flag, of its own or of its parents.
func hasFlag(cmd *cobra.Command, name string) bool {
	cmd.InitDefaultHelpFlag()
	return cmd.Flags().Lookup(name) != nil || cmd.InheritedFlags().Lookup(name) != nil
}
