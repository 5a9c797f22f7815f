package main

import (
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// documents returns the paths of the README, of every page below docs/ and of the other pages for
// users, relative to the repository's root. So a new page in docs/ is covered as soon as it exists.
func documents(t *testing.T) []string {
	t.Helper()
	files := []string{"README.md", "CHANGELOG.md", "SECURITY.md", "deploy/RUNBOOK.md", "testdata/formats/README.md"}
	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			files = append(files, strings.TrimPrefix(filepath.ToSlash(path), "../../"))
		}
		return err
	})
	if err != nil || len(files) < 25 {
		t.Fatalf("only %v found: %v", files, err)
	}
	return files
}

// readDocument returns the text of a file of the repository.
func readDocument(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

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
// run these blocks: they need a MySQL or a Grafana of the reader's.
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
	if parsed == 0 {
		t.Error("no command found")
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

var (
	docLink    = regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	docHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	docFence   = regexp.MustCompile("(?s)\n *```.*?\n *```\n")
)

// anchors returns the anchors of a document's headings, as GitHub makes them, and its named
// anchors.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	for _, m := range docHeading.FindAllStringSubmatch(docFence.ReplaceAllString(text, "\n"), -1) {
		slug := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found["#"+strings.ReplaceAll(slug, " ", "-")] = true
	}
	for _, m := range regexp.MustCompile(`<a id="([^"]+)">`).FindAllStringSubmatch(text, -1) {
		found["#"+m[1]] = true
	}
	return found
}

// TestReadmeLinks: the files and sections that documents link to exist.
func TestReadmeLinks(t *testing.T) {
	t.Parallel()
	links := 0
	for _, file := range append(documents(t), "DESIGN.md", "allocator/ledger/model/README.md") {
		for _, m := range docLink.FindAllStringSubmatch(docFence.ReplaceAllString(readDocument(t, file), "\n"), -1) {
			target, anchor := m[1], m[2]
			if strings.Contains(target, ":") {
				continue // another site
			}
			links++
			to := file
			if target != "" {
				to = path.Join(path.Dir(file), target)
			}
			if _, err := os.Stat("../../" + to); err != nil {
				t.Errorf("%s: %v", file, err)
			} else if anchor != "" && !anchors(readDocument(t, to))[anchor] {
				t.Errorf("%s: %s has no section %s", file, to, anchor)
			}
		}
	}
	if links < 40 {
		t.Errorf("%d links found", links)
	}
}

// TestDocsMetrics: the metrics that documents name exist. A name before a star stands for all
// names that begin with it.
func TestDocsMetrics(t *testing.T) {
	t.Parallel()
	there := exported(t)
	named := 0
	for _, file := range documents(t) {
		for _, m := range regexp.MustCompile("`(march_[a-z0-9_]+)(\\*?)`").FindAllStringSubmatch(
			readDocument(t, file), -1) {
			named++
			name, found := m[1], there[m[1]] || there[m[1]+"_count"] // of a histogram
			for other := range there {
				found = found || m[2] != "" && strings.HasPrefix(other, name)
			}
			if !found {
				t.Errorf("%s: there is no metric %s%s", file, name, m[2])
			}
		}
	}
	if named < 25 {
		t.Errorf("%d metrics found", named)
	}
}

// TestVersion: the change log begins with the number of this version, the Helm chart has it, and SECURITY.md
// supports it.
func TestVersion(t *testing.T) {
	t.Parallel()
	number := strings.TrimPrefix(release, "v")
	minor := number[:strings.LastIndex(number, ".")]
	for file, pattern := range map[string]string{
		"CHANGELOG.md":                 `(?s)\A# Changes\n[^#]*\n## ` + regexp.QuoteMeta(number) + `\n`,
		"deploy/helm/march/Chart.yaml": `(?m)^appVersion: ` + regexp.QuoteMeta(number) + `$`,
		"SECURITY.md":                  `the newest, ` + regexp.QuoteMeta(minor) + ` `,
	} {
		if text := readDocument(t, file); !regexp.MustCompile(pattern).MatchString(text) {
			t.Errorf("%s does not match %s", file, pattern)
		}
	}
	if text := build(); !strings.HasPrefix(text, release) {
		t.Errorf("this program's version is %s, without %s", text, release)
	}
}

// TestServersWithoutDev: the program of an image has no etcd server in it.
func TestServersWithoutDev(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t, "-tags", "nodev", "-deps", "-json=ImportPath", ".") {
		if strings.HasPrefix(p.ImportPath, "go.etcd.io/etcd/server/") {
			t.Errorf("it imports %s", p.ImportPath)
		}
	}
}
