"""Problems on the overview: the rules and limits of `mainstay doctor`, each with facts that show it and facts that nearly do."""

import glob
import json
import os
import re

from clusters import Cluster, Console
from world import check, console_of, same, settle, test

DOCTOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "crates", "doctor", "src")
# The page opens no bare connections to compare calls with.
NOT_SEEN = {"slow-answers": "answer"}

# Members made of two scrapes 10 s apart, a status and a page for a diagnosis, and what the rules find in them.
FIND = """
(async (wanted) => {
  const [{ findProblems }, { Sample }, { pointOf }] = await Promise.all(['problems', 'metrics', 'points'].map((name) => import(`/assets/${name}.mjs`)));
  const now = 1.8e12;
  const members = wanted.map((each, at) => {
    const samples = [new Sample(each.before ?? '', 1000), new Sample(each.after ?? '', 11000)];
    const point = pointOf(samples[1], samples[0], samples[0]);
    const status = each.status === null ? null : { leader: '1', raftIndex: '10', raftAppliedIndex: '10', version: '3.7.1', header: { cluster_id: '7' }, ...each.status };
    const diagnosis = each.page ? { clock_unix_ns: now * 1e6, ...each.page } : null;
    return {
      name: `m${at + 1}`, memberId: String(at + 1), isUp: true, isLearner: false, error: null, samples, sample: samples[1], points: [point, point, point], point, status, diagnosis,
      statusAt: 11000, indexRate: 0, applyLag: 0, endpoint: { url: 'http://10.0.0.1:2379' }, ...each.member,
    };
  });
  return findProblems({ members, times: [1000, 11000], now }).map(({ rule, level, facts, title }) => ({ rule, level, facts, title }));
})
"""

OURS = "mainstay_log_entries_total 1\n"


def histogram(name, bounds, labels=""):
    """Lines of a histogram of cumulative counts."""
    inside = lambda bound: "{" + ",".join(filter(None, [labels, f'le="{bound}"'])) + "}"
    total = list(bounds.values())[-1]
    text = "".join(f"{name}_bucket{inside(bound)} {count}\n" for bound, count in bounds.items())
    return text + f"{name}_bucket{inside('+Inf')} {total}\n{name}_count{{{labels}}} {total}\n"


def grows(name, by, labels=""):
    """A counter in two scrapes."""
    series = f"{name}{{{labels}}}" if labels else name
    return {"before": f"{OURS}{series} 100\n", "after": f"{OURS}{series} {100 + by}\n"}


def slow(name, milliseconds, labels=""):
    """A hundred observations of that many ms."""
    bounds = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    empty = histogram(name, {bound / 1000: 0 for bound in bounds}, labels)
    return {"before": empty, "after": histogram(name, {bound / 1000: 100 if bound >= milliseconds else 0 for bound in bounds}, labels)}


def stall(seconds):
    return {"page": {"fsync_stalls": [{"unix_ms": 1.8e12 - 60000, "seconds": seconds}]}}


def expensive(**more):
    row = {"client": "10.0.0.9", "key": '"/a/"', "range_end": '"/a0"', "count": 3, "keys_max": 10, "bytes_total": 100, "seconds_max": 0.001, "last_unix_ms": 1.8e12 - 1000}
    return {"page": {"expensive_ranges": [{**row, **more}]}}


def client(**more):
    return {"page": {"clients": [{"address": "10.0.0.9", "connections": 1, "requests": 9, "watches": 0, "slow_watches": 0, "leases": 0, "authentications": 0, **more}]}}


def certificate(days):
    series = 'mainstay_tls_certificate_not_after_seconds{listener="client",certificate="server"}'
    return {"after": f"{OURS}{series} {1.8e9 + days * 86400}\n"}


def full(share, mainstay=True):
    size = int(share * 1000)
    lines = f"etcd_server_quota_backend_bytes 1000\netcd_mvcc_db_total_size_in_bytes {990 if mainstay else size}\netcd_mvcc_db_total_size_in_use_in_bytes {size if mainstay else 10}\n"
    return {"after": (OURS if mainstay else "") + lines}


def served(*rates):
    return [grows("grpc_server_started_total", rate * 10, 'grpc_method="Put",grpc_type="unary"') for rate in rates]


def logins(count, others):
    lines = lambda a, b: f'{OURS}grpc_server_handled_total{{grpc_method="Authenticate",grpc_type="unary",grpc_code="OK"}} {a}\ngrpc_server_handled_total{{grpc_method="Put",grpc_type="unary",grpc_code="OK"}} {b}\n'
    return {"before": lines(1, 1), "after": lines(1 + count, 1 + others)}


def heavy(measure="requests", **lists):
    rows = lambda amounts: [{"name": name, "per_second": amount, "error": 0} for name, amount in amounts.items()]
    return {"page": {"heavy": {subject: {"requests": [], "bytes": [], "seconds": [], measure: rows(amounts)} for subject, amounts in lists.items()}}}


