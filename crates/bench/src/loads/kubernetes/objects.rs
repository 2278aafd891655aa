//! Makes keys and values like those that kube-apiserver stores: protobuf objects in its envelope, with the
//! repeated names, labels and managed fields that make real objects compressible, and the identifiers and
//! hashes that do not compress.

use std::io::Write as _;

use stdx::Random;

use crate::loadgen::wire::Message;

/// Number of bytes at the end of each value that hold the time at which its write was due.
pub const STAMP_BYTES: usize = 16;

const NUMBER: &[u8] = b"{number}";
const NODE: &[u8] = b"{node..}";
const UID: &[u8] = b"{uid...............................}";
const HASH: &[u8] = b"{hash..........................................................}";

const _: () = assert!(NUMBER.len() == 8 && NODE.len() == 8 && UID.len() == 36 && HASH.len() == 64);

/// What is written over a mark in a template.
#[derive(Clone, Copy, Debug)]
enum Mark {
    /// The object's number, in eight digits.
    Number,
    /// The number of the object's node, in eight digits.
    Node,
    /// A UUID, which depends on the object.
    Uid,
    /// A hash of 64 hexadecimal digits, which depends on the object and the place of the mark.
    Hash,
}

/// An object with marks at the places that differ from object to object. Copying it and writing over the
/// marks costs a fraction of encoding an object.
#[derive(Clone, Debug)]
struct Template {
    bytes: Vec<u8>,
    marks: Vec<(usize, Mark)>,
}

impl Template {
    fn new(bytes: Vec<u8>) -> Self {
        let mut marks = Vec::new();
        let known: [(&[u8], Mark); 4] =
            [(NUMBER, Mark::Number), (NODE, Mark::Node), (UID, Mark::Uid), (HASH, Mark::Hash)];
        for at in 0..bytes.len() {
            if bytes[at] == b'{' {
                marks.extend(
                    known.iter().filter(|(text, _)| bytes[at..].starts_with(text)).map(|(_, m)| (at, *m)),
                );
            }
        }
        Self { bytes, marks }
    }

    /// Writes the object with this number, on this node, into `out`, which it replaces.
    fn write(&self, number: u64, node: u64, salt: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.bytes);
        let mut random = Random::new(number.wrapping_mul(0x9e37_79b9) ^ salt);
        for (at, mark) in &self.marks {
            match mark {
                Mark::Number => digits(&mut out[*at..*at + NUMBER.len()], number),
                Mark::Node => digits(&mut out[*at..*at + NODE.len()], node),
                Mark::Uid => {
                    let text = &mut out[*at..*at + UID.len()];
                    hex(&mut text[..16], random.number());
                    hex(&mut text[16..32], random.number());
                    hex(&mut text[32..], random.number());
                    for dash in [8, 13, 18, 23] {
                        text[dash] = b'-';
                    }
                }
                Mark::Hash => {
                    for part in out[*at..*at + HASH.len()].chunks_mut(16) {
                        hex(part, random.number());
                    }
                }
            }
        }
    }
}

fn digits(out: &mut [u8], mut number: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn hex(out: &mut [u8], mut number: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// Reads the time at which the write of a value was due, in microseconds; `None` if the value has none.
pub fn stamp(value: &[u8]) -> Option<u64> {
    let text = value.get(value.len().checked_sub(STAMP_BYTES)?..)?;
    let mut number = 0;
    for digit in text {
        number = number << 4 | u64::from((*digit as char).to_digit(16)?);
    }
    (number > 0).then_some(number)
}

/// Sizes of objects, from the smallest to the largest, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Smallest size.
    pub min: usize,
    /// Largest size.
    pub max: usize,
}

/// What the values contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Objects with the texts of a cluster.
    Realistic,
    /// Random bytes, which cannot be compressed.
    Incompressible,
}

/// Makes the keys and values of all objects.
#[derive(Debug)]
pub struct Objects {
    contents: Contents,
    salt: u64,
    leases: Vec<Template>,
    nodes: Vec<Template>,
    pods: Vec<Template>,
    events: Vec<Template>,
    noise: Vec<u8>,
}

