package main

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/api"
)

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

// Before, commands that create no tag had --max-tags, too.
func TestMaxTagsIsOfServers(t *testing.T) {
	var with []string
	visitCommands(newRoot(io.Discard, io.Discard), func(cmd *cobra.Command) {
		if limitFlagsOf(cmd)["max-tags"] != nil {
			with = append(with, cmd.Name())
		}
	})
	slices.Sort(with)
	if want := []string{"console", "room"}; !slices.Equal(with, want) {
		t.Errorf("--max-tags is a flag of %v, want %v", with, want)
	}
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
		if diff := cmp.Diff(want, flags); diff != "" {
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
		if diff := cmp.Diff(want, shown); diff != "" {
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