# Rule, level, members, and what a fact has to say; then members that are nearly so.
CASES = [
    ("unreachable", "error", [{}, {}, {"member": {"isUp": False, "error": {"status": 502, "message": "refused"}}}], "m3: refused", [{}, {}, {}]),
    ("no-leader", "error", [{"status": {"leader": "0"}}], "m1", [{}]),
    ("no-leader", "error", [{"status": None, "after": "etcd_server_has_leader 0\n"}], "m1", [{"status": None, "after": "etcd_server_has_leader 1\n"}]),
    ("different-clusters", "error", [{}, {"status": {"header": {"cluster_id": "255"}}}], "m2: cluster ff", [{}, {}]),
    ("alarm-corrupt", "error", [{"status": {"errors": ["memberID:1 alarm:CORRUPT "]}}], "CORRUPT of member m1", [{}]),
    ("alarm-corrupt", "error", [{"after": "mainstay_state_hash_differences_total 2\n"}], "2 times", [{"after": "mainstay_state_hash_differences_total 0\n"}]),
    ("alarm-nospace", "error", [{"status": {"errors": ["memberID:1 alarm:NOSPACE "]}}], "NOSPACE of member m1", [{"status": {"errors": []}}]),
    ("quota-near", "warning", [full(0.8)], "80.0", [full(0.79)]),
    ("quota-near", "error", [full(0.95, False)], "95.0", [full(0.7, False)]),
    ("certificate-expiry", "warning", [certificate(29)], "--cert-file: expires in 29", [certificate(31)]),
    ("certificate-expiry", "error", [certificate(6)], "expires in 6", [certificate(31)]),
    ("tls-files-unusable", "error", [{"after": 'mainstay_tls_reload_failing{listener="client"} 1\n'}], "m1", [{"after": 'mainstay_tls_reload_failing{listener="client"} 0\n'}]),
    ("slow-disk", "warning", [slow("etcd_disk_wal_fsync_duration_seconds", 32)], "limit 10.0", [slow("etcd_disk_wal_fsync_duration_seconds", 8)]),
    ("slow-disk", "error", [slow("etcd_disk_wal_fsync_duration_seconds", 256)], "p99", [slow("etcd_disk_wal_fsync_duration_seconds", 8)]),
    ("fsync-stall", "error", [stall(1.2)], "one sync", [stall(0.9)]),
    ("fsync-stall", "error", [slow("etcd_disk_wal_fsync_duration_seconds", 2048)], "100 syncs", [slow("etcd_disk_wal_fsync_duration_seconds", 512)]),
    ("slow-commit", "warning", [slow("etcd_disk_backend_commit_duration_seconds", 64)], "limit 25", [slow("etcd_disk_backend_commit_duration_seconds", 16)]),
    ("slow-peer-link", "warning", [slow("etcd_network_peer_round_trip_time_seconds", 256, 'To="2"'), {}], "to m2", [slow("etcd_network_peer_round_trip_time_seconds", 64, 'To="2"'), {}]),
    ("slow-peer-link", "warning", [grows("etcd_network_peer_sent_failures_total", 3, 'To="2"'), {}], "3 messages to m2", [grows("etcd_network_peer_sent_failures_total", 0, 'To="2"'), {}]),
    ("leader-changes", "error", [grows("etcd_server_leader_changes_seen_total", 1)], "1 change", [grows("etcd_server_leader_changes_seen_total", 0)]),
    ("leader-changes", "warning", [{"after": f"etcd_server_leader_changes_seen_total 4\nprocess_start_time_seconds {1.8e9 - 600}\n"}], "3 changes",
     [{"after": f"etcd_server_leader_changes_seen_total 4\nprocess_start_time_seconds {1.8e9 - 9000}\n"}]),
    ("overloaded", "error", [{"member": {"applyLag": 500}}], "500 entries", [{"member": {"applyLag": 499}}]),
    ("overloaded", "warning", [{"after": "etcd_server_proposals_pending 500\n"}], "500 proposals", [{"after": "etcd_server_proposals_pending 499\n"}]),
    ("overloaded", "warning", [grows("etcd_server_proposals_failed_total", 1)], "1 proposal", [grows("etcd_server_proposals_failed_total", 0)]),
    ("overloaded", "warning", [grows("etcd_server_slow_apply_total", 10)], "1.00", [grows("etcd_server_slow_apply_total", 9)]),
    ("overloaded", "error", [grows("grpc_server_handled_total", 1, 'grpc_code="ResourceExhausted"')], "1 requests refused", [grows("grpc_server_handled_total", 1, 'grpc_code="NotFound"')]),
    ("cpu", "warning", [{"before": "process_cpu_seconds_total 0\n", "after": "process_cpu_seconds_total 17\nmainstay_processors 2\n"}], "1.70 of 2.00",
     [{"before": "process_cpu_seconds_total 0\n", "after": "process_cpu_seconds_total 16\nmainstay_processors 2\n"}]),
    ("file-descriptors", "error", [{"after": "process_open_fds 80\nprocess_max_fds 100\n"}], "80 of 100", [{"after": "process_open_fds 79\nprocess_max_fds 100\n"}]),
    ("slow-reads", "warning", [grows("etcd_server_slow_read_indexes_total", 1)], "1 slow", [grows("etcd_server_slow_read_indexes_total", 0)]),
    ("slow-reads", "error", [grows("etcd_server_read_indexes_failed_total", 1)], "1 failed", [grows("etcd_server_read_indexes_failed_total", 0)]),
    ("member-behind", "warning", [{}, {"status": {"raftIndex": "5010"}}], "m1: 5,000", [{}, {"status": {"raftIndex": "5009"}}]),
    ("learner-behind", "warning", [{"member": {"isLearner": True}}, {"status": {"raftIndex": "5010", "raftAppliedIndex": "5010"}}], "m1: 5,000",
     [{"member": {"isLearner": True}}, {"status": {"raftIndex": "5009", "raftAppliedIndex": "5009"}}]),
    ("expensive-ranges", "warning", [expensive(keys_max=5000)], "10.0.0.9 requested /a/ to /a0 3 times", [expensive(keys_max=4999)]),
    ("expensive-ranges", "warning", [expensive(bytes_total=3 << 20)], "3.00", [expensive(bytes_total=3 << 19)]),
    ("expensive-ranges", "warning", [expensive(seconds_max=0.1)], "100", [expensive(seconds_max=0.1, last_unix_ms=1.8e12 - 700000)]),
    ("expensive-ranges", "warning", [slow("etcd_server_range_duration_seconds", 256)], "the client is not reported", [slow("etcd_server_range_duration_seconds", 64)]),
    ("expensive-ranges", "warning", [{**slow("etcd_server_range_duration_seconds", 256), "page": {"expensive_ranges": [], "heavy": {"client": {}}}}], "the client is not reported",
     [{**slow("etcd_server_range_duration_seconds", 256), "page": {"expensive_ranges": [], "heavy": {"client": {}, "prefix": {}}}}]),
    ("large-values", "warning", [{"page": {"large_values": [{"client": "10.0.0.9", "key": '"/v\\xff"', "bytes": 102400, "last_unix_ms": 1.8e12}]}}], "10.0.0.9 put a value of 100",
     [{"page": {"large_values": [{"client": "10.0.0.9", "key": '"/v"', "bytes": 102399, "last_unix_ms": 1.8e12}]}}]),
    ("missing-compaction", "warning", [{"after": "etcd_debugging_mvcc_current_revision 100000\netcd_debugging_mvcc_compact_revision -1\netcd_debugging_mvcc_keys_total 9\n"}], "100,000 revisions of 9 keys",
     [{"after": "etcd_debugging_mvcc_current_revision 100000\netcd_debugging_mvcc_compact_revision 1\netcd_debugging_mvcc_keys_total 9\n"}]),
    ("fragmentation", "warning", [{"status": {"dbSize": str(128 << 20), "dbSizeInUse": str(64 << 20)}}], "64.0", [{"status": {"dbSize": str(60 << 20), "dbSizeInUse": "0"}}]),
    ("authentication-without-token-reuse", "warning", [{**logins(10, 20), **client(authentications=10, requests=30)}], "10.0.0.9: 10 logins", [logins(10, 100)]),
    ("crowded-connections", "warning", [client(watches=5000)], "5,000 watches on 1", [client(watches=5000, connections=2)]),
    ("crowded-connections", "warning", [client(leases=5000)], "5,000 leases", [client(leases=4999)]),
    ("crowded-connections", "warning", [{"after": "etcd_debugging_mvcc_watcher_total 5000\netcd_debugging_mvcc_watch_stream_total 1\n"}], "1 streams", [{"after": "etcd_debugging_mvcc_watcher_total 5000\netcd_debugging_mvcc_watch_stream_total 2\n"}]),
    ("slow-watchers", "warning", [{**client(watches=4, slow_watches=3), "after": "etcd_debugging_mvcc_slow_watcher_total 3\n"}], "10.0.0.9: 3 of its 4", [{"after": "etcd_debugging_mvcc_slow_watcher_total 0\n"}]),
    ("unbalanced-clients", "warning", served(50, 1, 1), "m1: 50.0", served(20, 20, 20)),
    ("unbalanced-clients", "warning", served(60, 1), "m1: 60.0", served(40, 1)),
    ("clock-drift", "warning", [{"page": {"clockOffMs": 0, "clockBounds": [0, 100]}}, {"page": {"clockOffMs": 700, "clockBounds": [601, 700]}}], "m2: 700",
     [{"page": {"clockOffMs": 0, "clockBounds": [0, 100]}}, {"page": {"clockOffMs": 700, "clockBounds": [600, 700]}}]),
    ("version-skew", "warning", [{}, {"status": {"version": "3.6.0"}}], "m2: 3.6.0", [{}, {}]),
    (None, "note", [heavy(prefix={'"/hot/"': 60, '"/other/"': 9}, client={"10.0.0.9": 69})], "60.0", [heavy(prefix={'"/hot/"': 49, '"/other/"': 9}, client={"10.0.0.9": 58})]),
    (None, "note", [heavy(client={"10.0.0.9": 60, "10.0.0.8": 9, "10.0.0.7": 9})], "60.0", [heavy(client={"10.0.0.9": 60, "10.0.0.8": 59, "10.0.0.7": 9})]),
    (None, "note", [heavy("bytes", prefix={'"/hot/"': 1 << 18, '"/other/"': 9})], "256\u00a0KiB/s", [heavy("bytes", prefix={'"/hot/"': (1 << 18) - 1, '"/other/"': 9})]),
    (None, "warning", [grows("mainstay_client_connections_refused_total", 2)], "2 within", [grows("mainstay_client_connections_refused_total", 0)]),
    (None, "note", [{"member": {"isLearner": True}}], "no vote", [{}]),
]