/// Number of templates of nodes and of pods; each has another size. Pods of one template are like pods of one
/// deployment.
const TEMPLATES: usize = 16;
const LEASE_BYTES: usize = 485;
const EVENT_BYTES: usize = 900;
const NAMESPACES: u64 = 200;
const APPLICATIONS: u64 = 1000;

impl Objects {
    /// Creates the templates. Equal seeds give equal objects.
    pub fn new(seed: u64, contents: Contents, nodes: Sizes, pods: Sizes) -> Self {
        let mut random = Random::new(seed ^ 0x6b75_6265);
        let mut templates = |make: fn(&mut Vec<u8>, usize, &mut Random, usize), sizes: &[usize]| {
            let each = sizes.iter().enumerate();
            each.map(|(at, bytes)| Template::new(sized(make, *bytes, at, &mut random))).collect::<Vec<_>>()
        };
        // Nodes differ little in size. Of pods, half are of less than a quarter of the largest size: few have
        // many containers.
        let share = |at: usize| (at as f64 + 0.5) / TEMPLATES as f64;
        let even = |at| nodes.min + ((nodes.max - nodes.min) as f64 * share(at)) as usize;
        let skewed = |at| {
            (pods.min as f64 * (pods.max as f64 / pods.min.max(1) as f64).powf(share(at).powi(2))) as usize
        };
        let node_sizes: Vec<usize> = (0..TEMPLATES).map(even).collect();
        let pod_sizes: Vec<usize> = (0..TEMPLATES).map(skewed).collect();
        let leases = templates(lease, &[LEASE_BYTES]);
        let events = templates(event, &[EVENT_BYTES; 6]);
        let (nodes, pods) = (templates(node, &node_sizes), templates(pod, &pod_sizes));
        let noise = match contents {
            Contents::Realistic => Vec::new(),
            Contents::Incompressible => random.bytes(1 << 20),
        };
        Self { contents, salt: seed, leases, nodes, pods, events, noise }
    }

    /// Returns the mean size of a pod in bytes.
    pub fn pod_bytes_mean(&self) -> usize {
        self.pods.iter().map(|pod| pod.bytes.len()).sum::<usize>() / self.pods.len()
    }

    /// Writes the key of a node's lease.
    pub fn lease_key(&self, node: u64, out: &mut Vec<u8>) {
        put(out, format_args!("/registry/leases/kube-node-lease/node-{node:08}"));
    }

    /// Writes the key of a node.
    pub fn node_key(&self, node: u64, out: &mut Vec<u8>) {
        put(out, format_args!("/registry/minions/node-{node:08}"));
    }

    /// Writes the key of a pod.
    pub fn pod_key(&self, pod: u64, out: &mut Vec<u8>) {
        let (namespace, application) = placed(pod);
        put(
            out,
            format_args!(
                "/registry/pods/team-{namespace:03}/service-{application:03}-{:09x}-{pod:08}",
                (application * 0x9e37_79b9) & 0xf_ffff_ffff
            ),
        );
    }

    /// Writes the key of event number `event`, which is about this pod.
    pub fn event_key(&self, pod: u64, event: u64, out: &mut Vec<u8>) {
        let (namespace, application) = placed(pod);
        put(
            out,
            format_args!(
                "/registry/events/team-{namespace:03}/service-{application:03}-{pod:08}.{event:016x}"
            ),
        );
    }

    /// Writes the value of a node's lease, whose write is due at `due_us`.
    pub fn lease(&self, node: u64, due_us: u64, out: &mut Vec<u8>) {
        self.write(&self.leases[0], (node, node), due_us, out);
    }

    /// Writes the value of a node.
    pub fn node(&self, node: u64, due_us: u64, out: &mut Vec<u8>) {
        self.write(&self.nodes[mixed(node) as usize % self.nodes.len()], (node, node), due_us, out);
    }

    /// Writes the value of a pod, which runs on `node`.
    pub fn pod(&self, pod: u64, node: u64, due_us: u64, out: &mut Vec<u8>) {
        self.write(&self.pods[mixed(pod) as usize % self.pods.len()], (pod, node), due_us, out);
    }

    /// Writes the value of an event of this kind (0 to 5) about a pod.
    pub fn event(&self, kind: usize, pod: u64, node: u64, due_us: u64, out: &mut Vec<u8>) {
        self.write(&self.events[kind % self.events.len()], (pod, node), due_us, out);
    }

