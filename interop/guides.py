#!/usr/bin/env python3
"""Runs every command of the guides, as a reader would, and compares what programs print with what the guides promise.

    interop/guides.py --mainstay target/release/mainstay [--only quickstart,recovery] [--keep]

Each guide runs from top to bottom in one shell (bash) of its own, in an empty directory, with `mainstay`, `etcdctl` and `etcdutl`
(links to it) on the path. Where this user may, it has namespaces for network and processes of its own: the ports of the guides are
free there, and whatever a guide leaves running ends with it. Elsewhere the ports have to be free.

In a guide, a block that begins with three backticks and `sh` is run; every line of it must succeed. A block of `text` right behind
it is what that prints, on both streams: line by line, where `…` stands for anything within a line, and a line of `…` alone for any
lines. A block of `console` shows what cannot be run here, and is only looked at for flags of `mainstay` that do not exist.
Last line: "N passed, M failed". Standard library only; Linux, Python 3.9+, bash, curl.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GUIDES = ["quickstart", "recovery", "performance", "security"]
# Nothing in a guide takes as long.
PATIENCE_S = 300


class Step:
    """A block that is run, and what it has to print, if the guide says so."""

    def __init__(self, script, line):
        self.script, self.line, self.output = script, line, None


def steps_of(path):
    """The steps of a guide, and its blocks of `console` with their lines."""
    steps, shown, block, kind, first = [], [], None, None, 0
    follows = False
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if block is None:
                if line.startswith("```"):
                    block, kind, first = [], line[3:].strip(), number
                elif line.strip():
                    follows = False
            elif line.startswith("```"):
                text = "".join(block)
                if kind == "sh":
                    steps.append(Step(text, first))
                elif kind == "text" and follows:
                    steps[-1].output = text
                elif kind == "console":
                    shown.append((text, first))
                follows, block = kind == "sh", None
            else:
                block.append(line)
    if block is not None:
        sys.exit(f"{path}:{first}: the block does not end")
    return steps, shown


def pattern(expected):
    """What the output has to match as a whole."""
    out = []
    for line in expected.rstrip("\n").split("\n"):
        if line.strip() == "…":
            out.append(r"(?:[^\n]*\n)*?")
        else:
            out.append(".*?".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ \t]*\n")
    return re.compile("".join(out) + r"\Z")


def wrapped():
    """The command before bash that gives it namespaces of its own, if this user may have them."""
    wrapper = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]
    if os.getuid() != 0:
        wrapper.insert(1, "--map-root-user")
    probe = "ip link set lo up 2>/dev/null || ifconfig lo up"
    try:
        done = subprocess.run([*wrapper, "sh", "-c", probe], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return [], ""
    return (wrapper, f"{probe}\n") if done.returncode == 0 else ([], "")


MARK = "--- end of step "


def run(name, steps, work, bin_dir):
    """Runs the steps; gives one line for each failure."""
    wrapper, before = wrapped()
    directory = os.path.join(work, name)
    os.mkdir(directory)
    # Each step is a file of its own that the shell reads, so that `set -e` ends the guide at the first command that fails, and what
    # a step prints can be told from what the next one does.
    script = [before, "exec 2>&1\nset -e\n"]
    for number, step in enumerate(steps):
        path = os.path.join(work, f"{name}-{number}.sh")
        with open(path, "w", encoding="utf-8") as file:
            file.write(step.script)
        script.append(f"printf '\\n%s\\n' '{MARK}{number} begins'\n. {path}\n")
    script.append(f"printf '\\n%s\\n' '{MARK}{len(steps)} begins'\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ETCD", "MAINSTAY"))}
    environment.update(PATH=f"{bin_dir}:{environment.get('PATH', '')}", HOME=directory, LC_ALL="C.UTF-8", TERM="dumb",
                       # On a busy machine a start may take longer than the tool waits by itself.
                       ETCDCTL_COMMAND_TIMEOUT="30s")
    log = os.path.join(work, f"{name}.log")
    with open(log, "wb") as out:
        process = subprocess.Popen([*wrapper, "bash", "--norc", "-c", "".join(script)], cwd=directory, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # What runs without namespaces ends with its group.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    with open(log, encoding="utf-8", errors="replace") as file:
        parts = re.split(rf"\n{MARK}\d+ begins\n", file.read())
    failures = []
    if len(parts) == 1:
        return [f"docs/{name}.md: the shell did not start: {parts[0].strip()}"]
    for number, step in enumerate(steps):
        if number + 2 >= len(parts):
            said = parts[-1].strip()
            return [*failures, f"docs/{name}.md:{step.line}: ended within this step, or took too long:\n{step.script}\n{said[-3000:]}"]
        said = parts[number + 1]
        # The shell tells which of its processes a signal has ended, whenever it notices.
        said = re.sub(r"^\S+: line \d+: +\d+ (Killed|Terminated) .*\n", "", said, flags=re.M)
        if step.output is not None and not pattern(step.output).match(said if said.endswith("\n") else f"{said}\n"):
            failures.append(f"docs/{name}.md:{step.line}: the guide says\n{step.output}\nbut it printed\n{said[-3000:]}")
    return failures


def unknown_flags(shown, mainstay):
    """Flags that stand in commands which are only shown, and that the member does not have."""
    known = subprocess.run([mainstay, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    known = set(re.findall(r"--[a-z][a-z0-9-]+", known))
    return [f"line {line}: mainstay has no flag {flag}" for text, line in shown
            for command in re.findall(r"^mainstay (--.*(?:\\\n.*)*)", text, re.M)
            for flag in re.findall(r"--[a-z][a-z0-9-]+", command) if flag not in known]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", required=True)
    parser.add_argument("--only", default=",".join(GUIDES))
    parser.add_argument("--keep", action="store_true", help="leave the directory with outputs and data")
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix="guides-")
    bin_dir = os.path.join(work, "bin")
    os.mkdir(bin_dir)
    for name in ("mainstay", "etcdctl", "etcdutl"):
        os.symlink(os.path.abspath(args.mainstay), os.path.join(bin_dir, name))
    passed = failed = 0
    for name in args.only.split(","):
        steps, shown = steps_of(os.path.join(ROOT, "docs", f"{name}.md"))
        if not steps:
            sys.exit(f"docs/{name}.md has no commands")
        failures = run(name, steps, work, bin_dir) + [f"docs/{name}.md: {text}" for text in unknown_flags(shown, args.mainstay)]
        failed += len(failures)
        passed += max(len(steps) - len(failures), 0)
        for failure in failures:
            print(f"FAILED  {failure}")
        print(f"docs/{name}.md: {len(steps)} steps, {len(failures)} failures", flush=True)
    if args.keep:
        print(work)
    else:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


main()
