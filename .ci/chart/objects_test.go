package chart

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// kinds has a type for each kind of object that the chart may make.
var kinds = map[string]func() metav1.Object{
	"v1 Pod":                                  func() metav1.Object { return &corev1.Pod{} },
	"v1 ConfigMap":                            func() metav1.Object { return &corev1.ConfigMap{} },
	"v1 Service":                              func() metav1.Object { return &corev1.Service{} },
	"v1 ServiceAccount":                       func() metav1.Object { return &corev1.ServiceAccount{} },
	"apps/v1 StatefulSet":                     func() metav1.Object { return &appsv1.StatefulSet{} },
	"apps/v1 Deployment":                      func() metav1.Object { return &appsv1.Deployment{} },
	"policy/v1 PodDisruptionBudget":           func() metav1.Object { return &policyv1.PodDisruptionBudget{} },
	"networking.k8s.io/v1 Ingress":            func() metav1.Object { return &networkingv1.Ingress{} },
	"gateway.networking.k8s.io/v1 HTTPRoute":  func() metav1.Object { return &gatewayv1.HTTPRoute{} },
	"gateway.networking.k8s.io/v1 GRPCRoute":  func() metav1.Object { return &gatewayv1.GRPCRoute{} },
	"networking.k8s.io/v1 NetworkPolicy":      func() metav1.Object { return &networkingv1.NetworkPolicy{} },
	"monitoring.coreos.com/v1 ServiceMonitor": func() metav1.Object { return &monitoringv1.ServiceMonitor{} },
	"monitoring.coreos.com/v1 PrometheusRule": func() metav1.Object { return &monitoringv1.PrometheusRule{} },
	"cert-manager.io/v1 Certificate":          func() metav1.Object { return &certmanagerv1.Certificate{} },
}

// objects is what a case makes, decoded.
type objects []metav1.Object

// decode decodes documents strictly: a field that the type does not have, or one that stands
// twice, is an error.
func decode(docs []string) (objects, error) {
	var all objects
	names := make(map[string]bool)
	for _, doc := range docs {
		var of metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &of); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, doc)
		}
		kind := of.APIVersion + " " + of.Kind
		empty, ok := kinds[kind]
		if !ok {
			return nil, fmt.Errorf("there is no type for a %s", kind)
		}
		object := empty()
		if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
			return nil, fmt.Errorf("%s: %w in\n%s", kind, err, doc)
		}
		name := kind + " " + object.GetName()
		if names[name] {
			return nil, fmt.Errorf("%s is there twice", name)
		}
		if wrong := validation.IsDNS1123Subdomain(object.GetName()); len(wrong) > 0 {
			return nil, fmt.Errorf("%s: %v", name, wrong)
		}
		names[name] = true
		all = append(all, object)
	}
	return all, nil
}