    fn write(&self, template: &Template, (number, node): (u64, u64), due_us: u64, out: &mut Vec<u8>) {
        match self.contents {
            Contents::Realistic => template.write(number, node, self.salt, out),
            Contents::Incompressible => {
                out.clear();
                let bytes = template.bytes.len();
                let mut at = (mixed(number ^ due_us) as usize) % self.noise.len();
                while out.len() < bytes {
                    let part = (bytes - out.len()).min(self.noise.len() - at);
                    out.extend_from_slice(&self.noise[at..at + part]);
                    at = 0;
                }
            }
        }
        let at = out.len() - STAMP_BYTES;
        hex(&mut out[at..], due_us);
    }
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments) {
    out.clear();
    assert!(out.write_fmt(text).is_ok(), "a vector takes all bytes");
}

fn mixed(number: u64) -> u64 {
    Random::new(number).number()
}

fn placed(pod: u64) -> (u64, u64) {
    // An application lives in one namespace, as deployments do.
    let application = mixed(pod) % APPLICATIONS;
    (application % NAMESPACES, application)
}

/// Makes an object of this size: encodes it with ever more text in its managed fields.
fn sized(
    make: fn(&mut Vec<u8>, usize, &mut Random, usize),
    bytes: usize,
    variant: usize,
    random: &mut Random,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut text_bytes = 0;
    // Each round misses the size by the bytes of a few lengths at most; the second or third is exact.
    for _ in 0..4 {
        out.clear();
        make(&mut out, text_bytes, &mut random.clone(), variant);
        let missing = bytes as i64 - (out.len() + STAMP_BYTES) as i64;
        text_bytes = (text_bytes as i64 + missing).max(0) as usize;
        if missing == 0 {
            break;
        }
    }
    random.number();
    out.extend_from_slice(&[b'0'; STAMP_BYTES]);
    out
}

/// Returns `bytes` bytes of text as in the managed fields and annotations of objects.
fn text(bytes: usize, random: &mut Random) -> Vec<u8> {
    const PARTS: [&str; 28] = [
        r#"{"f:metadata":{"f:annotations":{".":{},"f:kubernetes.io/config.seen":{}},"#,
        r#""f:labels":{".":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/instance":{}}},"#,
        r#""f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:env":{".":{},"#,
        r#""k:{\"name\":\"POD_NAMESPACE\"}":{".":{},"f:name":{},"f:valueFrom":{".":{},"f:fieldRef":{}}},"#,
        r#""f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"#,
        r#""f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}},"f:initialDelaySeconds":{},"#,
        r#""f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},"f:name":{},"#,
        r#""f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:protocol":{}}},"#,
        r#""f:resources":{".":{},"f:limits":{".":{},"f:cpu":{},"f:memory":{}},"f:requests":{".":{}}},"#,
        r#""f:terminationMessagePath":{},"f:terminationMessagePolicy":{},"f:volumeMounts":{".":{},"#,
        r#""k:{\"mountPath\":\"/var/run/secrets/tokens\"}":{".":{},"f:mountPath":{},"f:name":{}}}}},"#,
        r#""f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"#,
        r#""f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"#,
        r#""f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Initialized\"}":{".":{},"#,
        r#""f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:startTime":{}}}"#,
        "name: DATABASE_URL\nvalue: postgres://orders.internal.example.com:5432/orders?sslmode=require\n",
        "name: OTEL_EXPORTER_OTLP_ENDPOINT\nvalue: http://collector.observability.svc.cluster.local:4317\n",
        "name: KAFKA_BROKERS\nvalue: kafka-0.kafka.data.svc:9092,kafka-1.kafka.data.svc:9092\n",
        "name: JAVA_OPTS\nvalue: -XX:MaxRAMPercentage=75 -XX:+UseG1GC -XX:+ExitOnOutOfMemoryError\n",
        "name: POD_NAME\nvalueFrom: metadata.name\nname: HOST_IP\nvalueFrom: status.hostIP\n",
        "prometheus.io/scrape: \"true\"\nprometheus.io/port: \"9090\"\nprometheus.io/path: /metrics\n",
        "sidecar.istio.io/inject: \"true\"\nsidecar.istio.io/proxyCPU: 100m\nproxyMemory: 128Mi\n",
        "image: registry.example.com/platform/envoy-sidecar:v1.29.2@sha256:",
        "image: registry.example.com/payments/settlement-worker:2026.11.3-build.4711@sha256:",
        "containerID: containerd://",
        "lastState: {}\nready: true\nrestartCount: 0\nstarted: true\nstate: running\nstartedAt: ",
        "node.kubernetes.io/not-ready:NoExecute for 300s\nnode.kubernetes.io/unreachable:NoExecute for 300s\n",
        "topologySpreadConstraints: topology.kubernetes.io/zone DoNotSchedule maxSkew 1\n",
    ];
    let mut out = Vec::with_capacity(bytes + 128);
    while out.len() < bytes {
        let part = PARTS[random.index(PARTS.len())];
        out.extend_from_slice(part.as_bytes());
        if part.ends_with("sha256:") || part.ends_with("://") {
            out.extend_from_slice(HASH);
            out.push(b'\n');
        } else if random.one_in(6) {
            out.extend_from_slice(
                format!("2026-11-30T1{}:{:02}:17Z ", random.below(10), random.below(60)).as_bytes(),
            );
        }
    }
    out.truncate(bytes);
    out
}

