{{- define "fluxmq.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}{{ $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}{{ end }}{{ end }}
{{- end }}

{{- define "fluxmq.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fluxmq.labels" -}}
{{ include "fluxmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "fluxmq.headless" -}}
{{ include "fluxmq.fullname" . }}-nodes
{{- end }}

{{/* The name of a node in DNS: of (dict "root" $ "node" name). */}}
{{- define "fluxmq.host" -}}
{{ .node }}.{{ include "fluxmq.headless" .root }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.cluster.domain }}
{{- end }}

{{- define "fluxmq.userSecret" -}}
{{ default (printf "%s-user" (include "fluxmq.fullname" .)) .Values.auth.existingSecret }}
{{- end }}

{{/* The Secret with the certificate between nodes; empty without TLS. */}}
{{- define "fluxmq.clusterSecret" -}}
{{- if .Values.cluster.tls.existingSecret }}{{ .Values.cluster.tls.existingSecret }}
{{- else if .Values.cluster.tls.issuerRef }}{{ include "fluxmq.fullname" . }}-cluster-tls{{ end }}
{{- end }}

{{/* Ports for clients, by name, as YAML. */}}
{{- define "fluxmq.ports" -}}
{{- with .Values.listeners }}
{{- if .mqtt }}
mqtt: 1883
{{- end }}
{{- if .websocket }}
websocket: 8083
{{- end }}
{{- if .amqp }}
amqp: 5672
{{- end }}
{{- if .management }}
management: 15672
{{- end }}
{{- if $.Values.tls.existingSecret }}
{{- if .mqtt }}
mqtts: 8883
{{- end }}
{{- if .amqp }}
amqps: 5671
{{- end }}
{{- if .management }}
management-tls: 15671
{{- end }}
{{- end }}
{{- end }}
metrics: 15692
{{- end }}

{{/* The settings of a node that no other has: of (dict "root" $ "node" name "nodes" names "join" boolean). One that
joins names no others. */}}
{{- define "fluxmq.clusterSettings" -}}
{{- $root := .root }}
{{- $node := .node }}
{{- $secret := include "fluxmq.clusterSecret" $root }}
{{- $scheme := ternary "https" "http" (ne $secret "") }}
enabled: true
node_id: {{ $node }}
{{- if .join }}
join: true
{{- end }}
transport:
  bind_addr: ":7948"
  {{- if not .join }}
  peers:
    {{- range .nodes }}{{ if ne . $node }}
    {{ . }}: "{{ include "fluxmq.host" (dict "root" $root "node" .) }}:7948"
    {{- end }}{{ end }}
  {{- end }}
  {{- if $secret }}
  tls_enabled: true
  tls_cert_file: /etc/fluxmq/cluster-tls/tls.crt
  tls_key_file: /etc/fluxmq/cluster-tls/tls.key
  tls_ca_file: /etc/fluxmq/cluster-tls/ca.crt
  {{- else }}
  allow_plaintext: true
  {{- end }}
etcd:
  bind_addr: ":2380"
  client_addr: "127.0.0.1:2379"
  {{- if not .join }}
  initial_cluster: "{{ range $index, $each := .nodes }}{{ if $index }},{{ end }}{{ $each }}={{ $scheme }}://{{ include "fluxmq.host" (dict "root" $root "node" $each) }}:2380{{ end }}"
  {{- end }}
raft:
  enabled: true
  bind_addr: ":7100"
  {{- if not .join }}
  peers:
    {{- range .nodes }}{{ if ne . $node }}
    {{ . }}: "{{ include "fluxmq.host" (dict "root" $root "node" .) }}:7100"
    {{- end }}{{ end }}
  {{- end }}
  replication_factor: {{ len .nodes }}
{{- end }}

{{/* The settings file of a node: of (dict "root" $ "node" name "nodes" names "join" boolean). "nodes" are those with
which the cluster began. */}}
{{- define "fluxmq.settings" -}}
{{- $values := .root.Values }}
{{- $listeners := $values.listeners }}
{{- $tls := dict "cert_file" "/etc/fluxmq/tls/tls.crt" "key_file" "/etc/fluxmq/tls/tls.key" }}
{{- $secure := ne $values.tls.existingSecret "" }}
{{- $mqtt := dict }}
{{- $server := dict "shutdown_timeout" (printf "%ds" (int $values.shutdownSeconds)) }}
{{- if $listeners.mqtt }}{{ $_ := set $mqtt "tcp" (dict "addr" ":1883") }}{{ end }}
{{- if $listeners.websocket }}{{ $_ := set $mqtt "websocket" (dict "addr" ":8083") }}{{ end }}
{{- if and $secure $listeners.mqtt }}{{ $_ := set $mqtt "tls" (merge (dict "addr" ":8883") $tls) }}{{ end }}
{{- if $mqtt }}{{ $_ := set $server "mqtt" $mqtt }}{{ end }}
{{- if $listeners.amqp }}
{{- $amqp := dict "tcp" (dict "addr" ":5672") }}
{{- if $secure }}{{ $_ := set $amqp "tls" (merge (dict "addr" ":5671") $tls) }}{{ end }}
{{- $_ := set $server "amqp" $amqp }}
{{- end }}
{{- if $listeners.management }}
{{- $_ := set $server "http" (dict "addr" ":15672") }}
{{- if $secure }}{{ $_ := set $server "https" (merge (dict "addr" ":15671") $tls) }}{{ end }}
{{- end }}
{{- $_ := set $server "metrics" (dict "addr" ":15692" "without_password" true) }}
{{- $base := dict "server" $server }}
{{- $_ := set $base "auth" (dict "anonymous" (dict "allow" "never")) }}
{{- $_ := set $base "storage" (dict "data_dir" "/var/lib/fluxmq/data") }}
{{- if gt (len .nodes) 1 }}
{{- $_ := set $base "cluster" (include "fluxmq.clusterSettings" . | fromYaml) }}
{{- end }}
{{- mergeOverwrite $base (deepCopy $values.settings) | toYaml }}
{{- end }}

{{/* Names of the nodes with which the cluster began, separated by commas. */}}
{{- define "fluxmq.firstNodes" -}}
{{- $names := list }}
{{- range until (int (default .Values.replicas .Values.cluster.initialNodes)) }}{{ $names = append $names (printf "%s-%d" (include "fluxmq.fullname" $) .) }}{{ end }}
{{- join "," $names }}
{{- end }}

{{/* A hash of the settings: of all files, or if the cluster may grow, of what does not change when it does. */}}
{{- define "fluxmq.settingsHash" -}}
{{- if .Values.cluster.initialNodes }}
{{- $first := splitList "," (include "fluxmq.firstNodes" .) }}
{{- $one := include "fluxmq.settings" (dict "root" $ "node" (first $first) "nodes" $first "join" false) }}
{{- $other := include "fluxmq.settings" (dict "root" $ "node" "other" "nodes" $first "join" true) }}
{{- print $one $other | sha256sum }}
{{- else }}
{{- include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
{{- end }}
{{- end }}

{{/* Names of the nodes, separated by commas. */}}
{{- define "fluxmq.nodes" -}}
{{- $names := list }}
{{- range until (int .Values.replicas) }}{{ $names = append $names (printf "%s-%d" (include "fluxmq.fullname" $) .) }}{{ end }}
{{- join "," $names }}
{{- end }}