// objectsOf renders and decodes a case.
func objectsOf(t *testing.T, values map[string]any) objects {
	t.Helper()
	all, err := decode(rendered(t, values))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func of[T metav1.Object](all objects) []T {
	var some []T
	for _, object := range all {
		if o, ok := object.(T); ok {
			some = append(some, o)
		}
	}
	return some
}

// workload is what makes pods.
type workload struct {
	name     string
	selector *metav1.LabelSelector
	template corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim
}

func workloads(all objects) []workload {
	var some []workload
	for _, s := range of[*appsv1.StatefulSet](all) {
		some = append(some, workload{s.Name, s.Spec.Selector, s.Spec.Template, s.Spec.VolumeClaimTemplates})
	}
	for _, d := range of[*appsv1.Deployment](all) {
		some = append(some, workload{d.Name, d.Spec.Selector, d.Spec.Template, nil})
	}
	return some
}

func (w workload) selectedBy(selector map[string]string) bool {
	return labels.SelectorFromSet(selector).Matches(labels.Set(w.template.Labels))
}

func (w workload) container() corev1.Container { return w.template.Spec.Containers[0] }

func (w workload) port(named intstr.IntOrString) bool {
	return slices.ContainsFunc(w.container().Ports, func(p corev1.ContainerPort) bool { return p.Name == named.StrVal })
}

// TestObjects decodes what each case makes, and checks that the objects fit each other.
func TestObjects(t *testing.T) {
	made := make(map[string]int)
	for name, values := range cases(t) {
		t.Run(name, func(t *testing.T) {
			all := objectsOf(t, values)
			for _, object := range all {
				made[reflect.TypeOf(object).String()]++
			}
			for _, w := range workloads(all) {
				checkPod(t, all, w)
			}
			checkSelectors(t, all)
			checkRoutes(t, all)
		})
	}
	if len(made) != len(kinds) {
		t.Errorf("the cases make %v; want all of %d kinds", made, len(kinds))
	}
}

// TestStrict checks that a mistake in a template would be found.
func TestStrict(t *testing.T) {
	for doc, want := range map[string]string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {selectors: {}}":            "selectors",
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: many}]}":    "port",
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {type: A}\nspec: {}":        "already set",
		"apiVersion: v2\nkind: Service\nmetadata: {name: a}":                                   "no type",
		"apiVersion: v1\nkind: Service\nmetadata: {name: A_b}":                                 "RFC 1123",
		"apiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {name: a}\nspec: {a: 1}": "unknown field",
	} {
		if _, err := decode([]string{doc}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v; want an error with %s", doc, err, want)
		}
	}
}

func checkPod(t *testing.T, all objects, w workload) {
	t.Helper()
	pod, c := w.template.Spec, w.container()
	if !w.selectedBy(w.selector.MatchLabels) {
		t.Errorf("%s does not select its own pods", w.name)
	}
	if len(pod.Containers) != 1 {
		t.Fatalf("%s has %d containers", w.name, len(pod.Containers))
	}

	// Every mount has its volume, every volume its object where the chart makes that.
	volumes := make(map[string]bool)
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil && !slices.ContainsFunc(of[*corev1.ConfigMap](all), func(m *corev1.ConfigMap) bool {
			return m.Name == v.ConfigMap.Name
		}) {
			t.Errorf("%s: there is no ConfigMap %s", w.name, v.ConfigMap.Name)
		}
	}
	for _, claim := range w.claims {
		volumes[claim.Name] = true
	}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s: there is no volume %s", w.name, m.Name)
		}
		delete(volumes, m.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("%s: %v are mounted nowhere", w.name, volumes)
	}
	if !slices.ContainsFunc(of[*corev1.ServiceAccount](all), func(a *corev1.ServiceAccount) bool {
		return a.Name == pod.ServiceAccountName
	}) {
		t.Errorf("%s: there is no ServiceAccount %s", w.name, pod.ServiceAccountName)
	}

	// Files of arguments are mounted.
	for _, arg := range c.Args {
		_, path, ok := strings.Cut(arg, "=/")
		if ok && !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return strings.HasPrefix("/"+path+"/", m.MountPath+"/")
		}) {
			t.Errorf("%s: nothing is mounted at the file of %s", w.name, arg)
		}
	}

	// Probes.
	for probe, path := range map[*corev1.Probe]string{c.StartupProbe: "/livez", c.LivenessProbe: "/livez",
		c.ReadinessProbe: "/readyz"} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || !w.port(probe.HTTPGet.Port) {
			t.Errorf("%s: the probe of %s is %v", w.name, path, probe)
		}
	}

	// The grace period is longer than all that the end may take.
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Sleep == nil {
		t.Fatalf("%s: no preStop", w.name)
	}
	drain := int64(0)
	for _, arg := range c.Args {
		if _, err := fmt.Sscanf(arg, "--drain=%ds", &drain); err == nil {
			break
		}
	}
	if grace := pod.TerminationGracePeriodSeconds; drain == 0 || grace == nil ||
		*grace <= c.Lifecycle.PreStop.Sleep.Seconds+drain {
		t.Errorf("%s: grace period %v with a drain of %d s", w.name, grace, drain)
	}

	checkApart(t, w)

	// Not root, nothing writable but the journal, no right at all.
	s, p := c.SecurityContext, pod.SecurityContext
	if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		!*p.RunAsNonRoot || *p.RunAsUser == 0 || *pod.AutomountServiceAccountToken ||
		p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: the security context is %v, %v", w.name, s, p)
	}
}