/// Writes the envelope in which kube-apiserver stores an object: a magic number, and a message with the kind
/// of the object and its bytes.
fn envelope(out: &mut Vec<u8>, version: &str, kind: &str, write: impl FnOnce(&mut Message)) {
    out.extend_from_slice(b"k8s\0");
    Message(out)
        .message(1, |types| {
            types.bytes(1, version.as_bytes()).bytes(2, kind.as_bytes());
        })
        .message(2, write);
}

fn metadata(object: &mut Message, name: &str, namespace: &str, labels: &[(&str, &str)], managed: &[u8]) {
    object.message(1, |meta| {
        meta.bytes(1, name.as_bytes()).bytes(3, namespace.as_bytes()).bytes(5, UID).uint(7, 1);
        meta.message(8, |time| {
            time.uint(1, 1_796_068_637);
        });
        for (key, value) in labels {
            meta.message(11, |label| {
                label.bytes(1, key.as_bytes()).bytes(2, value.as_bytes());
            });
        }
        meta.message(17, |fields| {
            fields.bytes(1, b"kubelet").bytes(2, b"Update").bytes(3, b"v1").bytes(6, b"FieldsV1");
            fields.message(7, |json| {
                json.bytes(1, managed);
            });
        });
    });
}

fn lease(out: &mut Vec<u8>, text_bytes: usize, random: &mut Random, _: usize) {
    let managed = text(text_bytes, random);
    envelope(out, "coordination.k8s.io/v1", "Lease", |object| {
        metadata(object, "node-{number}", "kube-node-lease", &[], &managed);
        object.message(2, |spec| {
            spec.bytes(1, b"node-{number}").uint(2, 40).message(4, |time| {
                time.uint(1, 1_796_068_637).uint(2, 123_456_000);
            });
        });
    });
}

