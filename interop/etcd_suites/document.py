"""Writes docs/conformance.md from the results."""

import datetime
import re
import subprocess
from collections import Counter
from pathlib import Path

from . import expectations, modules

ISSUES = Path(__file__).resolve().parent / "issues.txt"
WORDS = ["passed", "not applicable", "differs", "fails", "varies", "fails with etcd, too", "failed"]
# Failpoints of etcd's robustness tests that are calls compiled into etcd by gofail: they name places in etcd's code.
GOFAIL = (
    "BeforeCommitPanic AfterCommitPanic RaftBeforeSavePanic RaftAfterSavePanic DefragBeforeCopyPanic DefragBeforeRenamePanic "
    "BackendBeforePreCommitHookPanic BackendAfterPreCommitHookPanic BackendBeforeStartDBTxnPanic BackendAfterStartDBTxnPanic "
    "BackendBeforeWritebackBufPanic BackendAfterWritebackBufPanic CompactBeforeCommitScheduledCompactPanic "
    "CompactAfterCommitScheduledCompactPanic CompactBeforeSetFinishedCompactPanic CompactAfterSetFinishedCompactPanic "
    "CompactBeforeCommitBatchPanic CompactAfterCommitBatchPanic RaftBeforeLeaderSendPanic RaftBeforeFollowerSendPanic "
    "RaftBeforeApplySnapPanic RaftAfterApplySnapPanic RaftAfterWALReleasePanic RaftBeforeSaveSnapPanic RaftAfterSaveSnapPanic "
    "BeforeApplyOneConfChangeSleep RaftBeforeSaveSleep RaftAfterSaveSleep ApplyBeforeOpenSnapshot SleepBeforeSendWatchResponse"
).split()


def page(results, expected, mainstay):
    verdicts = {tuple(key.split("/", 2)): (result, expectations.verdict(expected, *key.split("/", 2), result))
                for key, result in results.items()}
    releases = sorted({key[0] for key in verdicts})
    parts = [HEAD.format(date=datetime.date.today(), build=build(mainstay),
                         versions=", ".join(modules.VERSIONS[release] for release in releases))]
    parts += [summary(verdicts, releases), issues(results), robustness(results, releases), others(verdicts, releases), every(verdicts, releases)]
    return "\n\n".join(parts) + "\n"


HEAD = """# etcd's own tests, with Mainstay in the place of etcd

<!-- shown on this page: .ci/run full runs it -->

etcd tests its servers and tools as whole programs: `tests/common` and `tests/e2e` start clusters of processes and call them through
etcdctl, etcd's Go client and curl; `tests/robustness` breaks clusters under load and has a model judge what clients saw. Both come from
the Go module proxy, unchanged, and start Mainstay where they start etcd. etcdctl is etcd's own; etcdutl is Mainstay's, because it
reads the server's files. For the tests of older releases Mainstay runs with `--api-version`.

Written on {date} by `interop/conformance.py` for Mainstay {build} and etcd's tests {versions}:

```console
interop/conformance.py --mainstay PATH/mainstay --work DIR
interop/conformance.py --mainstay PATH/mainstay --work DIR --document docs/conformance.md
```

A test that fails is run once more, and then with real etcd in the place of Mainstay. Tests that may not pass are listed with the reason
in `interop/etcd_suites/expected.txt`; one that passes nevertheless is an error."""


def build(mainstay):
    said = subprocess.run([mainstay, "--version"], text=True, capture_output=True, check=True).stdout
    version, commit = re.search(r"Mainstay Version: (\S+)", said), re.search(r"Git SHA: (\w+)", said)
    return f"{version.group(1)} ({commit.group(1)[:10]})"


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows])


def summary(verdicts, releases):
    rows = []
    for release in releases:
        for suite in ["common", "e2e", "robustness"]:
            of_suite = {test: pair for (r, s, test), pair in verdicts.items() if (r, s) == (release, suite)}
            if not of_suite:
                continue
            counts = Counter(verdict.word for _, verdict in of_suite.values())
            subtests = Counter(state for result, _ in of_suite.values() for state in result["parts"].values())
            rows.append([release, f"`tests/{suite}`", len(of_suite), *(counts[word] or "" for word in WORDS), subtests["passed"]])
    text = """## Results

* **not applicable**: the test looks at the insides of etcd's process or files, or skips itself here (most of these need a build of etcd
  with gofail).
* **differs**: a deliberate difference, with its row of [COMPAT.md](../COMPAT.md).
* **fails**: something that Mainstay ought to do. **failed**: without an explanation yet."""
    return text + "\n\n" + table(["release", "suite", "tests", *WORDS, "subtests passed"], rows)


def state_of(results, release, test):
    """The state of a test, or of a subtest by its path, of the robustness suite."""
    top, _, part = test.partition("/")
    result = results.get(f"{release}/robustness/{top}")
    if not result:
        return "not run"
    if not part:
        return "passed" if "passed" in (result["state"], result["again"]) else result["state"]
    return result["parts"].get(part, "not run")