// checkApart checks that pods of one workload run on different nodes. Where the values have an
// affinity of their own, which in the cases names nodes, that counts instead.
func checkApart(t *testing.T, w workload) {
	t.Helper()
	affinity := w.template.Spec.Affinity
	if affinity != nil && affinity.NodeAffinity != nil {
		return
	}
	var terms []corev1.PodAffinityTerm
	if affinity != nil && affinity.PodAntiAffinity != nil {
		terms = append(terms, affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
		for _, weighted := range affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, weighted.PodAffinityTerm)
		}
	}
	if !slices.ContainsFunc(terms, func(term corev1.PodAffinityTerm) bool {
		return term.TopologyKey == corev1.LabelHostname && len(term.LabelSelector.MatchLabels) > 1 &&
			w.selectedBy(term.LabelSelector.MatchLabels)
	}) {
		t.Errorf("%s: nothing keeps its pods on different nodes: %v", w.name, affinity)
	}
}

// checkRoutes checks that ways from outside lead to ports of services with pods behind them, each host to one.
func checkRoutes(t *testing.T, all objects) {
	t.Helper()
	leads := func(object metav1.Object, host, service string, port func(corev1.ServicePort) bool) {
		t.Helper()
		if !slices.ContainsFunc(of[*corev1.Service](all), func(s *corev1.Service) bool {
			return s.Name == service && s.Spec.ClusterIP != corev1.ClusterIPNone &&
				slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
					return port(p) && strings.HasSuffix(object.GetName(), "-"+p.Name)
				})
		}) || host == "" {
			t.Errorf("%T %s of %q leads to no port of the service %s", object, object.GetName(), host, service)
		}
	}
	for _, i := range of[*networkingv1.Ingress](all) {
		rule := i.Spec.Rules[0]
		to := rule.HTTP.Paths[0].Backend.Service
		leads(i, rule.Host, to.Name, func(p corev1.ServicePort) bool { return p.Name == to.Port.Name })
	}
	byNumber := func(object metav1.Object, hosts []gatewayv1.Hostname, to gatewayv1.BackendObjectReference) {
		leads(object, string(hosts[0]), string(to.Name), func(p corev1.ServicePort) bool { return p.Port == *to.Port })
	}
	for _, r := range of[*gatewayv1.HTTPRoute](all) {
		byNumber(r, r.Spec.Hostnames, r.Spec.Rules[0].BackendRefs[0].BackendObjectReference)
	}
	for _, r := range of[*gatewayv1.GRPCRoute](all) {
		byNumber(r, r.Spec.Hostnames, r.Spec.Rules[0].BackendRefs[0].BackendObjectReference)
	}
}

