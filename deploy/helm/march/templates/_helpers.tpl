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

{{/* The file of settings. Given: lists of maps; later ones win. */}}
{{- define "march.settings" -}}
{{- $all := dict -}}
{{- range . -}}
{{- range $name, $value := . -}}
{{- $_ := set $all $name $value -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := $all }}
{{ $name }}: {{ include "march.value" $value }}
{{- else }}
{}
{{- end -}}
{{- end -}}

{{/* The secret of a server's certificate for etcd; empty for none. Given: root, and own (the secret of this room or of the consoles; it may be empty). */}}
{{- define "march.etcdsecret" -}}
{{- if .own -}}
{{ .own }}
{{- else if .root.Values.etcd.certManager.enabled -}}
{{ include "march.fullname" .root }}-etcd-client
{{- else -}}
{{ .root.Values.etcd.tlsSecret }}
{{- end -}}
{{- end -}}

{{- define "march.etcdargs" -}}
- --etcd={{ join "," .root.Values.etcd.endpoints }}
{{- if include "march.etcdsecret" . }}
- --etcd-ca=/etc/march/etcd/ca.crt
- --etcd-cert=/etc/march/etcd/tls.crt
- --etcd-key=/etc/march/etcd/tls.key
{{- end }}
{{- if and .root.Values.etcd.user (not .own) }}
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

{{/* A certificate of a server, or of a client alone. Given: root, name (of the server or client), hosts (a list), client. */}}
{{- define "march.certificate" -}}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ .name }}-tls
  labels:
    {{- include "march.labels" .root | nindent 4 }}
spec:
  secretName: {{ .name }}-tls
  dnsNames:
    {{- range .hosts }}
    - {{ . | quote }}
    {{- end }}
  {{- if .client }}
  usages: [client auth]
  {{- else }}
    - localhost
  ipAddresses: [127.0.0.1]
  usages: [server auth, client auth]
  {{- end }}
  duration: {{ .root.Values.tls.certManager.duration }}
  renewBefore: {{ .root.Values.tls.certManager.renewBefore }}
  privateKey:
    algorithm: ECDSA
    size: 256
    rotationPolicy: Always
  issuerRef:
    {{- toYaml .root.Values.tls.certManager.issuerRef | nindent 4 }}
{{- end -}}

{{/* Given: root, name (of the server), and own as for march.etcdsecret. */}}
{{- define "march.mounts" -}}
- name: settings
  mountPath: /etc/march/settings
  readOnly: true
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
{{- if and .root.Values.etcd.user (not .own) }}
- name: etcd-user
  mountPath: /etc/march/etcd-user
  readOnly: true
{{- end }}
{{- end -}}

{{/* Given: root, the settings' ConfigMap, and own as for march.etcdsecret. */}}
{{- define "march.volumes" -}}
- name: settings
  configMap:
    name: {{ .settings }}
{{- with include "march.tlssecret" (dict "root" .root "name" .settings) }}
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
{{- if and .root.Values.etcd.user (not .own) }}
- name: etcd-user
  secret:
    secretName: {{ .root.Values.etcd.passwordSecret }}
    defaultMode: 0440
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
