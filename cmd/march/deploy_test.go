package main

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/testcerts"
)

var metricName = regexp.MustCompile(`\b(march[_:]|go_|process_|grpc_server_|http_request)[a-z0-9_]+`)

// exported returns the metrics that a room and a console show, by the names that queries
// use. It checks the names first, as `promtool check metrics` does.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	d := startDev(t, base, "--redis", "--leaf", "--tinyid", "--cosid")
	for _, args := range [][]string{
		{"tag", "create", "event", "--kind", "time", "--preset", "cosid", "--console", d.address(portConsoleGRPC)},
		{"id", "next", "event", "--room", d.address(portRoomGRPC)},
		{"id", "next", "order", "--room", d.address(portRoomGRPC)},
	} {
		if _, stderr, code := march(t, args...); code != exitOK {
			t.Fatal(stderr)
		}
	}
	for kind := 1; kind < len(doorKinds); kind++ { // a series is there from its first request on
		r, err := http.Get("http://" + d.address(doorPort(kind)))
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
	}
	names := make(map[string]bool)
	// twice, because a request is counted after its answer
	for _, port := range []int{portRoomHTTP, portRoomHTTP, portConsoleHTTP} {
		r, err := http.Get("http://" + d.address(port) + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("/metrics: %v, %v", r.Status, err)
		}
		problems, err := promlint.New(strings.NewReader(string(text))).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		for line := range strings.Lines(string(text)) {
			name, _, _ := strings.Cut(strings.FieldsFunc(line, func(r rune) bool {
				return r == ' ' || r == '\n'
			})[0], "{")
			if name != "#" && metricName.FindString(name) != name {
				t.Errorf("%s has no name of March, or of the libraries of Prometheus and gRPC", name)
			}
			names[name] = true
		}
	}
	maps.Copy(names, ofCertificates(t))
	// A console has it within a minute of the first worker: TestProblemsOfTimeTags waits for that in a bubble.
	names["march_worker_slice_used_ratio"] = true
	return names
}

// ofCertificates returns the metrics that only a server with a certificate has.
func ofCertificates(t *testing.T) map[string]bool {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(problem.NewHost(problem.HostConfig{Settings: []*marchv1.Setting{{Name: "tls-ca",
		Value: testcerts.New(t).Root}}}))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, f := range families {
		names[f.GetName()] = true
	}
	return names
}

// The files for Prometheus and Grafana name only exported metrics. Each alert has its
// paragraph.
func TestDeploy(t *testing.T) {
	t.Parallel()
	names := exported(t)
	check := func(where, query string) {
		t.Helper()
		found := metricName.FindAllString(query, -1)
		if len(found) == 0 {
			t.Errorf("%s: no metric in %q", where, query)
		}
		for _, name := range found {
			if !names[name] {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
	}

	var dashboard struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ RefID, Expr string }
		}
		Templating struct {
			List []struct {
				Name  string
				Type  string
				Query json.RawMessage
			}
		}
	}
	content := readDeploy(t, "grafana/march.json")
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids, shown := make(map[int]bool), 0
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.H == 0 {
			t.Errorf("panel %d %q: its ID or its place", p.ID, p.Title)
		}
		ids[p.ID] = true
		if (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("panel %q: %d queries in a %s", p.Title, len(p.Targets), p.Type)
		}
		for _, target := range p.Targets {
			check(p.Title, target.Expr)
			shown++
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Type == "query" {
			check(v.Name, string(v.Query))
		}
	}
	if shown < 30 {
		t.Errorf("%d queries found in the dashboard", shown)
	}

	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Record, Expr string
				Annotations         map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(readDeploy(t, "prometheus/march.rules.yml"), &rules); err != nil {
		t.Fatal(err)
	}
	runbook, tested := string(readDeploy(t, "RUNBOOK.md")), string(readDeploy(t, "prometheus/march.rules.test.yml"))
	var alerts []string
	for _, rule := range rules.Groups[0].Rules {
		check(rule.Alert+rule.Record, rule.Expr)
		if rule.Record != "" { // for the rules after it
			names[rule.Record] = true
			continue
		}
		alerts = append(alerts, rule.Alert)
		if got, want := rule.Annotations["runbook_url"], "RUNBOOK.md#"+strings.ToLower(rule.Alert); got != want {
			t.Errorf("%s: runbook_url %q, want %q", rule.Alert, got, want)
		}
		_, paragraph, _ := strings.Cut(runbook, "\n## "+rule.Alert+"\n\n")
		if paragraph, _, _ = strings.Cut(paragraph, "\n## "); len(paragraph) < 200 {
			t.Errorf("%s: no paragraph in the runbook", rule.Alert)
		}
		if !strings.Contains(tested, "alertname: "+rule.Alert+"\n        exp_alerts:") {
			t.Errorf("%s: no test in which it fires", rule.Alert)
		}
	}
	for _, want := range []string{"MarchErrorRate", "MarchSlow", "MarchReserveLow", "MarchRoomBehind",
		"MarchTagNearLimit", "MarchEtcdAway", "MarchRegression", "MarchOrphaned"} {
		if !slices.Contains(alerts, want) {
			t.Errorf("there is no alert %s", want)
		}
	}
	for _, name := range metricName.FindAllString(runbook, -1) {
		if !names[name] {
			t.Errorf("runbook: there is no metric %s", name)
		}
	}
}

// The commands of the runbook exist.
func TestRunbookCommands(t *testing.T) {
	t.Parallel()
	commands := regexp.MustCompile("`march ([a-z]+(?: [a-z]+)?)\\b").FindAllStringSubmatch(
		strings.ReplaceAll(string(readDeploy(t, "RUNBOOK.md")), "\n", " "), -1)
	for _, m := range commands {
		cmd, rest, err := newRoot(io.Discard, io.Discard).Find(strings.Fields(m[1]))
		if err != nil || len(rest) > 0 || cmd.HasSubCommands() {
			t.Errorf("there is no command march %s", m[1])
		}
	}
	if len(commands) < 8 {
		t.Errorf("%d commands found", len(commands))
	}
}

func readDeploy(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile("../../deploy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
