{{- define "march.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of a room's objects. Pods get a number after it, and are instances' names, so 52 characters are the most that Kubernetes allows. */}}
{{- define "march.roomname" -}}
{{- $name := printf "%s-%s" (include "march.fullname" .root) .room.name -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "rooms: %q: the name %q is longer than 52 characters; set fullnameOverride to a shorter one" .room.name $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "march.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "march.labels" -}}
{{ include "march.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "march.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* A setting's value as YAML. Helm reads numbers as floats, which would print a million as 1e+06. */}}
{{- define "march.value" -}}
{{- if kindIs "slice" . -}}
[{{ range $i, $v := . }}{{ if $i }}, {{ end }}{{ include "march.value" $v }}{{ end }}]
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else if kindIs "string" . -}}
{{ . | quote }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{/*
A server, which the templates below are given, is a dict: root, name (of its objects), kind (room or console), user (the
end of its user's name in etcd), values, entry (its own part of them), ports, and settings (lists of maps; later ones win).
*/}}

{{/* The files by which callers prove who they are. Given: a server. */}}
{{- define "march.accessfiles" -}}
{{- $a := .root.Values.access }}
{{- $files := list (list "policy" "configMap" $a.policy "policy.yaml") (list "tokens" "secret" $a.tokens "tokens") (list "jwks-file" "configMap" $a.oidc.jwks "jwks.json") }}
{{- if eq .kind "console" }}
{{- $files = concat $files (list (list "oidc-client-secret-file" "secret" $a.oidc.clientSecret "client-secret") (list "session-key-file" "secret" $a.sessionKey "session-key")) }}
{{- end }}
{{- range $files }}
{{- if index . 2 }}
- {setting: {{ index . 0 }}, source: {{ index . 1 }}, name: {{ index . 2 }}, key: {{ index . 3 }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* All settings of a server's file. Those of access are the first. */}}
{{- define "march.allsettings" -}}
{{- $all := dict }}
{{- range include "march.accessfiles" . | fromYamlArray }}
{{- $_ := set $all .setting (printf "/etc/march/access/%s" .key) }}
{{- end }}
{{- if .root.Values.access.identities }}
{{- $_ := set $all "identities" "/etc/march/identities/identities.yaml" }}
{{- end }}
{{- with .root.Values.access.oidc }}
{{- $oidc := dict "oidc-issuer" .issuer "oidc-audience" .audience }}
{{- if eq $.kind "console" }}
{{- $_ := set $oidc "oidc-client-id" .clientID }}
{{- end }}
{{- range $name, $value := $oidc }}
{{- if $value }}
{{- $_ := set $all $name $value }}
{{- end }}
{{- end }}
{{- end }}
{{- range prepend .settings .root.Values.settings }}
{{- range $name, $value := . }}
{{- $_ := set $all $name $value }}
{{- end }}
{{- end }}
{{- toYaml $all }}
{{- end -}}

{{/* The file of settings. Given: a server. */}}
{{- define "march.settings" -}}
{{- range $name, $value := include "march.allsettings" . | fromYaml }}
{{ $name }}: {{ include "march.value" $value }}
{{- else }}
{}
{{- end -}}
{{- end -}}

{{/* The list extraArgs or extraEnv of a server, without what is for all rooms where the entry of this one has the setting. Given: the list's name, and a server. */}}
{{- define "march.extra" -}}
{{- $list := index . 0 }}
{{- $server := index . 1 }}
{{- range index $server.values $list }}
{{- $name := . }}
{{- if kindIs "map" . }}
{{- $name = .name }}
{{- end }}
{{- $setting := regexFind "^(--|MARCH_)[A-Za-z_-]+" $name | trimPrefix "--" | trimPrefix "MARCH_" | lower | replace "_" "-" }}
{{- if or (hasKey $server.entry $list) (not (hasKey ($server.entry.settings | default dict) $setting)) }}
{{ toYaml (list .) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The secret of a server's certificate for etcd; empty for none. Given: a server. */}}
{{- define "march.etcdsecret" -}}
{{- if .values.etcdSecret -}}
{{ .values.etcdSecret }}
{{- else if .root.Values.etcd.certManager.enabled -}}
{{ .name }}-etcd-tls
{{- else -}}
{{ .root.Values.etcd.tlsSecret }}
{{- end -}}
{{- end -}}

{{/* The certificates that cert-manager makes for a server. Given: a server, and hosts. */}}
{{- define "march.certificates" -}}
{{- $etcd := .root.Values.etcd.certManager }}
{{- if and $etcd.enabled (not .values.etcdSecret) }}
{{- $cluster := (include "march.allsettings" . | fromYaml).cluster | default "default" }}
---
# The name of its user in etcd, of march etcd roles --certificates.
{{ include "march.certificate" (dict "root" .root "name" (printf "%s-etcd" .name) "manager" $etcd "client" true "user" (default (printf "march-%s-%s" $cluster .user) $etcd.commonName)) }}
{{- end }}
{{- with .root.Values.tls.certManager }}
{{- if .enabled }}
---
{{ include "march.certificate" (dict "root" $.root "name" $.name "manager" . "hosts" $.hosts) }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "march.etcdargs" -}}
- --etcd={{ join "," .root.Values.etcd.endpoints }}
{{- if include "march.etcdsecret" . }}
- --etcd-ca=/etc/march/etcd/ca.crt
- --etcd-cert=/etc/march/etcd/tls.crt
- --etcd-key=/etc/march/etcd/tls.key
{{- end }}
{{- if and .root.Values.etcd.user (not .values.etcdSecret) }}
- --etcd-user={{ .root.Values.etcd.user }}
- --etcd-password-file=/etc/march/etcd-user/password
{{- end }}
{{- end -}}

{{/* The secret of a server's certificate; empty for no TLS. Given: root, and name (of the server). */}}
{{- define "march.tlssecret" -}}
{{- if .root.Values.tls.certManager.enabled -}}
{{ .name }}-tls
{{- else -}}
{{ .root.Values.tls.secret }}
{{- end -}}
{{- end -}}

{{/* TLS by the environment, so that commands that are run in the pod have it, too. */}}
{{- define "march.tlsenv" -}}
{{- if include "march.tlssecret" . }}
- {name: MARCH_TLS_CA, value: /etc/march/tls/ca.crt}
- {name: MARCH_TLS_CERT, value: /etc/march/tls/tls.crt}
- {name: MARCH_TLS_KEY, value: /etc/march/tls/tls.key}
- {name: MARCH_TLS_CLIENT_CA, value: /etc/march/tls/ca.crt}
- {name: MARCH_TLS_CLIENT_AUTH, value: {{ .root.Values.tls.clientAuth }}}
{{- else if not .root.Values.settings.insecure }}
{{- fail "tls: no secret and no certManager; set one of them, or settings.insecure: true" }}
{{- end }}
{{- end -}}

{{/* How gRPC is spoken to a server. */}}
{{- define "march.grpc" -}}
{{- if include "march.tlssecret" . }}https{{ else }}kubernetes.io/h2c{{ end -}}
{{- end -}}

{{/* Not empty if cert-manager makes the certificate with which Prometheus asks for metrics. */}}
{{- define "march.prometheusown" -}}
{{- $auth := .Values.monitoring.auth -}}
{{- if and .Values.tls.certManager.enabled (not $auth.certSecret) (or (not $auth.tokenSecret.name) (eq .Values.tls.clientAuth "required")) -}}
yes
{{- end -}}
{{- end -}}

{{/* The secret of the certificate with which Prometheus asks for metrics; empty for none. */}}
{{- define "march.prometheussecret" -}}
{{- if include "march.prometheusown" . -}}
{{ include "march.fullname" . }}-prometheus-tls
{{- else if .Values.monitoring.auth.certSecret -}}
{{ .Values.monitoring.auth.certSecret }}
{{- else if eq .Values.tls.clientAuth "required" -}}
{{- fail "monitoring: tls.clientAuth is required, and Prometheus has no certificate; set monitoring.auth.certSecret" -}}
{{- end -}}
{{- end -}}

{{/* A certificate. Given: root, name, manager (the values of cert-manager), hosts (a list) or user (a common name), client (whether it is of a client alone). */}}
{{- define "march.certificate" -}}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ .name }}-tls
  labels:
    {{- include "march.labels" .root | nindent 4 }}
spec:
  secretName: {{ .name }}-tls
  {{- with .user }}
  commonName: {{ . }}
  {{- end }}
  {{- with .hosts }}
  dnsNames:
    {{- range . }}
    - {{ . | quote }}
    {{- end }}
  {{- end }}
  {{- if .client }}
  usages: [client auth]
  {{- else }}
    - localhost
  ipAddresses: [127.0.0.1]
  usages: [server auth, client auth]
  {{- end }}
  duration: {{ .manager.duration }}
  renewBefore: {{ .manager.renewBefore }}
  privateKey:
    algorithm: ECDSA
    size: 256
    rotationPolicy: Always
  issuerRef:
    {{- toYaml .manager.issuerRef | nindent 4 }}
{{- end -}}

{{/* Given: a server. */}}
{{- define "march.mounts" -}}
- name: settings
  mountPath: /etc/march/settings
  readOnly: true
{{- if include "march.accessfiles" . }}
- name: access
  mountPath: /etc/march/access
  readOnly: true
{{- end }}
{{- if .root.Values.access.identities }}
- name: identities
  mountPath: /etc/march/identities
  readOnly: true
{{- end }}
{{- if include "march.tlssecret" . }}
- name: tls
  mountPath: /etc/march/tls
  readOnly: true
{{- end }}
{{- if include "march.etcdsecret" . }}
- name: etcd
  mountPath: /etc/march/etcd
  readOnly: true
{{- end }}
{{- if and .root.Values.etcd.user (not .values.etcdSecret) }}
- name: etcd-user
  mountPath: /etc/march/etcd-user
  readOnly: true
{{- end }}
{{- end -}}

{{/* Given: a server. */}}
{{- define "march.volumes" -}}
- name: settings
  configMap:
    name: {{ .name }}
{{- with include "march.accessfiles" . | fromYamlArray }}
- name: access
  projected:
    defaultMode: 0440
    sources:
      {{- range . }}
      - {{ .source }}: {name: {{ .name }}, items: [{key: {{ .key }}, path: {{ .key }}}]}
      {{- end }}
{{- end }}
{{- with .root.Values.access.identities }}
- name: identities
  projected:
    defaultMode: 0440
    sources:
      - configMap: {name: {{ . }}}
{{- end }}
{{- with include "march.tlssecret" . }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with include "march.etcdsecret" . }}
- name: etcd
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- if and .root.Values.etcd.user (not .values.etcdSecret) }}
- name: etcd-user
  secret:
    secretName: {{ .root.Values.etcd.passwordSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* Ways from outside to a server: an Ingress or a route of the Gateway API for each of its hosts. Given: a server. */}}
{{- define "march.routes" -}}
{{- $routes := .root.Values.routes }}
{{- range $protocol, $host := .values.hosts }}
{{- if and $host $routes.ingress.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ $.name }}-{{ $protocol }}
  labels:
    {{- include "march.labels" $.root | nindent 4 }}
  {{- with index $routes.ingress.annotations $protocol }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with $routes.ingress.className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with $routes.ingress.tlsSecret }}
  tls:
    - {hosts: [{{ $host }}], secretName: {{ . }}}
  {{- end }}
  rules:
    - host: {{ $host }}
      http:
        paths:
          - {path: /, pathType: Prefix, backend: {service: {name: {{ $.name }}, port: {name: {{ $protocol }}}}}}
{{- end }}
{{- if and $host $routes.gateway.parentRefs }}
---
apiVersion: gateway.networking.k8s.io/v1
kind: {{ upper $protocol }}Route
metadata:
  name: {{ $.name }}-{{ $protocol }}
  labels:
    {{- include "march.labels" $.root | nindent 4 }}
spec:
  parentRefs:
    {{- toYaml $routes.gateway.parentRefs | nindent 4 }}
  hostnames: [{{ $host }}]
  rules:
    - backendRefs: [{name: {{ $.name }}, port: {{ index $.ports $protocol }}}]
{{- end }}
{{- end }}
{{- end -}}

{{/* What a server may call, for its NetworkPolicy. Given: root, rooms (whether it calls rooms and consoles, too). */}}
{{- define "march.egress" -}}
{{- $e := .root.Values.networkPolicy.egress }}
{{- $oidc := .root.Values.access.oidc }}
{{- if not $e.etcd }}
{{- fail "networkPolicy.egress.etcd: no pods or addresses of etcd" }}
{{- else if and $oidc.issuer (not $oidc.jwks) (not $e.issuer) }}
{{- fail "networkPolicy.egress.issuer: no addresses of access.oidc.issuer" }}
{{- end }}
- to:
    {{- toYaml $e.dns | nindent 4 }}
  ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- to:
    {{- toYaml $e.etcd | nindent 4 }}
  ports:
    {{- $ports := list }}
    {{- range .root.Values.etcd.endpoints }}
    {{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default "2379") }}
    {{- end }}
    {{- range uniq $ports }}
    - {port: {{ . }}}
    {{- end }}
{{- with $e.issuer }}
- to:
    {{- toYaml . | nindent 4 }}
  ports:
    - {port: {{ regexFind ":[0-9]+$" (get (urlParse $oidc.issuer) "host") | trimPrefix ":" | default (ternary "80" "443" (hasPrefix "http:" $oidc.issuer)) }}}
{{- end }}
{{- if .rooms }}
- to:
    - podSelector:
        matchLabels:
          {{- include "march.selector" .root | nindent 10 }}
{{- end }}
{{- with $e.rules }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "march.podsecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "march.containersecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Probes by HTTP. A server is alive while it waits for etcd. Given: root, and name (of the server). */}}
{{- define "march.probes" -}}
# A node that is busy, or a large journal, may take a minute; then the other probes begin.
startupProbe:
  httpGet: {path: /livez, port: http, scheme: {{ ternary "HTTPS" "HTTP" (ne (include "march.tlssecret" .) "") }}}
  periodSeconds: 2
  failureThreshold: 60
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /livez, port: http, scheme: {{ ternary "HTTPS" "HTTP" (ne (include "march.tlssecret" .) "") }}}
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ ternary "HTTPS" "HTTP" (ne (include "march.tlssecret" .) "") }}}
  periodSeconds: 5
  failureThreshold: 2
  timeoutSeconds: 5
{{- end -}}

{{/* Where pods go. Given: with (the values), labels (of the pods to keep apart). */}}
{{- define "march.placement" -}}
{{- with .with.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .with.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .with.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .with.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
affinity:
{{- if .with.affinity }}
  {{- toYaml .with.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
  {{- if eq .with.antiAffinity "hard" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- .labels | nindent 12 }}
  {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- .labels | nindent 14 }}
  {{- end }}
{{- end }}
{{- end -}}
