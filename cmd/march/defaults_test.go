package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/words"
)

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

// TestHelpDefaults compares the default that the help of a command states for a flag of another one with that flag's.
func TestHelpDefaults(t *testing.T) {
	t.Parallel()
	root := newRoot(io.Discard, io.Discard)
	apply, _, err := root.Find([]string{"migrate", "apply"})
	if err != nil {
		t.Fatal(err)
	}
	room, _, err := root.Find([]string{"room"})
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`room's --hold \((\S+) by default\)`).FindStringSubmatch(apply.Long); len(m) == 0 ||
		!sameDefault(room.Flag("hold"), m[1]) {
		t.Errorf("migrate apply: the help states %q for a room's --hold, of which the default is %s",
			m, room.Flag("hold").DefValue)
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
	eachCommand(newRoot(io.Discard, io.Discard), func(cmd *cobra.Command) {
		for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { flags[f.Name] = append(flags[f.Name], f) })
		}
	})
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

// TestConfigDefaults compares the defaults that the comments of a server's settings state with
// those of its flags, and the comments of a time tag's settings with the generator's.
func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	for _, server := range []struct {
		name, file string
		least      int
	}{{"room", "../../room/config.go", 7}, {"console", "../../console/console.go", 1}} {
		cmd, _, err := newRoot(io.Discard, io.Discard).Find([]string{server.name})
		if err != nil {
			t.Fatal(err)
		}
		compared := 0
		for field, stated := range statedDefaults(t, server.file) {
			f := cmd.Flag(kebab(field))
			if f == nil {
				continue // not a flag, or one of another name
			}
			compared++
			if !sameDefault(f, stated) {
				t.Errorf("%s: %s: default %s, but --%s has %s", server.file, field, stated, f.Name, f.DefValue)
			}
		}
		if compared < server.least {
			t.Errorf("%s: %d defaults compared", server.file, compared)
		}
	}
	stated := statedDefaults(t, "../../allocator/timeid/config.go")
	if got := stated["RandomBelow"]; got != strconv.Itoa(timeid.DefaultRandomBelow) {
		t.Errorf("timeid.Config.RandomBelow: default %q, want %d", got, timeid.DefaultRandomBelow)
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

// statedDefaults returns the defaults that comments in a file's struct types state as numbers, by field.
func statedDefaults(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	number := regexp.MustCompile(`\bdefault ` + amount + `[.;:,]`)
	stated := make(map[string]string)
	ast.Inspect(parsed, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && field.Doc != nil && len(field.Names) == 1 {
			text := strings.ToLower(strings.Join(strings.Fields(field.Doc.Text()), " "))
			if m := number.FindStringSubmatch(text); m != nil {
				stated[field.Names[0].Name] = strings.TrimRight(m[1], ".")
			}
		}
		return true
	})
	return stated
}

// kebab returns the flag's name of a field: MaxUnknownTags is max-unknown-tags.
func kebab(field string) string {
	var b strings.Builder
	for i, r := range field {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
