"""What is expected of each test: to pass, unless expected.txt says otherwise."""

import fnmatch
from pathlib import Path

FILE = Path(__file__).resolve().parent / "expected.txt"
KINDS = {"no": "not applicable", "differs": "differs", "fails": "fails", "varies": "varies"}


class Expectation:
    """A line of expected.txt: releases, suite and test (a pattern), the kind and why."""

    def __init__(self, releases, suite, test, kind, why):
        self.releases, self.suite, self.test, self.kind, self.why = releases, suite, test, kind, why


def read():
    found = []
    for number, line in enumerate(FILE.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 5 or fields[3] not in KINDS:
            raise SystemExit(f"{FILE}:{number}: wants RELEASES | SUITE | TEST | {'/'.join(KINDS)} | WHY")
        releases = fields[0].split(",") if fields[0] != "*" else None
        found.append(Expectation(releases, *fields[1:]))
    return found


def of(expected, release, suite, test):
    for line in expected:
        if (line.releases is None or release in line.releases) and line.suite == suite and fnmatch.fnmatchcase(test, line.test):
            return line
    return None


class Verdict:
    """`right` is False if the result is not the expected one; `word` is for the table, `text` for the terminal, `why` for both."""

    def __init__(self, right, word, why=""):
        self.right, self.word, self.why = right, word, why
        self.text = f"{word}: {why}" if why else word


def verdict(expected, release, suite, test, result):
    line = of(expected, release, suite, test)
    if result["state"] == "passed":
        if line and line.kind != "varies":
            return Verdict(False, "passed", f"although expected.txt says: {line.why}")
        return Verdict(True, "passed", line.why if line else "")
    if result["state"] == "skipped":
        return Verdict(True, "not applicable", line.why if line else result.get("reason", "skipped"))
    if result["again"] == "passed":
        # On a machine that does other work some of etcd's tests fail with etcd as well.
        if line:
            return Verdict(True, KINDS[line.kind], line.why)
        return Verdict(True, "passed", "at the second attempt")
    if line:
        return Verdict(True, KINDS[line.kind], line.why)
    if result["etcd"] == "failed":
        return Verdict(True, "fails with etcd, too", "the test does not pass here with real etcd either")
    return Verdict(False, "failed", "with Mainstay and not with etcd" if result["etcd"] else "")
