#!/usr/bin/env python3
"""Rehearses what an operator hopes never to need, with programs that exist for it, and writes docs/rehearsals.md from the results.

    interop/rehearsals.py --mainstay PATH --etcd PATH [--etcd PATH ...] --etcdctl PATH [--interop PATH] [--previous PATH] [--round-trip DIR]
        --results FILE [--only NAME,...] [--full] [--document docs/rehearsals.md]
    interop/rehearsals.py --list

Each rehearsal is a command that counts its checks (`N passed, M failed`) and ends with 1 if one failed. FILE keeps the last result of each
rehearsal with each release of etcd, so rehearsals may be run one at a time, on several days. With --document the page is written from
FILE, after the run. What lacks a program is named in a line that begins with SKIPPED, and keeps its last result.

Ends with "N passed, M failed", the sums of what was run now. Python 3.9+, standard library only; cargo for tests of Mainstay's own.
"""

import argparse
import collections
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import time

from takeover import release_of

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Rehearsals take minutes; one that takes longer hangs.
PATIENCE_S = 3 * 3600
COUNTS = re.compile(r"^(?:test result: .* )?(\d+) passed[;,] (\d+) failed", re.MULTILINE)


class Rehearsal:
    """A command, and what it shows. `each` is run for every etcd; `{etcds}` stands for all of them."""

    def __init__(self, name, shows, words, each=False, needs=(), full=()):
        self.name, self.shows, self.words, self.each, self.needs, self.full = name, shows, words, each, needs, full


TAKEOVER = ["interop/takeover.py", "{etcds}", "--etcdctl", "{etcdctl}", "--mainstay", "{mainstay}"]
TEST = ["cargo", "test", "--locked", "--no-fail-fast", "--package"]
REHEARSALS = [
    Rehearsal("in place", "a member of etcd becomes Mainstay's on its directory, goes back by `utl export`, and forth again; an etcd started by "
              "mistake in between refuses, touches nothing, and its last line says what to do", [*TAKEOVER, "--only", "single"],
              needs=["etcds", "etcdctl"], full=["--short"]),
    Rehearsal("killed in place", "SIGKILL at moments all over the takeover: etcd's files stay as they were, or Mainstay goes on",
              [*TAKEOVER, "--only", "kills"], needs=["etcds", "etcdctl"], full=["--short"]),
    Rehearsal("rolling", "three members change to Mainstay and back, one after the other, while a client writes: no acknowledged write is lost",
              [*TAKEOVER, "--only", "cluster"], needs=["etcds", "etcdctl"], full=["--short"]),
    Rehearsal("a full disk", "the disk has no space for both: etcd's files stay as they were, and etcd goes on", [*TAKEOVER, "--only", "disk"],
              needs=["etcds", "etcdctl"], full=["--short"]),
    Rehearsal("mixed", "members change between etcd and Mainstay under kills and partitions; the whole history is judged",
              ["{interop}", "cluster", "history", "--server", "{etcd}", "--migrate", "{mainstay}", "--seconds", "40", "--every", "1s", "--faults",
               "in-place,in-place,replacement,kill-leader,kill-any,partition"], each=True, needs=["etcd", "interop"]),
    Rehearsal("by files", "a directory and a snapshot of etcd 3.4 to 3.7 to Mainstay and back, every revision compared",
              ["interop/round_trip.py", "--etcd-dir", "{round_trip}", "--mainstay", "{mainstay}", "--keys", "3000"], needs=["round_trip"]),
    Rehearsal("releases", "the previous release, this one, and the previous one again, under load and kills",
              ["interop/upgrade.py", "--previous", "{previous}", "--mainstay", "{mainstay}"], needs=["previous"]),
    Rehearsal("etcd beside", "etcd was started on a directory of Mainstay: refused, nothing lost, and the remedies that messages name work",
              [*TEST, "mainstay-utl", "--test", "it", "--", "takeover", "beside"]),
    Rehearsal("damaged files", "every kind of file with every kind of damage: repaired where that is safe, otherwise refused with file, offset "
              "and remedy", [*TEST, "mainstay", "--features", "full", "--test", "it", "damage"]),
    Rehearsal("power cuts", "the power fails at every operation of the log, and the nth operation fails", [*TEST, "mainstay-log", "--test", "it", "crash"]),
    Rehearsal("kill -9 under load", "processes are killed while clients write: every acknowledged write is there",
              [*TEST, "mainstay", "--test", "it", "crash"]),
]


def values_of(args, etcd):
    return {"etcd": etcd, "etcds": args.etcd, "etcdctl": args.etcdctl, "mainstay": args.mainstay, "interop": args.interop, "previous": args.previous,
            "round_trip": args.round_trip}


def run(rehearsal, values, short):
    """Runs it; returns its result, without the release."""
    words = []
    for word in rehearsal.words:
        words += [part for etcd in values["etcds"] for part in ("--etcd", etcd)] if word == "{etcds}" else [word.format(**values)]
    words += [word for word in rehearsal.full if short]
    began = time.monotonic()
    if words[0].endswith(".py"):
        words = [sys.executable, "-B", *words]
    try:
        done = subprocess.run(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=PATIENCE_S)
        said, code = done.stdout, done.returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        said, code = str(error), None
    good = bad = 0
    for one, other in COUNTS.findall(said):
        good, bad = good + int(one), bad + int(other)
    if code != 0 and bad == 0 or good + bad == 0:
        bad += 1
    if bad:
        print(f"FAILED {rehearsal.name}: {shlex.join(words)}: exit code {code}\n{said[-3000:]}", flush=True)
    return {"date": datetime.date.today().isoformat(), "passed": good, "failed": bad, "seconds": round(time.monotonic() - began),
            "short": bool(short and rehearsal.full)}


