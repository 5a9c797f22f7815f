package chart

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// program builds march from this repository, once, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(temporary, "march")
	out, err := exec.Command("go", "build", "-C", "../..", "-buildvcs=false", "-o", path,
		"./cmd/march").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// march runs march with arguments, in an environment of the container's variables alone.
func march(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = env
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("march %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return string(out), err
}

// command returns the arguments and the environment with which a workload runs march. Its
// ConfigMap is a file here.
func (w workload) command(t *testing.T, all objects) (args, env []string) {
	t.Helper()
	values := map[string]string{"POD_NAME": w.name + "-0"}
	for _, e := range w.container().Env {
		if e.ValueFrom == nil {
			values[e.Name] = e.Value
		} else if e.ValueFrom.FieldRef == nil || e.ValueFrom.FieldRef.FieldPath != "metadata.name" {
			t.Fatalf("%s: where does %s come from?", w.name, e.Name)
		}
	}
	var expand []string
	for name, value := range values {
		env, expand = append(env, name+"="+value), append(expand, "$("+name+")", value)
	}
	// The ConfigMap of settings, the first, comes last: it names files of the others.
	for _, v := range slices.Backward(w.template.Spec.Volumes) {
		var files map[string]string
		switch {
		case v.Secret != nil:
			files = existing(t)
		case v.Projected != nil:
			files = projected(t, v.Projected)
		case v.ConfigMap != nil:
			i := slices.IndexFunc(of[*corev1.ConfigMap](all), func(m *corev1.ConfigMap) bool {
				return m.Name == v.ConfigMap.Name
			})
			files = of[*corev1.ConfigMap](all)[i].Data
			for name, content := range files { // files that settings name
				files[name] = strings.NewReplacer(expand...).Replace(content)
			}
		}
		dir := t.TempDir()
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range w.container().VolumeMounts {
			if m.Name == v.Name {
				expand = append(expand, "="+m.MountPath+"/", "="+dir+"/", `"`+m.MountPath+"/", `"`+dir+"/")
			}
		}
	}
	for k := range env {
		env[k] = strings.NewReplacer(expand...).Replace(env[k])
	}
	for _, arg := range w.container().Args {
		args = append(args, strings.NewReplacer(expand...).Replace(arg))
	}
	return args, env
}

// value is a line of march config print.
type value struct{ Name, Value, Origin string }

// settings returns the settings that a command would have.
func settings(t *testing.T, env []string, args ...string) map[string]value {
	t.Helper()
	out, err := march(t, env, append([]string{"config", "print", "-o", "json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var list []value
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]value)
	for _, v := range list {
		byName[v.Name] = v
	}
	return byName
}

// TestProgram checks that march accepts the arguments and settings of every workload, and
// that they arrive: values of the values' file, and the chart's own.
func TestProgram(t *testing.T) {
	arrived := map[string]map[string]string{
		"prod-march-eu-1": {
			"cluster": "prod", "log-format": "json", "max-connections": "1000000", "traces-ratio": "0.01",
			"ready-reserve": "30s", "warm-tags": "order,invoice", "name": "prod-march-eu-1-0", "drain": "20s",
			"advertise": "prod-march-eu-1-0.prod-march-eu-1-pods.ids.svc.cluster.local:7010",
			"journal":   "/var/lib/march",
			"etcd-user": "march", "tls-client-auth": "required",
			"hold": "5m0s", "idle-after": "1h0m0s", // its own, which win over all rooms' arguments
			"max-resets":  "100",
			"oidc-issuer": "https://login.example.net", "oidc-audience": "march",
		},
		"prod-march-us-1": {"advertise": "prod-march-us-1-0.march.example.net:7010", "redis": "0.0.0.0:6379",
			"worker-window": "45s", "require-journal": "true", "etcd-user": ""}, // its certificate has it
		"prod-march-console": {"forget-after": "36h0m0s", "oidc-client-id": "march-console",
			"cluster": "prod", "http": "0.0.0.0:7000"},
	}
	for name, values := range cases(t) {
		all := objectsOf(t, values)
		for _, w := range workloads(all) {
			args, env := w.command(t, all)
			if _, err := march(t, env, append([]string{"config", "validate"}, args...)...); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if name != "full" {
				continue
			}
			got := settings(t, env, args...)
			for setting, want := range arrived[w.name] {
				if got[setting].Value != want {
					t.Errorf("%s: %s is %q (%s), want %q", w.name, setting, got[setting].Value,
						got[setting].Origin, want)
				}
			}
			if len(arrived[w.name]) == 0 {
				t.Errorf("nothing is known of %s", w.name)
			}
		}
	}
}

// TestEtcdUsers checks that the certificates for etcd have the names of the users that march etcd roles makes, each
// server its own, and that no server uses another one's.
func TestEtcdUsers(t *testing.T) {
	roles, err := march(t, nil, "etcd", "roles", "--certificates", "--cluster", "prod", "eu-1", "us-1")
	if err != nil {
		t.Fatal(err)
	}
	all := objectsOf(t, cases(t)["full"])
	secrets := make(map[string]string) // by user
	for _, c := range of[*certmanagerv1.Certificate](all) {
		user := c.Spec.CommonName
		if user == "" {
			continue
		}
		if !strings.Contains(roles, "user add "+user+" ") || secrets[user] != "" {
			t.Errorf("%s is no user of etcd, or of two certificates:\n%s", user, roles)
		}
		secrets[user] = c.Spec.SecretName
	}
	used := make(map[string]string) // by workload
	for _, w := range workloads(all) {
		for _, v := range w.template.Spec.Volumes {
			if v.Name == "etcd" {
				used[w.name] = v.Secret.SecretName
			}
		}
	}
	want := map[string]string{"prod-march-eu-1": secrets["march-prod-room-eu-1"], "prod-march-us-1": "etcd-us-1",
		"prod-march-console": secrets["march-prod-console"]}
	if len(secrets) != 2 || !maps.Equal(used, want) {
		t.Errorf("certificates %v; used %v, want %v", secrets, used, want)
	}
}

// TestIdentities gives the file of issuers and CAs, with the files that it names, to rooms and consoles. Each takes it,
// with the issuer of logins that it has.
func TestIdentities(t *testing.T) {
	all := objectsOf(t, map[string]any{"etcd": map[string]any{"endpoints": []any{"e:1"}},
		"tls": map[string]any{"secret": "tls"}, "rooms": []any{map[string]any{"name": "a"}},
		"access": map[string]any{"policy": "march-policy", "identities": "march-identities",
			"oidc": map[string]any{"issuer": "https://login.example.net", "clientID": "console"}},
		"console": map[string]any{"settings": map[string]any{"public-url": "https://march.example.net"}}})
	for _, w := range workloads(all) {
		checkPod(t, all, w)
		args, env := w.command(t, all)
		if _, err := march(t, env, append([]string{"config", "validate"}, args...)...); err != nil {
			t.Error(err)
			continue
		}
		got := settings(t, env, args...)["identities"]
		if content, err := os.ReadFile(got.Value); err != nil || !strings.Contains(string(content), "client_cas") {
			t.Errorf("%s: %q, %v", w.name, got.Value, err)
		}
	}
	if n := len(workloads(all)); n != 2 {
		t.Errorf("%d workloads", n)
	}
}

// TestHelmTest runs the commands of helm test's pod against a cluster of two rooms, as the pod would: they take an ID
// of each room, and see the cluster's state. No selector of the chart takes the pod for another one.
func TestHelmTest(t *testing.T) {
	all := objectsOf(t, map[string]any{"etcd": map[string]any{"endpoints": []any{"e:1"}},
		"settings": map[string]any{"insecure": true}, "test": map[string]any{"tag": "probe"},
		"rooms": []any{map[string]any{"name": "a"}, map[string]any{"name": "b"}}})
	pod := of[*corev1.Pod](all)[0]
	for _, w := range workloads(all) {
		if w.selectedBy(pod.Labels) || labels.SelectorFromSet(w.selector.MatchLabels).Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s takes the test's pod for its own", w.name)
		}
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + t.TempDir()}
	base := freePorts()
	dev := exec.Command(path, "dev", "--base-port", strconv.Itoa(base))
	dev.Env = env
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- dev.Wait() }()
	t.Cleanup(func() {
		_ = dev.Process.Signal(os.Interrupt)
		<-ended
	})
	at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", base+port) }
	address := strings.NewReplacer("prod-march-console:7001", at(1), "prod-march-a:7010", at(10),
		"prod-march-b:7010", at(11))
	for _, c := range pod.Spec.Containers {
		var out string
		for {
			args := make([]string, len(c.Args))
			for i, arg := range c.Args {
				args[i] = address.Replace(arg)
			}
			if out, err = march(t, env, args...); err == nil {
				break
			}
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 5 {
				t.Fatal(err)
			}
			select { // 5: the cluster still starts
			case wrong := <-ended:
				ended <- wrong
				t.Fatalf("march dev ended: %v", wrong)
			default:
			}
		}
		if number, wrong := strconv.Atoi(strings.TrimSpace(out)); c.Name != "console" && (wrong != nil || number < 1) ||
			c.Name == "console" && !strings.Contains(out, "boundary 1000") {
			t.Errorf("%s: %s", c.Name, out)
		}
	}
	if len(pod.Spec.Containers) != 3 {
		t.Errorf("%d containers", len(pod.Spec.Containers))
	}
}

