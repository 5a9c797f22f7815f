package chart

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	"sigs.k8s.io/yaml"
)

const (
	folder    = "../../deploy/helm/march"
	namespace = "ids"
	release   = "prod"
)

var update = flag.Bool("update", false, "write the golden files")

// temporary is a folder of this run.
var temporary string

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm logs each link that it follows
	var err error
	if temporary, err = os.MkdirTemp("", "march-chart-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(temporary)
	os.Exit(code)
}

// cases returns the values of each file in testdata, by its name.
func cases(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files of values, %v", len(files), err)
	}
	all := make(map[string]map[string]any)
	for _, file := range files {
		values, err := chartutil.ReadValuesFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".values.yaml")] = values
	}
	return all
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render returns the chart's files for the values, as helm template does.
func render(c *chart.Chart, values map[string]any) (map[string]string, error) {
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

// documents returns the YAML documents of rendered files, without empty ones, in the order of
// the files' names.
func documents(files map[string]string) []string {
	names := slices.Sorted(maps.Keys(files))
	var docs []string
	for _, name := range names {
		if filepath.Base(name) == "NOTES.txt" {
			continue
		}
		for doc := range strings.SplitSeq(files[name], "\n---\n") {
			doc = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(doc), "---"))
			var object map[string]any
			if yaml.Unmarshal([]byte(doc), &object) == nil && len(object) == 0 {
				continue
			}
			docs = append(docs, doc)
		}
	}
	return docs
}

// rendered renders a case.
func rendered(t *testing.T, values map[string]any) []string {
	t.Helper()
	files, err := render(load(t), values)
	if err != nil {
		t.Fatal(err)
	}
	return documents(files)
}

