{{/* Names and labels that several templates share. */}}

{{- define "bulkhead.name" -}}
{{- if contains "bulkhead" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-bulkhead" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "bulkhead.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: bulkhead
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: bulkhead
{{- end }}

{{/* The labels that pick the operator's pods. */}}
{{- define "bulkhead.operator" -}}
app.kubernetes.io/name: bulkhead
app.kubernetes.io/instance: {{ .Release.Name }}
bulkhead.dev/component: operator
{{- end }}

{{/* The labels that pick the routers' pods: not the Router's name, since what a StatefulSet selects by can never change. */}}
{{- define "bulkhead.router" -}}
app.kubernetes.io/name: bulkhead
app.kubernetes.io/instance: {{ .Release.Name }}
bulkhead.dev/component: router
{{- end }}

{{/* Names of the Secrets that routers look for certificates in, as a YAML list: those of the values, then those that cellTls and
     listeners name. */}}
{{- define "bulkhead.tlsSecrets" -}}
{{- $secrets := .Values.router.tlsSecrets }}
{{- with .Values.router.cellTls }}
{{- $secrets = append $secrets .caSecret }}
{{- with .certificateSecret }}{{- $secrets = append $secrets . }}{{- end }}
{{- end }}
{{- range .Values.router.listeners }}
{{- with .tls }}
{{- range .certificates }}{{- $secrets = append $secrets .secret }}{{- end }}
{{- with .clientAuthority }}{{- $secrets = append $secrets .secret }}{{- end }}
{{- end }}
{{- end }}
{{- uniq $secrets | toYaml }}
{{- end }}

{{/* An image's full name; takes (list $ IMAGE). */}}
{{- define "bulkhead.image" -}}
{{- $root := index . 0 }}{{- $image := index . 1 -}}
{{ trimSuffix "/" $root.Values.image.registry }}/{{ $image.repository }}:{{ $image.tag | default $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{/* What every pod of this chart has in common. */}}
{{- define "bulkhead.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "bulkhead.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* A duration such as 1m30s in milliseconds. */}}
{{- define "bulkhead.millis" -}}
{{- $units := dict "h" 3600000 "m" 60000 "s" 1000 "ms" 1 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|h|m|s)" . -1 -}}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | atoi) (get $units (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{ $sum }}
{{- end }}

{{/* A quantity such as 1.5Gi as a number, to compare it: Kubernetes says 1Gi for 1024Mi. */}}
{{- define "bulkhead.quantity" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{ mulf (regexFind "^[0-9.]+" .) (get $units (regexFind "[A-Za-z]*$" .)) }}
{{- end }}

{{/* Seconds between SIGTERM and SIGKILL of a router: the delay, the drain, and 10 seconds in which it ends what did not end. */}}
{{- define "bulkhead.routerGrace" -}}
{{- $router := .Values.router -}}
{{- $drain := add (include "bulkhead.millis" $router.drainDelay | atoi) (include "bulkhead.millis" $router.drainTimeout | atoi) -}}
{{- $least := add 10 (div (add $drain 999) 1000) -}}
{{- $given := int $router.terminationGracePeriodSeconds -}}
{{- if and $given (lt $given (int $least)) -}}
{{- fail (printf "router.terminationGracePeriodSeconds is %d, but drainDelay %s and drainTimeout %s need %d: transactions would be cut off; leave it out or raise it" $given $router.drainDelay $router.drainTimeout (int $least)) -}}
{{- end -}}
{{ $given | default (add $least 5) }}
{{- end }}

{{/* Keep pods apart where the cluster is large enough; takes (list $ SELECTOR). */}}
{{- define "bulkhead.spread" -}}
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include (index $ 1) (index $ 0) | nindent 6 }}
{{- end }}
{{- end }}

{{/* Egress to the API server, as a NetworkPolicy rule. */}}
{{- define "bulkhead.apiServer" -}}
- ports:
  {{- range .Values.apiServer.ports }}
  - {port: {{ int . }}, protocol: TCP}
  {{- end }}
  {{- with .Values.apiServer.cidrs }}
  to:
  {{- range . }}
  - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
  {{- end }}
{{- end }}
