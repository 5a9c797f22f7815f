package main

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var (
	docShell  = regexp.MustCompile("(?s)\n *```sh\n(.*?)\n *```\n")
	docInline = regexp.MustCompile("`march ([^`]+)`")
	docFlag   = regexp.MustCompile(`^--([a-z][a-z-]*)`)
)

// shellCommands splits text into its commands at newlines, pipes, && and ;, and each into
// words, as a shell does. Of quotes it knows the two kinds, and no escape within them.
func shellCommands(text string) (commands [][]string) {
	var words []string
	word, inWord, quote := "", false, rune(0)
	endWord := func() {
		if inWord {
			words = append(words, word)
		}
		word, inWord = "", false
	}
	for _, r := range strings.ReplaceAll(text, "\\\n", " ") {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case strings.ContainsRune("|&;\n", r):
			endWord()
			if len(words) > 0 {
				commands = append(commands, words)
			}
			words = nil
		case r == ' ' || r == '\t':
			endWord()
		default:
			word, inWord = word+string(r), true
		}
	}
	endWord()
	if len(words) > 0 {
		commands = append(commands, words)
	}
	return commands
}

// TestShellCommands: the commands of a text are those that a shell would run.
func TestShellCommands(t *testing.T) {
	got := shellCommands("a \"b\n| c\" | march d \\\n --e 'f g'\nmarch h && i;")
	var flat []string
	for _, words := range got {
		flat = append(flat, strings.Join(words, ","))
	}
	if got, want := strings.Join(flat, "/"), "a,b\n| c/march,d,--e,f g/march,h/i"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestDocsShell parses the commands of march in the sh blocks of documents. TestReadme cannot
// run these blocks: they need a MySQL or a Prometheus of the reader's.
func TestDocsShell(t *testing.T) {
	t.Parallel()
	parsed := 0
	for _, file := range documents(t) {
		for _, m := range docShell.FindAllStringSubmatch("\n"+readDocument(t, file), -1) {
			for _, words := range shellCommands(m[1]) {
				if words[0] != "march" && words[0] != "bin/march" {
					continue
				}
				parsed++
				cmd, rest, err := newRoot(io.Discard, io.Discard).Find(words[1:])
				if err == nil {
					err = cmd.ParseFlags(rest)
				}
				if err == nil {
					err = cmd.ValidateArgs(cmd.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s: %s: %v", file, strings.Join(words, " "), err)
				}
			}
		}
	}
	if parsed < 4 {
		t.Errorf("%d commands found", parsed)
	}
}

// TestDocsFlags: the commands in the text of documents have the flags with which the text shows
// them.
func TestDocsFlags(t *testing.T) {
	t.Parallel()
	flags := 0
	for _, file := range append(documents(t), "DESIGN.md") {
		for _, m := range docInline.FindAllStringSubmatch(strings.ReplaceAll(readDocument(t, file), "\n", " "), -1) {
			words := strings.Fields(m[1])
			cmd, _, err := newRoot(io.Discard, io.Discard).Find(words)
			for _, word := range words {
				f := docFlag.FindStringSubmatch(word)
				if f == nil {
					continue
				}
				flags++
				if err != nil || !hasFlag(cmd, f[1]) {
					t.Errorf("%s: `march %s`: there is no flag --%s", file, m[1], f[1])
				}
			}
		}
	}
	if flags < 40 {
		t.Errorf("%d flags found", flags)
	}
}

// hasFlag reports whether a command has a flag, of its own or of its parents.
func hasFlag(cmd *cobra.Command, name string) bool {
	cmd.InitDefaultHelpFlag()
	return cmd.Flags().Lookup(name) != nil || cmd.InheritedFlags().Lookup(name) != nil
}
