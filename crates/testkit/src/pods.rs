//! Values like those that kube-apiserver stores for pods: repeated names of fields, labels and managed fields,
//! which compress well, and identifiers, hashes and times, which do not.

use std::fmt::Write as _;

use stdx::Random;

const IMAGES: [&str; 6] = ["nginx", "redis", "postgres", "envoy", "prometheus", "busybox"];

/// Returns the key of the pod with this number.
pub fn pod_key(number: u64) -> String {
    format!("/registry/pods/namespace-{}/web-{number:08}", number % 17)
}

/// Returns the pod with this number, as JSON of roughly `bytes` bytes, at least some 2 KB. The contents follow
/// from the number and `salt`, for which different numbers stand for different states of the pod.
pub fn pod(number: u64, salt: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(number << 20 ^ salt);
    let mut hex = |digits: usize| -> String {
        (0..digits).map(|_| char::from(b"0123456789abcdef"[random.below(16) as usize])).collect()
    };
    let mut out = String::with_capacity(bytes + 4096);
    let (uid, node, namespace) = (hex(32), number % 97, number % 17);
    let image = IMAGES[(number % 6) as usize];
    let _ = write!(
        out,
        "{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"web-{number:08}\",\"generateName\":\"web-\",\
         \"namespace\":\"namespace-{namespace}\",\"uid\":\"{uid}\",\"creationTimestamp\":\"2026-11-{:02}T{:02}:{:02}:\
         {:02}Z\",\"labels\":{{\"app\":\"web\",\"app.kubernetes.io/name\":\"{image}\",\"pod-template-hash\":\"{}\",\
         \"tier\":\"frontend\"}},\"annotations\":{{\"checksum/config\":\"{}\",\"kubernetes.io/config.source\":\"api\"}},\
         \"ownerReferences\":[{{\"apiVersion\":\"apps/v1\",\"kind\":\"ReplicaSet\",\"name\":\"web-{}\",\"uid\":\"{}\",\
         \"controller\":true,\"blockOwnerDeletion\":true}}]}},\"spec\":{{\"nodeName\":\"node-{node:03}\",\
         \"serviceAccountName\":\"default\",\"restartPolicy\":\"Always\",\"dnsPolicy\":\"ClusterFirst\",\
         \"tolerations\":[{{\"key\":\"node.kubernetes.io/not-ready\",\"operator\":\"Exists\",\"effect\":\"NoExecute\",\
         \"tolerationSeconds\":300}},{{\"key\":\"node.kubernetes.io/unreachable\",\"operator\":\"Exists\",\
         \"effect\":\"NoExecute\",\"tolerationSeconds\":300}}],\"containers\":[",
        1 + number % 28,
        number % 24,
        number % 60,
        salt % 60,
        hex(10),
        hex(64),
        hex(10),
        hex(32),
    );
    for container in 0.. {
        if container > 0 {
            out.push(',');
        }
        let _ = write!(
            out,
            "{{\"name\":\"{image}-{container}\",\"image\":\"registry.example.com/platform/{image}@sha256:{}\",\
             \"ports\":[{{\"containerPort\":{},\"protocol\":\"TCP\"}}],\"resources\":{{\"limits\":{{\"cpu\":\"{}m\",\
             \"memory\":\"{}Mi\"}},\"requests\":{{\"cpu\":\"100m\",\"memory\":\"128Mi\"}}}},\"volumeMounts\":[{{\
             \"name\":\"kube-api-access-{}\",\"readOnly\":true,\"mountPath\":\
             \"/var/run/secrets/kubernetes.io/serviceaccount\"}}],\"livenessProbe\":{{\"httpGet\":{{\"path\":\
             \"/healthz\",\"port\":8080,\"scheme\":\"HTTP\"}},\"timeoutSeconds\":1,\"periodSeconds\":10,\
             \"successThreshold\":1,\"failureThreshold\":3}},\"terminationMessagePath\":\"/dev/termination-log\",\
             \"terminationMessagePolicy\":\"File\",\"imagePullPolicy\":\"IfNotPresent\",\"env\":[{{\"name\":\
             \"POD_IP\",\"valueFrom\":{{\"fieldRef\":{{\"apiVersion\":\"v1\",\"fieldPath\":\"status.podIP\"}}}}}},\
             {{\"name\":\"SHARD_{container}\",\"value\":\"{}\"}}]}}",
            hex(64),
            8000 + number % 100,
            100 + number % 900,
            128 + number % 512,
            hex(5),
            hex(12),
        );
        if out.len() >= bytes.saturating_sub(700) {
            break;
        }
    }
    let _ = write!(
        out,
        "]}},\"status\":{{\"phase\":\"Running\",\"conditions\":[{{\"type\":\"Ready\",\"status\":\"True\",\
         \"lastTransitionTime\":\"2026-11-30T{:02}:{:02}:00Z\"}},{{\"type\":\"PodScheduled\",\"status\":\"True\"}}],\
         \"hostIP\":\"10.0.{node}.1\",\"podIP\":\"10.{}.{}.{}\",\"containerStatuses\":[{{\"containerID\":\
         \"containerd://{}\",\"ready\":true,\"restartCount\":{},\"started\":true}}],\"qosClass\":\"Burstable\"}}}}",
        salt % 24,
        number % 60,
        number % 251,
        number % 241,
        salt % 239,
        hex(64),
        salt % 5,
    );
    out.into_bytes()
}