// TestLint is helm lint --strict.
func TestLint(t *testing.T) {
	for name, values := range cases(t) {
		l := lint.AllWithKubeVersion(folder, values, namespace, nil)
		for _, m := range l.Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// TestGolden compares what the chart makes with the golden files.
func TestGolden(t *testing.T) {
	for name, values := range cases(t) {
		var got bytes.Buffer
		for _, doc := range rendered(t, values) {
			// TestObjects compares the alerts and the dashboard with their own files.
			if strings.Contains(doc, "kind: PrometheusRule") || strings.Contains(doc, "grafana_dashboard:") {
				continue
			}
			fmt.Fprintf(&got, "---\n%s\n", doc)
		}
		file := filepath.Join("testdata", name+".golden.yaml")
		if *update {
			if err := os.WriteFile(file, got.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			line := firstDifference(got.String(), string(want))
			t.Errorf("%s: line %d differs; see what changed by: cd .ci/chart && go test . -update && git diff",
				file, line)
		}
	}
}

func firstDifference(got, want string) int {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i + 1
		}
	}
	return min(len(a), len(b)) + 1
}

// TestRefusals checks that wrong values are refused, by the schema or the templates.
func TestRefusals(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		{`{}`, "endpoints"},
		{`{etcd: {endpoints: []}}`, "endpoints"},
		{`{etcd: {endpoints: ["a b"]}}`, "endpoints"},
		{`{etcd: {endpoints: [e:1], user: ann}}`, "passwordSecret"},
		{`{etcd: {endpoints: [e:1], certManager: {enabled: true}}}`, "issuerRef"},
		{`{etcd: {endpoints: [e:1]}, rooms: [{name: a}]}`, "tls: no secret and no certManager"},
		{`{etcd: {endpoints: [e:1]}, tls: {certManager: {enabled: true}}}`, "issuerRef"},
		{`{etcd: {endpoints: [e:1]}, tls: {secret: a, clientAuth: never}}`, "clientAuth"},
		{`{etcd: {endpoints: [e:1]}, tls: {secret: a, clientAuth: required}, monitoring: {serviceMonitor: true, auth: {tokenSecret: {name: b}}}}`, "monitoring.auth.certSecret"},
		{`{etcd: {endpoints: [e:1]}, monitoring: {auth: {tokenSecret: b}}}`, "/monitoring/auth/tokenSecret"},
		{`{etcd: {endpoints: [e:1]}, access: {policy: {configMap: a}}}`, "/access/policy"},
		{`{etcd: {endpoints: [e:1]}, access: {identities: [a]}}`, "/access/identities"},
		{`{etcd: {endpoints: [e:1]}, access: {oidc: {issuer: login}}}`, "/access/oidc/issuer"},
		{`{etcd: {endpoints: [e:1]}, settings: {insecure: true}, networkPolicy: {egress: {enabled: true}}}`,
			"networkPolicy.egress.etcd"},
		{`{etcd: {endpoints: [e:1]}, settings: {insecure: true}, access: {oidc: {issuer: "https://i"}},
			networkPolicy: {egress: {enabled: true, etcd: [{}]}}}`, "networkPolicy.egress.issuer"},
		{`{etcd: {endpoints: [e:1]}, networkPolicy: {enabled: false, egress: {enabled: true}}}`, "networkPolicy.enabled"},
		{`{etcd: {endpoints: [e:1]}, console: {hosts: {http: "https://a"}}}`, "/console/hosts/http"},
		{`{etcd: {endpoints: [e:1]}, replicas: 3}`, "replicas"},
		{`{etcd: {endpoints: [e:1]}, settings: {grpc: "0.0.0.0:1"}}`, "/settings/grpc"},
		{`{etcd: {endpoints: [e:1]}, settings: {Log: text}}`, "'/settings': additional properties 'Log'"},
		{`{etcd: {endpoints: [e:1]}, settings: {log-level: {a: b}}}`, "log-level"},
		{`{etcd: {endpoints: [e:1]}, room: {settings: {journal: "off"}}}`, "/room/settings/journal"},
		{`{etcd: {endpoints: [e:1]}, rooms: [{name: EU}]}`, "name"},
		{`{etcd: {endpoints: [e:1]}, rooms: [{replicas: 2}]}`, "name"},
		{`{etcd: {endpoints: [e:1]}, rooms: [{name: a, replica: 2}]}`, "replica"},
		{`{etcd: {endpoints: [e:1]}, settings: {insecure: true}, rooms: [{name: a}, {name: a, replicas: 3}]}`,
			`"a" is named twice`},
		{`{etcd: {endpoints: [e:1]}, settings: {insecure: true}, fullnameOverride: a-long-name-of-a-release, rooms: [{name: a-long-name-of-a-room-of-march}]}`, "longer than 52"},
		{`{etcd: {endpoints: [e:1]}, room: {antiAffinity: never}}`, "antiAffinity"},
		{`{etcd: {endpoints: [e:1]}, room: {drainSeconds: 0}}`, "drainSeconds"},
		{`{etcd: {endpoints: [e:1]}, room: {extraArgs: [eu-1]}}`, "extraArgs"},
		{`{etcd: {endpoints: [e:1]}, room: {extraPorts: [{name: grpc, port: 1}]}}`, "extraPorts"},
	} {
		values, err := chartutil.ReadValues([]byte(c.values))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = render(load(t), values); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want an error with %s", c.values, err, c.want)
		}
	}
}

// TestSources checks that the alerts and the dashboard in the chart are those of deploy.
func TestSources(t *testing.T) {
	for file, source := range map[string]string{"files/march.rules.yml": "prometheus/march.rules.yml",
		"files/march.json": "grafana/march.json"} {
		want, err := os.ReadFile("../../deploy/" + source)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(load(t).Files, func(f *chart.File) bool { return f.Name == file })
		if i < 0 || !bytes.Equal(load(t).Files[i].Data, want) {
			t.Errorf("%s of the chart is not deploy/%s", file, source)
		}
	}
}

// TestDocument renders the chart with the values of docs/operate/run.md.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/operate/run.md")
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]any)
	sets := regexp.MustCompile(`--set '?([^ '\n]+)`).FindAllStringSubmatch(string(text), -1)
	for _, set := range sets {
		if err := strvals.ParseInto(set[1], values); err != nil {
			t.Fatalf("%s: %v", set[1], err)
		}
	}
	all := objectsOf(t, values)
	if n := len(workloads(all)); len(sets) != 10 || n != 2 {
		t.Errorf("%d values make %d workloads, want a room and the consoles", len(sets), n)
	}
}