def find(page, members):
    return page.js(f"({FIND})({json.dumps(members)})")


@test
def problems_have_the_doctors_names_and_limits(world):
    page = world.page(console_of(world, "small"))
    rules, limits = page.js("import('/assets/problems.mjs').then((module) => [Object.keys(module.RULES), module.LIMITS])")
    with open(os.path.join(DOCTOR, "findings.rs"), encoding="utf-8") as file:
        order = re.findall(r"^    (\w+)::RULE,", file.read(), re.M)
    names = {}
    for path in glob.glob(os.path.join(DOCTOR, "findings", "*.rs")):
        with open(path, encoding="utf-8") as file:
            names[os.path.basename(path)[:-3]] = re.search(r'name: "([\w-]+)"', file.read()).group(1)
    same(rules, [names[each] for each in order if names[each] not in NOT_SEEN], "names, in the doctor's order")
    with open(os.path.join(DOCTOR, "limits.rs"), encoding="utf-8") as file:
        default = re.search(r"fn default\(\) -> Limits \{\s*Limits \{(.*?)\}", file.read(), re.S).group(1)
    theirs = {name: eval(value.replace("_", "")) for name, value in re.findall(r"(\w+): ([\d_.* ]+),", default)}  # Products of numbers, by the pattern.
    ours = {re.sub(r"([A-Z])", lambda found: "_" + found.group(1).lower(), name): value for name, value in limits.items()}
    for limit in NOT_SEEN.values():
        theirs.pop(limit)
    same(ours, theirs, "limits")


