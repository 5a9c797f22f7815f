package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/march-id/march/internal/programs"
)

// composeFile is deploy/compose/compose.yaml: as much of the format as that file may use.
type composeFile struct {
	Name     string
	Services map[string]composeService
	Volumes  map[string]*struct{}
}

type composeService struct {
	Image           string
	Restart         string
	Command         []string
	Environment     map[string]string
	Ports           []string
	Volumes         []string
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	StopGracePeriod string   `yaml:"stop_grace_period"`
}

// composed runs the services of a compose file as processes of this host. A host there
// is a port here.
type composed struct {
	*testing.T
	file     composeFile
	dir      string // has a folder for each named volume
	ports    map[string]int
	base     int
	services map[string]*process
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	var file composeFile
	if err := yaml.UnmarshalWithOptions(readDeploy(t, "compose/compose.yaml"), &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	return file
}

func newComposed(t *testing.T) *composed {
	t.Helper()
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	return &composed{T: t, file: readCompose(t), dir: t.TempDir(), ports: make(map[string]int), base: base,
		services: make(map[string]*process)}
}

// address returns where a port of a service is on this host.
func (c *composed) address(service, port string) string {
	c.Helper()
	name := service + ":" + port
	if _, ok := c.ports[name]; !ok {
		c.ports[name] = c.base + len(c.ports)
	}
	return fmt.Sprintf("127.0.0.1:%d", c.ports[name])
}

var hostPort = regexp.MustCompile(`\b(0\.0\.0\.0|[a-z][a-z0-9-]*):([0-9]{2,5})\b`)

// translate replaces the addresses in a text of a service.
func (c *composed) translate(service, text string) string {
	return hostPort.ReplaceAllStringFunc(text, func(found string) string {
		host, port, _ := strings.Cut(found, ":")
		if host == "0.0.0.0" {
			host = service
		}
		if _, ok := c.file.Services[host]; !ok {
			c.Errorf("%s: %s names no service", service, found)
		}
		return c.address(host, port)
	})
}

// mounts returns what replaces the paths of a service's container by those on this host. Its
// files are copied, with the addresses and paths in them replaced.
func (c *composed) mounts(service string) *strings.Replacer {
	c.Helper()
	var paths []string // pairs: in the container, on this host
	copies := make(map[string]string)
	for _, volume := range c.file.Services[service].Volumes {
		parts := strings.Split(volume, ":")
		if !strings.HasPrefix(parts[0], ".") {
			if _, ok := c.file.Volumes[parts[0]]; !ok || len(parts) != 2 {
				c.Fatalf("%s: volume %q is not declared", service, volume)
			}
			paths = append(paths, parts[1], filepath.Join(c.dir, parts[0]))
			continue
		}
		if len(parts) != 3 || parts[2] != "ro" {
			c.Fatalf("%s: %q; want SOURCE:TARGET:ro", service, volume)
		}
		outside := filepath.Join(c.dir, service+"-"+filepath.Base(parts[1]))
		paths = append(paths, parts[1], outside)
		copies[parts[0]] = outside
	}
	replacer := strings.NewReplacer(paths...) // it does not replace in what it replaced
	for source, outside := range copies {
		content := string(readDeploy(c.T, filepath.Join("compose", source)))
		if filepath.Base(source) == "prometheus.yml" {
			content = strings.ReplaceAll(c.translate(service, content), "15s", "3s")
		}
		if err := os.WriteFile(outside, []byte(replacer.Replace(content)), 0o600); err != nil {
			c.Fatal(err)
		}
	}
	return replacer
}

// run runs the command of a service.
func (c *composed) run(service string) *process {
	c.Helper()
	s := c.file.Services[service]
	mounts := c.mounts(service)
	args := make([]string, 0, len(s.Command)+1)
	switch {
	case strings.HasPrefix(s.Image, "${MARCH_IMAGE:-march:"):
		args = append(args, "march")
	case strings.HasPrefix(s.Image, "prom/prometheus:"):
		args = append(args, "prometheus")
	}
	for _, arg := range s.Command {
		args = append(args, mounts.Replace(c.translate(service, arg)))
	}
	env := make([]string, 0, len(s.Environment))
	for name, value := range s.Environment {
		env = append(env, name+"="+c.translate(service, value))
	}
	if args[0] = filepath.Base(args[0]); args[0] == "etcd" {
		args[0] = etcdProgram
	}
	return beginAs(c.T, c.dir, env, args[0], args[1:]...)
}

// complete runs the command of a service until it is done, as restart: on-failure does.
func (c *composed) complete(service string) {
	c.Helper()
	if restart := c.file.Services[service].Restart; !strings.HasPrefix(restart, "on-failure:") {
		c.Fatalf("%s: restart is %q; want on-failure:N", service, restart)
	}
	var p *process
	err := poll(patience(c.T), func() bool {
		p = c.run(service)
		<-p.done
		return p.cmd.ProcessState.ExitCode() == exitOK
	})
	if err != nil {
		_, stderr := p.output()
		c.Fatalf("%s: %v\n%s", service, err, stderr)
	}
}

// TestCompose runs the commands of the compose file. Each instance issues an ID of its room,
// and Prometheus reads the metrics of all servers.
func TestCompose(t *testing.T) {
	programs.OnlyInAll(t, "of the compose file's commands")
	t.Parallel()
	programs.Find(t, "prometheus")
	c := newComposed(t)
	once := []string{"layout", "tags"}
	var rooms []string
	for _, service := range sortedKeys(c.file.Services) {
		if service == "grafana" || slices.Contains(once, service) {
			continue
		}
		c.services[service] = c.run(service)
		if command := c.file.Services[service].Command; command[0] == "room" {
			rooms = append(rooms, service)
		}
	}
	for _, service := range once {
		c.complete(service)
	}
	c.complete("tags") // it finds nothing to change

	if want := []string{"eu-1-0", "eu-1-1", "us-1-0", "us-1-1"}; !slices.Equal(rooms, want) {
		t.Fatalf("the instances are %v, want %v", rooms, want)
	}
	residues := map[string][2]int64{"eu-1": {0, 400}, "us-1": {400, 800}}
	issued := make(map[int64]string)
	for _, instance := range rooms {
		c.services[instance].ready(t)
		stdout, stderr, code := march(t, "id", "next", "order", "--room", c.address(instance, "7010"))
		if code != exitOK {
			t.Fatal(stderr)
		}
		id, err := strconv.ParseInt(strings.TrimSpace(stdout), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if r := residues[instance[:len("eu-1")]]; id%1000 < r[0] || id%1000 >= r[1] {
			t.Errorf("%s issued %d, which is not of its room", instance, id)
		}
		if other, twice := issued[id]; twice {
			t.Errorf("%s and %s issued %d", instance, other, id)
		}
		issued[id] = instance
	}
	c.scraped(8)
	r, err := http.Get("http://" + c.address("console", "7000") + "/history")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil || !strings.Contains(string(page), `href="http://127.0.0.1:3000/d/march?from=now-7d&amp;to=now"`) {
		t.Errorf("the console's page does not lead to the dashboard of 7 days: %s, %v\n%s", r.Status, err, page)
	}

	for _, instance := range append(rooms, "console") {
		s := c.file.Services[instance]
		grace, err := time.ParseDuration(s.StopGracePeriod)
		if drain := 10 * time.Second; err != nil || grace <= drain {
			t.Errorf("%s: stop_grace_period is %s; want more than --drain, %v", instance, s.StopGracePeriod, drain)
		}
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.Restart != "always" {
			t.Errorf("%s: not read-only, or with capabilities, or not started again: %+v", instance, s)
		}
		if code, err := c.services[instance].stop(patience(t), syscall.SIGTERM); err != nil || code != exitOK {
			t.Errorf("%s: exit code %d, %v", instance, code, err)
		}
	}
}

// scraped waits until Prometheus reads so many targets, and has all rules.
func (c *composed) scraped(targets int) {
	c.Helper()
	query := func(path string, into any) error {
		r, err := http.Get("http://" + c.address("prometheus", "9090") + path)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		content, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		return json.Unmarshal(content, into)
	}
	var up struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	err := poll(patience(c.T), func() bool {
		return query("/api/v1/query?query="+url.QueryEscape("up == 1"), &up) == nil && len(up.Data.Result) == targets
	})
	if err != nil {
		_, stderr := c.services["prometheus"].output()
		c.Fatalf("Prometheus reads %v, want %d targets: %v\n%s", up.Data.Result, targets, err, stderr)
	}
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health string }
			}
		}
	}
	if err := query("/api/v1/rules", &rules); err != nil || len(rules.Data.Groups) == 0 ||
		len(rules.Data.Groups[0].Rules) < 8 {
		c.Errorf("Prometheus has the rules %+v, %v", rules.Data.Groups, err)
	}
}

