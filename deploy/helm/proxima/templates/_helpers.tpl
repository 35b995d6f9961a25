{{- define "proxima.presets" -}}
{{ .Files.Get "files/presets.yaml" }}
{{- end -}}

{{- /* What the preset installs, as YAML. */ -}}
{{- define "proxima.preset" -}}
{{ toYaml (index (include "proxima.presets" . | fromYaml) .Values.preset) }}
{{- end -}}

{{- define "proxima.labels" -}}
app.kubernetes.io/name: proxima
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "proxima.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "proxima.sidecarImage" -}}
{{- if .Values.sidecar.image.digest -}}
{{ .Values.sidecar.image.repository }}@{{ .Values.sidecar.image.digest }}
{{- else -}}
{{ .Values.sidecar.image.repository }}:{{ default .Chart.AppVersion .Values.sidecar.image.tag }}
{{- end -}}
{{- end -}}

{{- /* Mistakes that the schema cannot say. */ -}}
{{- define "proxima.check" -}}
{{- $preset := include "proxima.preset" . | fromYaml -}}
{{- if and $preset.agent (not .Values.apiServer) -}}
{{- fail (printf "apiServer: preset %s needs the address of the cluster's API server that is not a virtual IP: --set apiServer=https://ADDRESS:6443" .Values.preset) -}}
{{- end -}}
{{- if and $preset.full (ne .Release.Namespace "proxima-system") -}}
{{- fail (printf "namespace %s: Proxima's own objects are in proxima-system: --namespace proxima-system" .Release.Namespace) -}}
{{- end -}}
{{- if and .Values.aggregatedAPI.enabled (not .Values.webhook.enabled) -}}
{{- fail "aggregatedAPI.enabled: it has the certificate of the webhook: --set webhook.enabled=true" -}}
{{- end -}}
{{- if and .Values.aggregatedAPI.agents (not .Values.aggregatedAPI.enabled) -}}
{{- fail "aggregatedAPI.agents: agents join by the aggregated API, which is off: --set aggregatedAPI.enabled=true" -}}
{{- end -}}
{{- if .Values.sidecar.enabled -}}
{{- if not $preset.agent -}}
{{- fail (printf "sidecar.enabled: preset %s has no agents, which lead connections to sidecars: --set preset=kube-proxy-replacement, or zone" .Values.preset) -}}
{{- end -}}
{{- if not .Values.webhook.enabled -}}
{{- fail "sidecar.enabled: they are added by a webhook: --set webhook.enabled=true" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.feed.offload (not .Values.feed.persistence.enabled) -}}
{{- fail "feed.offload: it goes with volumes that outlive pods: --set feed.persistence.enabled=true" -}}
{{- end -}}
{{- if and .Values.feed.persistence.enabled (not .Values.feed.enabled) -}}
{{- fail "feed.persistence.enabled: the feed is off: --set feed.enabled=true" -}}
{{- end -}}
{{- if .Values.registries.enabled -}}
{{- if not $preset.agent -}}
{{- fail (printf "registries.enabled: preset %s serves no clients of registries: --set preset=kube-proxy-replacement, or zone" .Values.preset) -}}
{{- end -}}
{{- if not (or .Values.registries.nacos .Values.registries.eureka) -}}
{{- fail "registries.enabled: no protocol is on: --set registries.nacos=true, or registries.eureka=true" -}}
{{- end -}}
{{- end -}}
{{- range $role := list "ingress" "egress" -}}
{{- if and (eq (index $.Values $role).engine "envoy") (not $.Values.sidecar.enabled) -}}
{{- fail (printf "%s.engine: an Envoy has its configuration from what serves sidecars: --set sidecar.enabled=true" $role) -}}
{{- end -}}
{{- end -}}
{{- if eq $preset.role "zone" -}}
{{- if not .Values.zone.name -}}
{{- fail "zone.name: preset zone needs the name of the zone: --set zone.name=NAME" -}}
{{- end -}}
{{- if not .Values.zone.global -}}
{{- fail "zone.global: preset zone needs the address of the global control plane: --set zone.global=HOST:PORT" -}}
{{- end -}}
{{- end -}}
{{- end -}}