fn node(out: &mut Vec<u8>, text_bytes: usize, random: &mut Random, variant: usize) {
    let zone = format!("region-1{}", ["a", "b", "c"][variant % 3]);
    let labels = [
        ("kubernetes.io/hostname", "node-{number}"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
        ("node.kubernetes.io/instance-type", "m6i.4xlarge"),
        ("topology.kubernetes.io/region", "region-1"),
        ("topology.kubernetes.io/zone", &zone),
    ];
    // A node lists the images that it has: much of its size, and in hashes that do not compress.
    let managed = text(text_bytes / 2, random);
    let images = text(text_bytes - text_bytes / 2, random);
    envelope(out, "v1", "Node", |object| {
        metadata(object, "node-{number}", "", &labels, &managed);
        object.message(2, |spec| {
            spec.bytes(1, b"10.128.0.0/24").bytes(3, b"cloud:///region-1/node-{number}");
        });
        object.message(3, |status| {
            for (resource, amount) in
                [("cpu", "16"), ("memory", "64311956Ki"), ("pods", "110"), ("ephemeral-storage", "203056Mi")]
            {
                for field in [1, 2] {
                    status.message(field, |entry| {
                        entry.bytes(1, resource.as_bytes()).message(2, |quantity| {
                            quantity.bytes(1, amount.as_bytes());
                        });
                    });
                }
            }
            for (condition, reason) in [
                ("MemoryPressure", "KubeletHasSufficientMemory"),
                ("DiskPressure", "KubeletHasNoDiskPressure"),
                ("PIDPressure", "KubeletHasSufficientPID"),
                ("Ready", "KubeletReady"),
            ] {
                status.message(4, |one| {
                    one.bytes(1, condition.as_bytes()).bytes(2, b"False").bytes(5, reason.as_bytes());
                    one.bytes(6, b"kubelet is posting ready status");
                });
            }
            status.message(7, |info| {
                info.bytes(1, UID).bytes(2, UID).bytes(3, UID).bytes(4, b"6.18.0-generic");
                info.bytes(5, b"Ubuntu 26.04 LTS").bytes(6, b"containerd://2.2.1").bytes(7, b"v1.36.1");
            });
            status.message(8, |image| {
                image.bytes(1, &images).uint(2, 123_456_789);
            });
        });
    });
}

fn pod(out: &mut Vec<u8>, text_bytes: usize, random: &mut Random, variant: usize) {
    let service = format!("service-{variant:03}");
    let name = format!("{service}-6d4cf56db9-{{number}}");
    let labels = [
        ("app.kubernetes.io/name", service.as_str()),
        ("app.kubernetes.io/instance", &service),
        ("app.kubernetes.io/managed-by", "Helm"),
        ("pod-template-hash", "6d4cf56db9"),
    ];
    let managed = text(text_bytes / 3, random);
    let environment = text(text_bytes / 3, random);
    let statuses = text(text_bytes - 2 * (text_bytes / 3), random);
    envelope(out, "v1", "Pod", |object| {
        metadata(object, &name, "team-000", &labels, &managed);
        object.message(2, |spec| {
            spec.message(2, |container| {
                container.bytes(1, b"main").bytes(2, b"registry.example.com/platform/service:v1");
                container.message(7, |variable| {
                    variable.bytes(1, b"CONFIGURATION").bytes(2, &environment);
                });
            });
            spec.bytes(3, b"Always").uint(4, 30).bytes(6, b"ClusterFirst").bytes(8, service.as_bytes());
            spec.bytes(10, b"node-{node..}").bytes(19, b"default-scheduler");
        });
        object.message(3, |status| {
            status
                .bytes(1, b"Running")
                .bytes(5, b"10.0.0.1")
                .bytes(6, b"10.128.0.7")
                .bytes(12, b"10.128.0.7");
            status.message(8, |container| {
                container.bytes(1, b"main").bytes(6, b"registry.example.com/platform/service:v1");
                container.bytes(7, HASH).bytes(8, HASH).bytes(9, &statuses);
            });
        });
    });
}

fn event(out: &mut Vec<u8>, text_bytes: usize, random: &mut Random, variant: usize) {
    const REASONS: [(&str, &str); 6] = [
        ("Scheduled", "Successfully assigned team-000/service-{number} to node-{node..}"),
        ("Pulling", "Pulling image \"registry.example.com/platform/service:v1\""),
        ("Pulled", "Successfully pulled image \"registry.example.com/platform/service:v1\" in 1.2s"),
        ("Created", "Created container main"),
        ("Started", "Started container main"),
        ("Killing", "Stopping container main"),
    ];
    let (reason, message) = REASONS[variant % REASONS.len()];
    let managed = text(text_bytes, random);
    envelope(out, "v1", "Event", |object| {
        metadata(object, "service-{number}", "team-000", &[], &managed);
        object.message(2, |about| {
            about.bytes(1, b"Pod").bytes(2, b"team-000").bytes(3, b"service-{number}").bytes(4, UID);
        });
        object.bytes(3, reason.as_bytes()).bytes(4, message.as_bytes());
        object.message(5, |source| {
            source.bytes(1, b"kubelet").bytes(2, b"node-{node..}");
        });
        object.uint(8, 1).bytes(9, b"Normal");
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::wire::Fields;

    const NODES: Sizes = Sizes { min: 10_240, max: 20_480 };
    const PODS: Sizes = Sizes { min: 10_240, max: 71_680 };

    fn objects(contents: Contents) -> Objects {
        Objects::new(1, contents, NODES, PODS)
    }

    #[test]
    fn members_that_compress_values_store_them_in_a_third_of_their_size() {
        let all = objects(Contents::Realistic);
        let mut out = Vec::new();
        let mut pods = |from: u64| -> Vec<Vec<u8>> {
            let pod = |number| {
                all.pod(number, number % 97, 5, &mut out);
                out.clone()
            };
            (from..from + 300).map(pod).collect()
        };
        let samples = pods(0);
        let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
        let trained = compression::Compressor::train(&samples).expect("pods have much in common");
        let dictionary = compression::Dictionary::candidate(&trained).expect("zstd made it");
        let mut compressor = compression::Compressor::new().expect("there is memory");
        let others = pods(10_000);
        let raw: usize = others.iter().map(Vec::len).sum();
        let mut parts = [None, Some(&dictionary)].map(|dictionary| {
            let mut frame =
                |pod: &Vec<u8>| compressor.compress(dictionary, pod).map_or(0, |(frame, _)| frame.len());
            others.iter().map(&mut frame).sum::<usize>() as f64 / raw as f64
        });
        println!("of their size: {:.3} without a dictionary, {:.3} with one", parts[0], parts[1]);
        parts.sort_by(f64::total_cmp);
        assert!(parts[0] > 0.0 && parts[0] <= 0.35, "{parts:?}");
    }

    #[test]
    fn objects_have_the_sizes_of_a_cluster_and_carry_their_time() {
        for contents in [Contents::Realistic, Contents::Incompressible] {
            let all = objects(contents);
            let mut out = Vec::new();
            all.lease(7, 1234, &mut out);
            assert_eq!((out.len(), stamp(&out)), (LEASE_BYTES, Some(1234)), "{contents:?}");
            let mut pods = 0;
            for number in 0..1000 {
                all.node(number, 5, &mut out);
                assert!((NODES.min..=NODES.max).contains(&out.len()), "a node of {} bytes", out.len());
                all.pod(number, 3, u64::MAX, &mut out);
                assert!((PODS.min..=PODS.max).contains(&out.len()), "a pod of {} bytes", out.len());
                assert_eq!(stamp(&out), Some(u64::MAX));
                pods += out.len();
            }
            let mean = all.pod_bytes_mean();
            assert!((18_000..30_000).contains(&mean), "pods of {mean} bytes on average");
            assert!((pods / 1000).abs_diff(mean) < mean / 10, "{} instead of {mean}", pods / 1000);
        }
    }

    #[test]
    fn realistic_objects_are_protobuf_with_their_own_names_and_identifiers() {
        let all = objects(Contents::Realistic);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        all.pod(12_345_678, 42, 9, &mut one);
        let object = Fields(Fields(&one[4..one.len() - STAMP_BYTES]).bytes(2));
        let name = String::from_utf8_lossy(Fields(object.bytes(1)).bytes(1)).into_owned();
        assert!(name.ends_with("-12345678"), "{name}");
        assert_eq!(Fields(object.bytes(2)).bytes(10), b"node-00000042");
        let marks = one.windows(5).filter(|part| {
            [b"{numb", b"{node", b"{uid.", b"{hash"].contains(&<&[u8; 5]>::try_from(*part).unwrap())
        });
        assert!(marks.count() <= 3, "no mark is left, except where one of the three texts ends");
        // Two pods of one template differ only in numbers and hashes.
        let twin = (0..).find(|pod| {
            all.pod(*pod, 42, 9, &mut other);
            other.len() == one.len()
        });
        assert!(twin.is_some());
        let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same > one.len() / 2 && same < one.len() - 64, "{same} of {} bytes are equal", one.len());
    }

    #[test]
    fn keys_are_unique_and_objects_follow_from_the_seed() {
        let (all, again) = (objects(Contents::Realistic), objects(Contents::Realistic));
        let (mut key, mut value, mut twice) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = std::collections::HashSet::new();
        for number in 0..10_000 {
            all.pod_key(number, &mut key);
            assert!(seen.insert(key.clone()), "{}", String::from_utf8_lossy(&key));
        }
        all.node(3, 0, &mut value);
        again.node(3, 0, &mut twice);
        assert_eq!(value, twice);
        assert_eq!(stamp(&value), None, "populated objects have no time");
    }
}