// freePorts returns the first of 100 ports that are free, below those that systems give to clients, of which others may
// be in use.
func freePorts() int {
	for base := 10_000 + os.Getpid()%200*100; ; base = 10_000 + (base-9_900)%20_000 {
		free := true
		for port := base; free && port < base+100; port++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			return base
		}
	}
}

// projected returns the files of a volume that the chart takes from secrets and ConfigMaps of others.
func projected(t *testing.T, from *corev1.ProjectedVolumeSource) map[string]string {
	t.Helper()
	files, there := make(map[string]string), existing(t)
	for _, source := range from.Sources {
		var items []corev1.KeyToPath
		if source.Secret != nil {
			items = source.Secret.Items
		} else {
			items = source.ConfigMap.Items
		}
		if len(items) == 0 { // all keys: those of identities
			items = []corev1.KeyToPath{
				{Key: "identities.yaml", Path: "identities.yaml"}, {Key: "ca.crt", Path: "ca.crt"},
			}
		}
		for _, item := range items {
			content, ok := there[item.Key]
			if !ok {
				t.Errorf("there is no key %s", item.Key)
			}
			files[item.Path] = content
		}
	}
	return files
}

// existing returns the keys of secrets and ConfigMaps that an operator makes, all in one: a certificate, its key, a
// password, and what says who may call.
func existing(t *testing.T) map[string]string {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens")
	if _, err := march(t, nil, "token", "create", "ann", "--tokens", tokens, "--out", tokens+".ann"); err != nil {
		t.Fatal(err)
	}
	hashes, err := os.ReadFile(tokens)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	return map[string]string{
		"ca.crt":   certificate,
		"tls.crt":  certificate,
		"tls.key":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		"password": "secret\n",

		"policy.yaml": `grants: [{subjects: "token:ann", roles: admin}]`,
		"tokens":      string(hashes),
		"identities.yaml": `issuers:
- {url: "https://login.example.net", audience: march, names: ["jwt:*"], ca: ca.crt}
client_cas:
- {ca: ca.crt, names: ["spiffe://example.net/*"]}`,
		"jwks.json":     `{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`,
		"client-secret": "secret\n",
		"session-key":   strings.Repeat("k", 32),
	}
}