def read_issues():
    lines = [line for line in ISSUES.read_text().splitlines() if line and not line.startswith("#")]
    return [[field.strip() for field in line.split("|")] for line in lines]


def issues(results):
    rows = []
    for issue, wrong, events, tests, also in read_issues():
        names = tests.split(", ")
        states = [state_of(results, "3.7", name) for name in names]
        state = "passed" if all(state == "passed" for state in states) else ", ".join(states)
        rows.append([f"[#{issue}](https://github.com/etcd-io/etcd/issues/{issue})", wrong, events,
                     " ".join(f"`{name}`" for name in names), also, state])
    text = """## Past consistency bugs of etcd

The list of etcd's robustness tests, with the same events at Mainstay. Where etcd's scenario stops the process at a place in its code, the
process is killed from outside at a random moment of the same work; where it delays a watch response, the client stops reading. Then
etcd's model and validation judge all answers and events, with the members' logs, and hashes of all members must be equal."""
    return text + "\n\n" + table(["issue", "in etcd", "events here", "test in `interop/robustness`", "also covered by", "result"], rows)


def robustness(results, releases):
    rows = {}
    for release in releases:
        for top in ["TestExploratory", "TestMixed", "TestVersions", "TestRegression", "TestIssues"]:
            for part, state in (results.get(f"{release}/robustness/{top}") or {"parts": {}})["parts"].items():
                fields = part.split("/")
                if top in ("TestRegression", "TestIssues"):
                    continue
                if len(fields) < 3:
                    continue
                kind = {"TestExploratory": "", "TestVersions": ""}.get(top, fields[2])
                members = {"ClusterOfSize1": "1", "ClusterOfSize3": "3"}[fields[1]]
                row = rows.setdefault((top, members, kind, fields[-1]), {})
                row.setdefault(release, Counter())[state] += 1
    mixtures = {"": "", "OneOther": ", one of them etcd", "OneOtherLeads": ", one of them etcd, which leads",
                "TwoOthers": ", two of them etcd", "TwoOthersLead": ", two of them etcd, one of which leads"}
    lines = []
    for (_, members, kind, fault), by_release in rows.items():
        cells = []
        for release in releases:
            counts = by_release.get(release, Counter())
            cells.append(" ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "")
        lines.append([members + mixtures[kind], fault, *cells])
    text = """## Robustness: faults and clusters

The numbers are of runs: one for each traffic of etcd's exploratory scenarios (puts; puts, deletions and leases; Kubernetes with a high
and a low rate). Each draws its ticks, snapshot counts and batches of compactions. The columns are releases: Mainstay with that
`--api-version`, the others of mixed clusters etcd of that release. `MemberDowngrade` and `MemberDowngradeUpgrade` go to Mainstay with
`--api-version 3.6` and back; between etcd and Mainstay, `interop/takeover.py` and `interop/downgrade_mixed.py` do.

The same validation, run with builds that have planted bugs ([TESTING.md](../TESTING.md#planted-bugs)), finds `stale-read` and
`read-before-applied` as stale reads, and `transaction-cut-short` and `compare-on-old-state` as answers that no order explains."""
    needs = "Not applicable, because they need a build of etcd with gofail: " + ", ".join(f"`{name}`" for name in GOFAIL) + \
        ". LazyFS, which drops unsynced data, needs a file system of its own; the simulator does this at every write."
    return "\n\n".join([text, table(["members", "fault", *releases], lines), needs])


def others(verdicts, releases):
    rows = []
    for suite in ["common", "e2e"]:
        for test in sorted({t for (_, s, t) in verdicts if s == suite}):
            cells = [verdicts.get((release, suite, test)) for release in releases]
            if all(pair is None or pair[1].word == "passed" for pair in cells):
                continue
            whys = dict.fromkeys(pair[1].why for pair in cells if pair and pair[1].word != "passed" and pair[1].why)
            rows.append([f"`{test}`", suite, *(pair[1].word if pair else "" for pair in cells), "; ".join(whys)])
    return "## Tests that do not pass\n\n" + table(["test", "suite", *releases, "why"], rows)


def every(verdicts, releases):
    tables = ["## All tests\n\nAn empty cell: that release does not have the test. In brackets: subtests."]
    for suite in ["common", "e2e"]:
        rows = []
        for test in sorted({t for (_, s, t) in verdicts if s == suite}):
            rows.append([f"`{test}`", *(cell(verdicts.get((release, suite, test))) for release in releases)])
        tables += [f"### `tests/{suite}`", table(["test", *releases], rows)]
    return "\n\n".join(tables)


def cell(pair):
    if not pair:
        return ""
    result, verdict = pair
    count = f" ({len(result['parts'])})" if result["parts"] else ""
    return verdict.word + count