// Ports of this host are given once, on the loopback address. Grafana finds the data and the
// dashboard at the places that its settings name.
func TestComposeFiles(t *testing.T) {
	t.Parallel()
	file := readCompose(t)
	published := make(map[string]string)
	for name, s := range file.Services {
		for _, port := range s.Ports {
			host, _, _ := strings.Cut(strings.TrimPrefix(port, "127.0.0.1:"), ":")
			if other, twice := published[host]; twice || !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s: port %s is also of %q, or not on 127.0.0.1", name, port, other)
			}
			published[host] = name
		}
	}

	var sources struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Name, Type, Access, URL string
			IsDefault               bool `yaml:"isDefault"`
		}
	}
	var dashboards struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name, Type string
			Options    struct{ Path string }
		}
	}
	for name, into := range map[string]any{"datasources/prometheus.yaml": &sources,
		"dashboards/march.yaml": &dashboards} {
		if err := yaml.UnmarshalWithOptions(readDeploy(t, "compose/grafana/"+name), into, yaml.Strict()); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(file.Services["grafana"].Volumes,
			"./grafana/"+name+":/etc/grafana/provisioning/"+name+":ro") {
			t.Errorf("grafana does not see %s", name)
		}
	}
	if len(sources.Datasources) != 1 || sources.Datasources[0].URL != "http://prometheus:9090" ||
		sources.Datasources[0].Type != "prometheus" {
		t.Errorf("the data sources are %+v", sources.Datasources)
	}
	if len(dashboards.Providers) != 1 ||
		!slices.Contains(file.Services["grafana"].Volumes,
			"../grafana/march.json:"+dashboards.Providers[0].Options.Path+"/march.json:ro") {
		t.Errorf("grafana does not see the dashboard: %+v", dashboards.Providers)
	}
}
