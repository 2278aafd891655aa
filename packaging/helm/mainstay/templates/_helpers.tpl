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
{{ with .Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
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

{{- /* The service whose names lead to single observers. */ -}}
{{- define "mainstay.observers" -}}
{{ include "mainstay.name" . }}-observers
{{- end -}}

{{- /*
Name of the StatefulSet of a zone's observers. No two zones and no two releases have the same, and what Kubernetes makes of it for
pods and labels stays short enough.
*/ -}}
{{- define "mainstay.observersOf" -}}
{{- $name := include "mainstay.name" (index . 0) -}}
{{ $name | trunc 31 | trimSuffix "-" }}-observer-{{ printf "%s/%s" $name (index . 1) | sha256sum | trunc 8 }}
{{- end -}}

{{- /* Peer URLs of all members, by which an observer finds a feeder. */ -}}
{{- define "mainstay.feed" -}}
{{- $urls := list -}}
{{- range $i := until (int .Values.replicas) -}}
{{- $urls = append $urls (printf "%s://%s-%d.%s.%s.svc:2380" (include "mainstay.peerScheme" $) (include "mainstay.name" $) $i (include "mainstay.members" $) $.Release.Namespace) -}}
{{- end -}}
{{- join "," $urls -}}
{{- end -}}

{{- /* Not empty if extraFlags set the zone of the members. A member refuses a flag that is in its environment, too. */ -}}
{{- define "mainstay.hasZoneFlag" -}}
{{- range .Values.extraFlags -}}
{{- if or (eq . "--zone") (hasPrefix "--zone=" .) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Refuses observers that cannot be what the values ask for. */ -}}
{{- define "mainstay.checkZones" -}}
{{- $names := list -}}
{{- range (.Values.zones).observers -}}
{{- $names = append $names .zone -}}
{{- end -}}
{{- if ne (len $names) (len (uniq $names)) -}}
{{- fail (printf "zones.observers: a zone is there twice: %s. Give it more replicas instead." (join ", " $names)) -}}
{{- end -}}
{{- if and $names (not (.Values.zones).enabled) -}}
{{- fail "zones.observers: there are none without zones.enabled: true" -}}
{{- end -}}
{{- end -}}

{{- define "mainstay.initialCluster" -}}
{{- $members := list -}}
{{- range $i := until (int .Values.replicas) -}}
{{- $pod := printf "%s-%d" (include "mainstay.name" $) $i -}}
{{- $members = append $members (printf "%s=%s://%s.%s.%s.svc:2380" $pod (include "mainstay.peerScheme" $) $pod (include "mainstay.members" $) $.Release.Namespace) -}}
{{- end -}}
{{- join "," $members -}}
{{- end -}}

{{- /*
Whether a member without data may form a cluster. Members with data look at neither this nor the list of members. With another number
of members than the cluster was formed with, those without data would form a second one behind the same service; so they have to be
announced to the one that runs.
*/ -}}
{{- define "mainstay.initialState" -}}
{{ ternary "new" "existing" (eq (int .Values.replicas) (int .Values.formedWith)) }}
{{- end -}}

{{- /* Refuses numbers of members that would split a cluster, or take its majority away. */ -}}
{{- define "mainstay.checkSize" -}}
{{- $name := include "mainstay.name" . -}}
{{- $replicas := int .Values.replicas -}}
{{- $formed := int .Values.formedWith -}}
{{- if lt $replicas $formed -}}
{{- fail (printf "replicas: %d is less than formedWith: %d. For a new cluster both have to be the same. For one that runs, remove members by `etcdctl member remove`, then set formedWith: 0, replicas and removedTo." $replicas $formed) -}}
{{- end -}}
{{- /* One that is left over from a time before would let members go that nobody removed. */ -}}
{{- $removedTo := int .Values.removedTo -}}
{{- if not (has $removedTo (list 0 $replicas)) -}}
{{- fail (printf "removedTo: %d is not replicas: %d. Set it to 0, or after `etcdctl member remove` to what is left." $removedTo $replicas) -}}
{{- end -}}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if $set -}}
{{- $running := int (dig "spec" "replicas" 0 $set) -}}
{{- /* Sets without the annotation are of charts whose replicas was this number. */ -}}
{{- $before := int (dig "metadata" "annotations" "mainstay/formed-with" $running $set) -}}
{{- if and (ne $formed $before) (ne $formed 0) -}}
{{- fail (printf "formedWith: %d: the cluster that runs has formedWith: %d. Leave it so, or set 0, and change replicas only." $formed $before) -}}
{{- end -}}
{{- if and (lt $replicas $running) (ne $replicas $removedTo) -}}
{{- fail (printf "replicas: %d: %d members run. Remove those with the highest numbers by `etcdctl member remove` first, then set removedTo: %d as well." $replicas $running $replicas) -}}
{{- end -}}
{{- else if eq $replicas $formed -}}
{{- /* Claims outlive a release: some with data and some without would be two clusters. */ -}}
{{- $there := list -}}
{{- range $i := until $replicas -}}
{{- if lookup "v1" "PersistentVolumeClaim" $.Release.Namespace (printf "data-%s-%d" $name $i) -}}
{{- $there = append $there (printf "data-%s-%d" $name $i) -}}
{{- end -}}
{{- end -}}
{{- if and $there (ne (len $there) $replicas) -}}
{{- fail (printf "formedWith: %d: there are claims of an earlier release, and not for each member: %s. Set formedWith and replicas to what that release had, or delete the claims with their data." $formed (join ", " $there)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Environment of etcdctl in jobs: where the cluster is, and who asks. */ -}}
{{- define "mainstay.clientEnv" -}}
{{ include "mainstay.connectionEnv" . }}
{{- if (.Values.auth).enabled }}
- name: ETCDCTL_USER
  value: root
- name: ETCDCTL_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.auth.rootSecretName }}
      key: password
{{- end }}
{{- end -}}

{{- /* Refuses users who cannot be made. */ -}}
{{- define "mainstay.checkUsers" -}}
{{- with .Values.auth -}}
{{- if and .enabled (not .rootSecretName) -}}
{{- fail "auth.rootSecretName: a secret with the password of root is needed" -}}
{{- end -}}
{{- $roles := list "root" -}}
{{- range .roles -}}{{- $roles = append $roles .name -}}{{- end -}}
{{- range $user := .users -}}
{{- if eq $user.name "root" -}}{{- fail "auth.users: root is made anyway" -}}{{- end -}}
{{- range $user.roles -}}
{{- if not (has . $roles) -}}{{- fail (printf "auth.users: %s has the role %s, which is none of auth.roles" $user.name .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (.Values.continuousBackup).enabled (not .Values.continuousBackup.to) -}}
{{- fail "continuousBackup.to: a bucket is needed" -}}
{{- end -}}
{{- end -}}

{{- /* Flags of automatic compaction, unless extraFlags have them: a flag may be given once. */ -}}
{{- define "mainstay.compaction" -}}
{{- $given := join " " .Values.extraFlags -}}
{{- with .Values.autoCompaction -}}
{{- if not (contains "--auto-compaction-" $given) }}
- --auto-compaction-mode={{ .mode }}
- --auto-compaction-retention={{ .retention }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Environment of etcdctl in jobs without a user. */ -}}
{{- define "mainstay.connectionEnv" -}}
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
