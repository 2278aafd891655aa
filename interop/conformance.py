#!/usr/bin/env python3
"""etcd's own tests of whole servers, with Mainstay in the place of etcd: `tests/common`, `tests/e2e` and the robustness tests.

The modules come from the Go module proxy and are built in --work, where results are kept too. Each test runs alone, with its own
network and processes where that is possible. A test that fails is run once more; if it fails again, also with real etcd in the place
of Mainstay. What may fail, and why, is in etcd_suites/expected.txt; a test named there that passes is an error, too.

    interop/conformance.py --mainstay PATH --work DIR [--release 3.7] [--suite e2e] [--only REGEX]
    interop/conformance.py --mainstay PATH --work DIR --document docs/conformance.md

With --document nothing is run: the page is written from the results in --work. The last line is `N passed, M failed`.
Python 3.9+, standard library only; Go 1.26. Root, for own networks; without it nothing else may use etcd's test ports (20000 on).
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from etcd_suites import document, expectations, modules, running

# The longest tests of etcd's are upgrades and downgrades of a whole cluster.
GOES_DOWN = re.compile("TestDowngrade|TestVersions$")
TEST_SECONDS = {"common": 300, "e2e": 300, "robustness": 1800}
# Most tests that may not pass wait for what does not come.
EXPECTED_SECONDS = 60


class Suite:
    """A test program with what it needs. `flags_down` are for tests that start the program of the release before on the files of this
    one, so both have to be Mainstay; None if there is no such release. `reference_flags` put real etcd in the place of Mainstay;
    None where that says nothing."""

    def __init__(self, release, name, program, cwd, flags, flags_down, reference_flags, tests):
        self.release, self.name, self.program, self.cwd, self.tests = release, name, program, cwd, tests
        self.flags, self.flags_down, self.reference_flags = flags, flags_down, reference_flags

    def flags_of(self, test):
        return self.flags_down if GOES_DOWN.match(test) and self.flags_down else self.flags


def prepare(release_name, suite_name, work, mainstay):
    release = modules.Release(release_name, work)
    release.build_programs()
    older = modules.OLDER.get(release_name)
    if older:
        other = modules.Release(older, work)
        other.build_programs()
    own = mainstay if release_name == "3.7" else modules.as_release(work / f"as-{release_name}" / "etcd", mainstay, release_name)
    last = other.programs / "etcd" if older else None
    if suite_name == "robustness":
        return prepare_robustness(release, own, work, mainstay, older)
    release.build_tests()
    # etcdctl is etcd's, so that only the server differs; etcdutl has to read the server's own files.
    programs = {"etcd": own, "etcdctl": release.programs / "etcdctl", "etcdutl": etcdutl(work, mainstay)}
    ours = modules.fill_bin(work / f"bin-{release_name}", **programs, etcd_last_release=last)
    down = None
    if older:
        as_older = modules.as_release(work / f"as-{older}" / "etcd", mainstay, older)
        down = [f"-bin-dir={modules.fill_bin(work / f'bin-{release_name}-down', **programs, etcd_last_release=as_older)}"]
    reference = modules.fill_bin(work / f"bin-{release_name}-reference", etcd_last_release=last,
                                 **{name: release.programs / name for name in programs})
    program, cwd = release.tests / f"{suite_name}.test", release.tests / suite_name
    return Suite(release_name, suite_name, program, cwd, [f"-bin-dir={ours}"], down, [f"-bin-dir={reference}"],
                 running.tests_of(program, cwd))


def prepare_robustness(release, own, work, mainstay, older):
    program, certificates = modules.build_robustness(work)
    ours = modules.fill_bin(work / f"bin-{release.release}-robustness", etcd=own, etcdctl=release.programs / "etcdctl")
    flags = [f"-cert-dir={certificates}", f"-bin-dir={ours}"]
    # The others of mixed clusters are etcd's of this release.
    mixed, down = [*flags, f"-bin-last-release={release.programs / 'etcd'}"], None
    tests = running.tests_of(program, modules.ROBUSTNESS)
    if older and older != "3.5":
        down = [*flags, f"-bin-last-release={modules.as_release(work / f'as-{older}' / 'etcd', mainstay, older)}"]
    else:
        # Before 3.6 etcd has no downgrades.
        tests.remove("TestVersions")
    return Suite(release.release, "robustness", program, modules.ROBUSTNESS, mixed, down, None, tests)


def etcdutl(work, mainstay):
    link = work / "mainstay-etcdutl" / "etcdutl"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(mainstay)
    return link


class Run:
    """Runs suites, and keeps each result in a file below `work` at once."""

    def __init__(self, work):
        self.work, self.passed, self.failed = work, 0, 0
        self.file = work / "results.json"
        self.results = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.expected = expectations.read()

    def once(self, suite, test, flags, log):
        temporary = self.work / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {"TMPDIR": str(temporary), "RESULTS_DIR": str(self.work / "reports")}
        seconds = TEST_SECONDS[suite.name]
        if expectations.of(self.expected, suite.release, suite.name, test):
            seconds = EXPECTED_SECONDS
        return running.run(suite.program, test, suite.cwd, flags, log, seconds, environment)

    def test(self, suite, test):
        flags = suite.flags_of(test)
        log = self.work / "logs" / suite.release / suite.name / f"{test}.log"
        outcome = self.once(suite, test, flags, log)
        result = {"state": outcome.state, "seconds": outcome.seconds, "parts": outcome.parts, "again": None, "etcd": None}
        if outcome.state == "failed" and not expectations.of(self.expected, suite.release, suite.name, test):
            self.again(suite, test, flags, log, result)
        elif outcome.state == "skipped":
            result["reason"] = running.skipped_because(outcome)
        self.results[f"{suite.release}/{suite.name}/{test}"] = result
        self.file.write_text(json.dumps(self.results, indent=1, sort_keys=True))
        self.judge(suite, test, result, log)

    def again(self, suite, test, flags, log, result):
        """Runs a failed test once more; of the robustness tests, which take long, only the failed parts."""
        failed = [part for part, state in result["parts"].items() if state == "failed"]
        if suite.name == "robustness" and failed:
            states = {part: self.once(suite, f"{test}/{part}", flags, log.with_suffix(f".again.{n}.log")).state
                      for n, part in enumerate(failed)}
            result["parts"].update(states)
            result["again"] = "failed" if "failed" in states.values() else "passed"
            return
        again = self.once(suite, test, flags, log.with_suffix(".again.log"))
        result["again"] = again.state
        if again.state == "passed":
            result["parts"] = again.parts
        elif suite.reference_flags:
            result["etcd"] = self.once(suite, test, suite.reference_flags, log.with_suffix(".etcd.log")).state

    def judge(self, suite, test, result, log):
        verdict = expectations.verdict(self.expected, suite.release, suite.name, test, result)
        if verdict.right:
            self.passed += 1
        else:
            self.failed += 1
        word = "ok     " if verdict.right else "FAILED "
        print(f"{word} {suite.release} {suite.name} {test}: {verdict.text} ({result['seconds']:.0f} s)"
              + ("" if verdict.right else f", {log}"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", type=Path, required=True, help="the server's program")
    parser.add_argument("--work", type=Path, required=True, help="folder for modules, programs, logs and results")
    parser.add_argument("--release", action="append", choices=sorted(modules.VERSIONS), help="all, unless given")
    parser.add_argument("--suite", action="append", choices=["common", "e2e", "robustness"], help="all, unless given")
    parser.add_argument("--only", default="", help="top-level tests whose names match")
    parser.add_argument("--missing", action="store_true", help="only tests without a result in --work")
    parser.add_argument("--document", type=Path, help="write this page from the results")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    run = Run(work)
    mainstay = arguments.mainstay.resolve()
    if arguments.document:
        arguments.document.write_text(document.page(run.results, run.expected, mainstay))
        return 0
    if not running.isolation():
        print("Tests share the network of this machine: this user may not make another one.")
    try:
        for release in arguments.release or sorted(modules.VERSIONS, reverse=True):
            for name in arguments.suite or [*modules.SUITES[release], "robustness"]:
                if name != "robustness" and name not in modules.SUITES[release]:
                    continue
                suite = prepare(release, name, work, mainstay)
                for test in suite.tests:
                    if re.search(arguments.only, test) and not (arguments.missing and f"{release}/{name}/{test}" in run.results):
                        run.test(suite, test)
    except (modules.BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"not possible: {error}", file=sys.stderr)
        return 2
    print(f"{run.passed} passed, {run.failed} failed")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
