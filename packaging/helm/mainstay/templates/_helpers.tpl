{{- /* Name of all objects: the release's, with the chart's unless it is in it. 40 characters leave space for suffixes. */ -}}
{{- define "mainstay.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mainstay.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mainstay.labels" -}}
{{ include "mainstay.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "mainstay.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "mainstay.account" -}}
{{ .Values.serviceAccount.name | default (include "mainstay.name" .) }}
{{- end -}}

{{- define "mainstay.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.client.secretName "") }}
{{- end -}}

{{- define "mainstay.peerScheme" -}}
{{ ternary "https" "http" (ne .Values.tls.peer.secretName "") }}
{{- end -}}

{{- /* The service whose names lead to single members. */ -}}
{{- define "mainstay.members" -}}
{{ include "mainstay.name" . }}-members
{{- end -}}

{{- define "mainstay.initialCluster" -}}
{{- $members := list -}}
{{- range $i := until (int .Values.replicas) -}}
{{- $pod := printf "%s-%d" (include "mainstay.name" $) $i -}}
{{- $members = append $members (printf "%s=%s://%s.%s.%s.svc:2380" $pod (include "mainstay.peerScheme" $) $pod (include "mainstay.members" $) $.Release.Namespace) -}}
{{- end -}}
{{- join "," $members -}}
{{- end -}}

{{- /* Environment of etcdctl in jobs. */ -}}
{{- define "mainstay.clientEnv" -}}
- name: ETCDCTL_ENDPOINTS
  value: {{ include "mainstay.scheme" . }}://{{ include "mainstay.name" . }}.{{ .Release.Namespace }}.svc:2379
{{- if .Values.tls.client.secretName }}
- name: ETCDCTL_CACERT
  value: /tls/ca.crt
- name: ETCDCTL_CERT
  value: /tls/tls.crt
- name: ETCDCTL_KEY
  value: /tls/tls.key
{{- end }}
{{- end -}}

{{- define "mainstay.clientVolume" -}}
{{- if .Values.tls.client.secretName }}
- name: tls
  secret:
    secretName: {{ required "tls.client.clientSecretName: a client's certificate is needed" .Values.tls.client.clientSecretName }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "mainstay.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "mainstay.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