def shown(rehearsal):
    """The command as a reader may run it."""
    names = {"etcd": "ETCD", "etcds": "--etcd ETCD", "etcdctl": "ETCDCTL", "mainstay": "MAINSTAY", "interop": "INTEROP", "previous": "PREVIOUS", "round_trip": "DIR"}
    return " ".join(word.format(**names) for word in rehearsal.words)


def page(results):
    lines = ["# Rehearsals", "",
             "<!-- shown on this page: interop/rehearsals.py runs them -->", "",
             "What an operator hopes never to need, done with real programs, with the dates and results of the last time. Data are compared after each",
             "step: HashKV at several revisions, keys, leases, members. `short` means that a part was run.", "",
             "```console",
             "interop/rehearsals.py --mainstay PATH --etcd PATH --etcd PATH --etcdctl PATH --interop PATH --previous PATH --round-trip DIR \\",
             "    --results interop/rehearsals.json --full --document docs/rehearsals.md", "```", "",
             "| rehearsal | etcd | Mainstay | date | checks | failed | seconds | |", "|---|---|---|---|---|---|---|---|"]
    missing = []
    for rehearsal in REHEARSALS:
        found = [result for key, result in sorted(results.items()) if key.split("/")[0] == rehearsal.name]
        if not found:
            missing.append(rehearsal.name)
        for result in found:
            lines.append(f"| {rehearsal.name} | {result['etcd'] or ''} | {result['mainstay']} | {result['date']} | {result['passed'] + result['failed']} | "
                         f"{result['failed'] or ''} | {result['seconds']} | {'short' if result['short'] else ''} |")
    if missing:
        lines += ["", f"Not run so far with this page's command: {', '.join(missing)}."]
    lines += ["", "## What each shows, and its command", "", "| rehearsal | shows |", "|---|---|"]
    lines += [f"| {rehearsal.name} | {rehearsal.shows} |" for rehearsal in REHEARSALS]
    lines += ["", "```console"]
    done = collections.OrderedDict((shown(rehearsal), None) for rehearsal in REHEARSALS)
    lines += [*done, "```", "", "ETCD is the server of one release, ETCDCTL the newest `etcdctl`, INTEROP the program of `interop/go`, PREVIOUS the "
              "release of", "Mainstay before, and DIR a folder with `etcd-3.4` and so on."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay")
    parser.add_argument("--etcd", action="append", default=[], help="a real etcd, 3.4 to 3.7; may be repeated")
    parser.add_argument("--etcdctl")
    parser.add_argument("--interop", help="the program that interop/go builds")
    parser.add_argument("--previous", help="binary of the previous release")
    parser.add_argument("--round-trip", dest="round_trip", help="a folder with etcd-3.4 and so on")
    parser.add_argument("--results", help="file of results, read and written")
    parser.add_argument("--only", help="some rehearsals, by name")
    parser.add_argument("--build", help="what the page calls this build of Mainstay; by default the commit that it names, or that of the checkout")
    parser.add_argument("--full", action="store_true", help="all of each rehearsal, not the short form")
    parser.add_argument("--document", help="the page to write")
    parser.add_argument("--list", action="store_true", help="names and commands")
    args = parser.parse_args()
    if args.list:
        for rehearsal in REHEARSALS:
            print(f"{rehearsal.name:20} {shown(rehearsal)}")
        return 0
    if not (args.mainstay and args.results):
        parser.error("--mainstay and --results are needed")
    wanted = args.only.split(",") if args.only else [rehearsal.name for rehearsal in REHEARSALS]
    unknown = set(wanted) - {rehearsal.name for rehearsal in REHEARSALS}
    if unknown:
        parser.error(f"no rehearsal {', '.join(sorted(unknown))}; see --list")
    results = {}
    if os.path.exists(args.results):
        with open(args.results, encoding="utf-8") as file:
            results = json.load(file)
    version = subprocess.run([args.mainstay, "--version"], text=True, stdout=subprocess.PIPE, check=True).stdout
    commit = re.search(r"Git SHA: ([0-9a-f]{10})", version)
    commit = commit[1] if commit else subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                                     check=True).stdout.strip()
    commit = args.build or commit
    passed = failed = 0
    for rehearsal in REHEARSALS:
        if rehearsal.name not in wanted:
            continue
        for etcd in args.etcd if rehearsal.each else [None]:
            values = values_of(args, etcd)
            lacking = [need for need in rehearsal.needs if not values[need]]
            if lacking:
                print(f"SKIPPED {rehearsal.name}: no --{lacking[0].replace('_', '-').removesuffix('s')}", flush=True)
                continue
            release = release_of(etcd) if etcd else None
            if "etcds" in rehearsal.needs:
                release = ", ".join(sorted(release_of(one) for one in args.etcd))
            result = {"etcd": release, "mainstay": commit, **run(rehearsal, values, not args.full)}
            print(f"{rehearsal.name}{f', etcd {release}' if release else ''}: {result['passed']} passed, {result['failed']} failed, "
                  f"{result['seconds']} s", flush=True)
            results[f"{rehearsal.name}/{(release or '') if rehearsal.each else ''}"] = result
            passed, failed = passed + result["passed"], failed + result["failed"]
            with open(args.results + ".tmp", "w", encoding="utf-8") as file:
                json.dump(results, file, indent=1, sort_keys=True)
            os.replace(args.results + ".tmp", args.results)
        if rehearsal.each and not args.etcd:
            print(f"SKIPPED {rehearsal.name}: no --etcd", flush=True)
    if args.document:
        with open(os.path.join(ROOT, args.document), "w", encoding="utf-8") as file:
            file.write(page(results))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
