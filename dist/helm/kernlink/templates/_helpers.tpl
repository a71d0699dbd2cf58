{{/* The name of all objects. */}}
{{- define "kernlink.name" -}}
kernlink-agent
{{- end }}

{{/* Labels of all objects. Not of pods, which would restart with each version of the chart. */}}
{{- define "kernlink.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "kernlink.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Refuses what the schema cannot. */}}
{{- define "kernlink.check" -}}
{{- $configuration := .Values.configuration -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is missing; valid: the name of an image of kernlink-agent, such as registry.example.org/kernlink-agent" -}}
{{- end -}}
{{- if $configuration.create -}}
{{- if not $configuration.apiServer -}}
{{- fail "configuration.apiServer is missing, which configuration.create needs; valid: a URL that the nodes reach without Services, such as https://192.0.2.1:6443" -}}
{{- end -}}
{{- else -}}
{{- if or $configuration.fields $configuration.apiServer -}}
{{- fail "configuration.fields and configuration.apiServer are for configuration.create=true; valid without it: configuration.existingConfigMap only" -}}
{{- end -}}
{{- if not $configuration.existingConfigMap -}}
{{- fail "configuration.existingConfigMap is empty; valid: the name of a ConfigMap, or configuration.create=true" -}}
{{- end -}}
{{- if and (eq $configuration.existingConfigMap "kube-proxy") (ne .Release.Namespace "kube-system") -}}
{{- fail (printf "configuration.existingConfigMap: kube-proxy is in the namespace kube-system, and the release in %s; valid: --namespace kube-system, the name of a ConfigMap of this namespace, or configuration.create=true" .Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- if .Values.podMonitor.enabled -}}
{{- $address := include "kernlink.metricsAddress" . -}}
{{- if or (not $address) (eq $address "none") (hasPrefix "127." $address) (hasPrefix "[::1]" $address) -}}
{{- fail (printf "podMonitor.enabled: Prometheus does not reach a metrics server at `%s`; valid for metrics.bindAddress: an address that is not loopback, such as 0.0.0.0:10249" (default "127.0.0.1:10249" $address)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* ADDRESS:PORT of the metrics server. Empty if only the existing ConfigMap may have it. */}}
{{- define "kernlink.metricsAddress" -}}
{{- $address := .Values.metrics.bindAddress | default .Values.configuration.fields.metricsBindAddress | default "" -}}
{{- include "kernlink.withPort" (list $address "10249") -}}
{{- end }}

{{/* ADDRESS:PORT of the health server. Empty if only the existing ConfigMap may have it. */}}
{{- define "kernlink.healthzAddress" -}}
{{- $address := .Values.healthz.bindAddress | default .Values.configuration.fields.healthzBindAddress | default "" -}}
{{- include "kernlink.withPort" (list $address "10256") -}}
{{- end }}

{{/* ADDRESS:PORT of an address, which may have a port, and the default port. */}}
{{- define "kernlink.withPort" -}}
{{- $address := first . -}}
{{- if regexMatch "^[0-9.]+$" $address -}}
{{- printf "%s:%s" $address (last .) -}}
{{- else if regexMatch "^[0-9A-Fa-f]*:.*:" $address -}}
{{- printf "[%s]:%s" $address (last .) -}}
{{- else -}}
{{- $address -}}
{{- end -}}
{{- end }}

{{/* The port of ADDRESS:PORT. */}}
{{- define "kernlink.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end }}

{{/* The image. */}}
{{- define "kernlink.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* The name of the ConfigMap. */}}
{{- define "kernlink.configMap" -}}
{{- if .Values.configuration.create }}{{ include "kernlink.name" . }}{{ else }}{{ .Values.configuration.existingConfigMap }}{{ end -}}
{{- end }}

{{/* The files of a ConfigMap of the chart. */}}
{{- define "kernlink.configuration" -}}
{{- $type := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration" -}}
config.conf: |
  {{- merge $type .Values.configuration.fields | toYaml | nindent 2 }}
kubeconfig.conf: |
  apiVersion: v1
  kind: Config
  clusters:
    - name: default
      cluster:
        server: {{ .Values.configuration.apiServer | quote }}
        certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
  users:
    - name: default
      user:
        tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
  contexts:
    - name: default
      context: {cluster: default, user: default}
  current-context: default
{{- end }}

{{/* A hash of the configuration, which restarts the agents if it changes. Empty if the ConfigMap cannot be read, as in `helm template`. */}}
{{- define "kernlink.checksum" -}}
{{- if .Values.configuration.create -}}
{{- include "kernlink.configuration" . | sha256sum -}}
{{- else -}}
{{- with lookup "v1" "ConfigMap" .Release.Namespace .Values.configuration.existingConfigMap -}}
{{- .data | toJson | sha256sum -}}
{{- end -}}
{{- end -}}
{{- end }}
