package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/words"
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

// codeNames are the ways in which docs/code.md says that a file declares names: "`A` and `B` in
// x.go", "`A` (x.go)", and "[x.go](../path/x.go): `A`".
var codeNames = []*regexp.Regexp{
	regexp.MustCompile("(?P<names>(?:`[A-Za-z.]+`(?:, | and )?)+),? (?:in |\\()\\[?`?(?P<file>[\\w/.]+\\.go)"),
	regexp.MustCompile("\\(\\.\\./(?P<file>[\\w/.]+\\.go)\\): (?P<names>`[A-Za-z.]+`)"),
}

// TestCodeNames: a name that docs/code.md says to be in a file is declared there.
func TestCodeNames(t *testing.T) {
	t.Parallel()
	page := regexp.MustCompile(`\n +`).ReplaceAllString(readDocument(t, "docs/code.md"), " ")
	var files []string
	if err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, pattern := range codeNames {
		for _, m := range pattern.FindAllStringSubmatch(page, -1) {
			file := m[pattern.SubexpIndex("file")]
			for _, name := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(
				m[pattern.SubexpIndex("names")], -1) {
				found++
				if !declares(t, files, file, name[1]) {
					t.Errorf("docs/code.md: %s does not declare %s", file, name[1])
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("%d names found", found)
	}
}

// declares reports whether a file, which a path or only its end names, declares a function, a
// type or a variable.
func declares(t *testing.T, files []string, file, name string) bool {
	t.Helper()
	method := name[strings.LastIndex(name, ".")+1:]
	declaration := regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type |var |const |\t)` + method + `\b`)
	for _, path := range files {
		if strings.HasSuffix(path, "/"+file) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if declaration.Match(content) {
				return true
			}
		}
	}
	return false
}

// limitFlagsOf returns the flags of a command that set limits.
func limitFlagsOf(cmd *cobra.Command) map[string]*pflag.Flag {
	flags := make(map[string]*pflag.Flag)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if strings.HasPrefix(f.Name, "max-") && !f.Hidden {
			flags[f.Name] = f
		}
	})
	cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if strings.HasPrefix(f.Name, "max-") && !f.Hidden {
			flags[f.Name] = f
		}
	})
	return flags
}

// Before, 0 stood for the default.
func TestMaxTagsIsAboveZero(t *testing.T) {
	for _, args := range [][]string{{"room", "a"}, {"console"}} {
		_, stderr, code := march(t, append(args, "--max-tags", "0")...)
		if want := "march " + args[0] + ": max-tags: 0; allowed: 1 or more\n"; code != exitUsage ||
			!strings.HasSuffix(stderr, want) {
			t.Errorf("%v: exit code %d, %q, want %q", args, code, stderr, want)
		}
	}
}

// documented returns the defaults of the limits that docs/limits.md lists for a server, by
// flag.
func documented(t *testing.T, doc, server string) map[string]string {
	t.Helper()
	limits := make(map[string]string)
	for line := range strings.Lines(doc) {
		cells := strings.Split(line, "|")
		if len(cells) != 8 {
			continue
		}
		flag, isFlag := strings.CutPrefix(strings.Trim(cells[2], " `"), "--")
		if !isFlag || !slices.Contains(strings.Split(strings.TrimSpace(cells[3]), ", "), server) {
			continue
		}
		if strings.TrimSpace(cells[1]) == "" || strings.TrimSpace(cells[6]) == "" {
			t.Errorf("%s: its row lacks the bounded thing or the answer to a caller", flag)
		}
		if limits[flag] != "" {
			t.Errorf("%s: two rows", flag)
		}
		limits[flag] = strings.ReplaceAll(strings.TrimSpace(cells[4]), ",", "")
	}
	return limits
}

var limitShown = regexp.MustCompile(`(?m)^march_limit\{(?:.*,)?limit="([a-z-]+)".*\} (\S+)$`)

// TestLimitsDoc compares docs/limits.md with the flags of room and console, and with the
// limits that a running room and console show.
func TestLimitsDoc(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	d := startDev(t, base)
	var exported strings.Builder
	for server, port := range map[string]int{"room": portRoomHTTP, "console": portConsoleHTTP} {
		want := documented(t, string(content), server)
		cmd, _, err := newRoot(io.Discard, io.Discard).Find([]string{server})
		if err != nil {
			t.Fatal(err)
		}
		flags := make(map[string]string)
		for name, f := range limitFlagsOf(cmd) {
			flags[name] = f.DefValue
		}
		if diff := gocmp.Diff(want, flags); diff != "" {
			t.Errorf("march %s: (-docs/limits.md +flags)\n%s", server, diff)
		}
		answer, err := http.Get("http://" + d.address(port) + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		exported.Write(text)
		shown := make(map[string]string)
		for _, m := range limitShown.FindAllStringSubmatch(string(text), -1) {
			n, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				t.Fatal(err)
			}
			shown["max-"+m[1]] = strconv.FormatFloat(n, 'f', -1, 64)
		}
		if diff := gocmp.Diff(want, shown); diff != "" {
			t.Errorf("march %s: (-docs/limits.md +march_limit)\n%s", server, diff)
		}
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(metricName.FindAllString(string(content), -1)))) {
		if !strings.Contains(exported.String(), "# TYPE "+name+" ") {
			t.Errorf("docs/limits.md: there is no metric %s", name)
		}
	}
}