func checkSelectors(t *testing.T, all objects) {
	t.Helper()
	pods := workloads(all)
	selected := func(what string, selector map[string]string, want int) []workload {
		t.Helper()
		some := slices.DeleteFunc(slices.Clone(pods), func(w workload) bool { return !w.selectedBy(selector) })
		if len(selector) == 0 || len(some) != want {
			t.Errorf("%s selects the pods of %d workloads, want %d", what, len(some), want)
		}
		return some
	}
	for _, s := range of[*corev1.Service](all) {
		for _, w := range selected("service "+s.Name, s.Spec.Selector, 1) {
			for _, p := range s.Spec.Ports {
				if !w.port(p.TargetPort) {
					t.Errorf("service %s: %s has no port %v", s.Name, w.name, p.TargetPort)
				}
			}
		}
	}
	for _, s := range of[*appsv1.StatefulSet](all) {
		if !slices.ContainsFunc(of[*corev1.Service](all), func(o *corev1.Service) bool {
			return o.Name == s.Spec.ServiceName && o.Spec.ClusterIP == corev1.ClusterIPNone &&
				o.Spec.PublishNotReadyAddresses
		}) {
			t.Errorf("%s: there is no headless service %s", s.Name, s.Spec.ServiceName)
		}
		if len(s.Name) > 52 || len(s.Spec.VolumeClaimTemplates) != 1 {
			t.Errorf("%s: its name, or its journals: %v", s.Name, s.Spec.VolumeClaimTemplates)
		}
	}
	budgets := of[*policyv1.PodDisruptionBudget](all)
	for _, b := range budgets {
		selected("budget "+b.Name, b.Spec.Selector.MatchLabels, 1)
	}
	if len(budgets) != len(pods) {
		t.Errorf("%d budgets for %d workloads", len(budgets), len(pods))
	}
	policies := slices.DeleteFunc(of[*networkingv1.NetworkPolicy](all), func(n *networkingv1.NetworkPolicy) bool {
		return n.Annotations["helm.sh/hook"] == "test"
	})
	for _, n := range policies {
		for _, w := range selected("policy "+n.Name, n.Spec.PodSelector.MatchLabels, 1) {
			for _, rule := range n.Spec.Egress {
				if len(rule.To) == 0 {
					t.Errorf("policy %s: a rule for all that may be called", n.Name)
				}
			}
			for _, rule := range n.Spec.Ingress {
				if len(rule.From) == 0 || len(rule.Ports) == 0 {
					t.Errorf("policy %s: a rule for all callers or all ports", n.Name)
				}
				operators, callers := 0, 0
				for _, p := range rule.Ports {
					if strings.HasPrefix(p.Port.StrVal, "admin-") {
						operators++
					} else {
						callers++
					}
					if !w.port(*p.Port) {
						t.Errorf("policy %s: %s has no port %v", n.Name, w.name, p.Port)
					}
				}
				if operators > 0 && callers > 0 {
					t.Errorf("policy %s: one rule opens ports of callers and of operators: %v", n.Name, rule.Ports)
				}
			}
		}
	}
	if len(policies) != 0 && len(policies) != len(pods) {
		t.Errorf("%d policies for %d workloads", len(policies), len(pods))
	}
	for _, m := range of[*monitoringv1.ServiceMonitor](all) {
		var ports, scraped int
		for _, s := range of[*corev1.Service](all) {
			if !labels.SelectorFromSet(m.Spec.Selector.MatchLabels).Matches(labels.Set(s.Labels)) {
				continue
			}
			scraped++
			for _, p := range s.Spec.Ports {
				if slices.ContainsFunc(m.Spec.Endpoints, func(e monitoringv1.Endpoint) bool {
					return e.Port == p.Name
				}) {
					ports++
				}
			}
		}
		if scraped != len(pods) || ports != len(pods) { // each pod once
			t.Errorf("monitor %s reads %d ports of %d services, want one of each of %d",
				m.Name, ports, scraped, len(pods))
		}
	}
	for _, r := range of[*monitoringv1.PrometheusRule](all) {
		var want monitoringv1.PrometheusRuleSpec
		content, err := os.ReadFile("../../deploy/prometheus/march.rules.yml")
		if err == nil {
			err = yaml.UnmarshalStrict(content, &want)
		}
		if err != nil || len(want.Groups) == 0 || !reflect.DeepEqual(r.Spec, want) {
			t.Errorf("rule %s is not that of deploy/prometheus: %v", r.Name, err)
		}
	}
	for _, m := range of[*corev1.ConfigMap](all) {
		if m.Labels["grafana_dashboard"] == "" {
			continue
		}
		want, err := os.ReadFile("../../deploy/grafana/march.json")
		if err != nil || strings.TrimSpace(m.Data["march.json"]) != strings.TrimSpace(string(want)) {
			t.Errorf("%s is not deploy/grafana/march.json: %v", m.Name, err)
		}
	}
}