@test
def each_problem_is_found_by_its_facts(world):
    page = world.page(console_of(world, "small"))
    for rule, level, members, fact, nearly in CASES:
        found = [each for each in find(page, members) if each.get("rule") == rule]
        what = f"{rule} in {members}"
        check(any(each["level"] == level and any(fact in text for text in [*each["facts"], each["title"]]) for each in found), f"{what}: {found}")
        others = [each for each in find(page, nearly) if each.get("rule") == rule and (rule or each["level"] == level) and "no more failures" not in each["title"]]
        same(others, [], f"{rule} in {nearly}")
    seen = {rule for rule, *_ in CASES if rule}
    same(sorted(seen), sorted(page.js("import('/assets/problems.mjs').then((module) => Object.keys(module.RULES))")), "each rule has a case")
    same([each for each in find(page, [{}, {}, {}])], [], "nothing is wrong with members that tell little")
    # The worst comes first, and hostile names are text.
    levels = [each["level"] for each in find(page, [{**full(0.85), "status": {"errors": ["memberID:1 alarm:NOSPACE "]}}, {"member": {"isLearner": True}}])]
    same(levels, sorted(levels, key=["error", "warning", "note"].index), "order")


@test
def endpoints_of_another_cluster_are_named_and_left_alone(world):
    stray = world.get("stray", lambda: Cluster(world.options.mainstay))
    stray[0].put("/theirs", "x")
    console = world.get("console of two", lambda: Console(world.options.console, f"{world.small.endpoints},{stray.endpoints}"))
    page = world.page(console.url, "overview")
    page.wait(f"document.querySelector('.problems').innerText.includes({json.dumps(stray[0].url + ': another cluster')})", "the other cluster's endpoint")
    settle(page, "overview")
    same(page.js("document.querySelectorAll('.page-overview tbody tr').length"), 1, "members")