// TestFixedLimitsDoc compares the fixed limits in docs/limits.md with the program's.
func TestFixedLimitsDoc(t *testing.T) {
	t.Parallel()
	doc := readDocument(t, "docs/limits.md")
	number := func(n int64) string {
		text := strconv.FormatInt(n, 10)
		for k := len(text) - 3; k > 0; k -= 3 {
			text = text[:k] + "," + text[k:]
		}
		return text
	}
	for _, row := range []string{
		"| `NextBatch` | " + number(api.MaxBatch) + " IDs; " + number(api.MaxTexts) + " with texts |\n",
		"| `NextMany` | " + number(api.MaxManyTags) + " tags; " + number(api.MaxMany) +
			" IDs of all of them together |\n",
		"| `Lease` | " + number(api.MaxLease) + " IDs |\n",
	} {
		if !strings.Contains(doc, row) {
			t.Errorf("docs/limits.md does not have %s", row)
		}
	}
}

// TestTagSettingsDoc holds the tables of the manual to the table of settings; with -rewrite it writes them.
func TestTagSettingsDoc(t *testing.T) {
	t.Parallel()
	const document = "docs/operate/tags.md"
	text := readDocument(t, document)
	for _, timed := range []bool{false, true} {
		var rows strings.Builder
		for _, s := range setting.Settings(setting.Any, true) {
			if (s.Kind == setting.Timed) == timed {
				help := strings.ReplaceAll(s.Help, "|", `\|`)
				if s.Fixed {
					help += "; it cannot be changed"
				}
				value := cmp.Or(s.Default(), "none")
				if n, err := strconv.ParseInt(value, 10, 64); err == nil {
					value = words.Grouped(n)
				}
				fmt.Fprintf(&rows, "| `--%s` | %s | %s |\n", settingName(s), value, help)
			}
		}
		if strings.Contains(text, "\n"+rows.String()+"\n") {
			continue
		}
		t.Errorf("%s lacks these rows:\n%s", document, rows.String())
		first, _, _ := strings.Cut(rows.String(), "` |")
		begin := strings.Index(text, "\n"+first+"`") + 1
		if rewriting() && begin > 0 {
			length := strings.Index(text[begin:], "\n\n") + 1
			text = text[:begin] + rows.String() + text[begin+length:]
			if err := os.WriteFile(filepath.Join("..", "..", document), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestServerSettingsDoc holds the manual's tables of settings to those of rooms, consoles and march dev; with
// -rewrite it writes them.
func TestServerSettingsDoc(t *testing.T) {
	t.Parallel()
	const document, begin, end = "docs/operate/settings.md", "## Settings of servers\n", "## Exit codes\n"
	root := newRoot(io.Discard, io.Discard)
	hostFlags(root)
	tables := make(map[string]string) // by the settings' commands
	for _, name := range settingNames(root) {
		var of []string
		row := ""
		for _, server := range []string{"room", "console", "dev"} {
			cmd, _, _ := root.Find([]string{server})
			f := cmd.PersistentFlags().Lookup(name)
			if f == nil || f.Hidden {
				continue
			}
			next := fmt.Sprintf("| %#q | %s | %s |\n", name, cmp.Or(strings.Trim(f.DefValue, "[]"), "none"),
				strings.ReplaceAll(f.Usage, "|", `\|`))
			if row != "" && row != next { // the same name, and another setting
				tables[strings.Join(of, " ")] += row
				of = nil
			}
			of, row = append(of, server), next
		}
		if of != nil {
			tables[strings.Join(of, " ")] += row
		}
	}
	var want strings.Builder
	want.WriteString("\nThe value of a setting counts as a flag (`--max-tags`), in the environment (`MARCH_MAX_TAGS`) and in " +
		"a file\n(`max-tags`), and in the chart under `settings`.\n")
	for _, of := range sortedKeys(tables) {
		fmt.Fprintf(&want, "\nOf `march %s`:\n\n| setting | default | what |\n|---|---|---|\n%s",
			strings.ReplaceAll(of, " ", "` and `march "), tables[of])
	}
	want.WriteString("\n")
	text := readDocument(t, document)
	before, rest, found := strings.Cut(text, begin)
	got, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no section %q before %q", document, begin, end)
	}
	if got == want.String() {
		return
	}
	t.Errorf("%s has other settings of servers; with -rewrite the test writes them", document)
	if rewriting() {
		if err := os.WriteFile(filepath.Join("..", "..", document), []byte(before+begin+want.String()+end+after),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChartSettings: what the chart's values take under settings are the settings of the program, and those that they
// refuse, as the chart sets them itself, are settings of the server.
func TestChartSettings(t *testing.T) {
	t.Parallel()
	root := newRoot(io.Discard, io.Discard)
	var schema any
	if err := json.Unmarshal([]byte(readDocument(t, "deploy/helm/march/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	known, found := append(settingNames(root), "config"), 0
	var walk func(of any)
	walk = func(of any) {
		m, _ := of.(map[string]any)
		for name, value := range m {
			if settings, _ := value.(map[string]any); name == "settings" && settings["patternProperties"] != nil {
				found++
				refused, _ := settings["properties"].(map[string]any)
				patterns, _ := settings["patternProperties"].(map[string]any)
				for name, allowed := range refused {
					if allowed != false || !slices.Contains(known, name) {
						t.Errorf("the chart has %s: %v, which is no setting", name, allowed)
					}
				}
				for _, name := range known {
					if !regexp.MustCompile(sortedKeys(patterns)[0]).MatchString(name) {
						t.Errorf("the chart does not take the setting %s", name)
					}
				}
			}
			walk(value)
		}
	}
	walk(schema)
	if found != 4 {
		t.Errorf("the chart's values have %d maps of settings", found)
	}
}

// TestTagDefaults compares the defaults that the proto states for a tag's settings with those of
// `march tag create`, which are the ledger's.
func TestTagDefaults(t *testing.T) {
	t.Parallel()
	same := sameAsCreate(t)
	proto, err := os.ReadFile("../../api/march/v1/tag.proto")
	if err != nil {
		t.Fatal(err)
	}
	message, _, _ := strings.Cut(string(proto), "\nmessage TimeTag") // the settings of counters come first
	fields := 0
	for _, field := range regexp.MustCompile(
		`(?s)((?: *//[^\n]*\n)+) *optional [A-Za-z0-9.]+ ([a-z_]+) =`).FindAllStringSubmatch(message, -1) {
		comment := strings.Join(strings.Fields(strings.ReplaceAll(field[1], "//", "")), " ")
		if m := regexp.MustCompile(`[Dd]efault ((?:[^.;]|\.\d)+)`).FindStringSubmatch(comment); m != nil {
			fields++
			same("tag.proto", strings.ReplaceAll(field[2], "_", "-"), m[1])
		}
	}
	if fields < 6 {
		t.Errorf("%d fields found", fields)
	}
}

// sameAsCreate returns a function that checks the default which some place states for a setting
// of a new tag against the flag of `march tag create`.
func sameAsCreate(t *testing.T) func(where, flag, stated string) {
	t.Helper()
	cmd, _, err := newRoot(io.Discard, io.Discard).Find([]string{"tag", "create"})
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.NewReplacer(",", "", "2^63-1", "9223372036854775807", "2^63−1", "9223372036854775807", "10^15",
		"1000000000000000", "10 minutes", "10m0s", " no bound", "", "no bound", "none", "off", "false")
	return func(where, flag, stated string) {
		t.Helper()
		f := cmd.Flag(flag)
		switch got := plain.Replace(stated); {
		case f == nil:
			t.Errorf("%s: there is no flag --%s", where, flag)
		case got == "none" && (f.DefValue == "" || f.DefValue == "0"):
		case got != f.DefValue && got+"0s" != f.DefValue:
			t.Errorf("%s: the default of %s is %q, but of the flag %q", where, flag, stated, f.DefValue)
		}
	}
}

// sameDefault reports whether a text such as "10 minutes", "5 s" or "1,000" is the default of
// a flag.
func sameDefault(f *pflag.Flag, stated string) bool {
	if f.Value.Type() != "duration" {
		return strings.ReplaceAll(stated, ",", "") == f.DefValue
	}
	units := strings.NewReplacer(" minutes", "m", " minute", "m", " hours", "h", " hour", "h", " seconds", "s",
		" second", "s", " ms", "ms", " s", "s")
	got, err := time.ParseDuration(units.Replace(stated))
	if err != nil {
		got, err = time.ParseDuration(stated + "s")
	}
	want, wantErr := time.ParseDuration(f.DefValue)
	return err == nil && wantErr == nil && got == want
}

const amount = `([0-9][0-9,.]*(?: ?(?:ms|s|seconds?|m|minutes?|h|hours?))?)`

// TestProseDefaults compares the defaults that documents state in a sentence, as in
// `--hold` (10 minutes), with those of the flags.
func TestProseDefaults(t *testing.T) {
	t.Parallel()
	flags := make(map[string][]*pflag.Flag)
	for _, cmd := range tree(newRoot(io.Discard, io.Discard)) {
		for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { flags[f.Name] = append(flags[f.Name], f) })
		}
	}
	found := 0
	for _, path := range append(documents(t), "DESIGN.md") {
		text := readDocument(t, path)
		for _, m := range regexp.MustCompile("`[a-z ]*--([a-z-]+)(?: [A-Z]+)?`\\s+\\("+amount+
			"[,:)]").FindAllStringSubmatch(text, -1) {
			found++
			right := false
			for _, f := range flags[m[1]] {
				right = right || sameDefault(f, m[2])
			}
			if !right {
				t.Errorf("%s: %s: no command's flag has that default", path, strings.Join(strings.Fields(m[0]), " "))
			}
		}
	}
	if found < 5 {
		t.Errorf("%d defaults found", found)
	}
}

// TestTimeTagDefaults compares the defaults that comments state of a time tag's settings with the generator's.
func TestTimeTagDefaults(t *testing.T) {
	t.Parallel()
	want := "Default\n\t// " + strconv.Itoa(timeid.DefaultRandomBelow) + ", Leaf's"
	if !strings.Contains(readDocument(t, "allocator/timeid/config.go"), want) {
		t.Errorf("timeid.Config.RandomBelow: no %q", want)
	}
	proto := readDocument(t, "api/march/v1/tag.proto")
	_, message, _ := strings.Cut(proto, "\nmessage TimeTag")
	for field, want := range map[string]string{
		"random_below": "Default " + strconv.Itoa(timeid.DefaultRandomBelow) + ".",
		"max_wait":     "Default " + strings.Replace(timeid.DefaultMaxWait.String(), "ms", " ms", 1) + ".",
	} {
		comment, _, ok := strings.Cut(message, " "+field+" = ")
		if start := strings.LastIndex(comment, ";"); !ok || !strings.Contains(comment[start+1:], want) {
			t.Errorf("tag.proto: the comment of %s does not say %q", field, want)
		}
	}
}