// TestEverySetting gives each setting of the program in the values' settings, or finds that
// the chart gives it: so none is out of reach. The list is the program's own.
func TestEverySetting(t *testing.T) {
	values := func(server, name, value string) map[string]any {
		return map[string]any{
			"etcd":  map[string]any{"endpoints": []any{"etcd:2379"}},
			"rooms": []any{map[string]any{"name": "eu-1"}}, "settings": map[string]any{"insecure": true},
			server: map[string]any{"settings": map[string]any{name: value}},
		}
	}
	full := objectsOf(t, cases(t)["full"])
	for server, c := range map[string]struct {
		workload string
		command  []string
	}{
		"room":    {"prod-march-eu-1", []string{"room", "eu-1"}},
		"console": {"prod-march-console", []string{"console"}},
	} {
		inSettings := 0
		for name, v := range settings(t, nil, c.command...) {
			docs, err := render(load(t), values(server, name, v.Value))
			if err != nil { // the chart sets it
				if !strings.Contains(err.Error(), "/"+name+"'") {
					t.Errorf("%s: %v", name, err)
				}
				for _, w := range workloads(full) {
					given := slices.ContainsFunc(w.container().Args, func(a string) bool {
						return strings.HasPrefix(a, "--"+name+"=")
					}) ||
						slices.ContainsFunc(w.container().Env, func(e corev1.EnvVar) bool {
							return e.Name == "MARCH_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
						})
					if w.name == c.workload && !given {
						t.Errorf("the chart refuses the setting %s of %s, and never gives it", name, server)
					}
				}
				continue
			}
			all, err := decode(documents(docs))
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range workloads(all) {
				if w.name != c.workload {
					continue
				}
				args, env := w.command(t, all)
				if got := settings(t, env, args...)[name]; got.Value != v.Value ||
					!strings.Contains(got.Origin, "/march.yaml:") {
					t.Errorf("%s: %s is %q by %s, want %q by the file", server, name, got.Value, got.Origin, v.Value)
				}
				inSettings++
			}
		}
		if inSettings < 10 {
			t.Errorf("%d settings of %s were given", inSettings, server)
		}
	}
}
