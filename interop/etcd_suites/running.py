"""Runs tests of a Go test program one at a time, each alone with its processes and its ports, for a bounded time."""

import functools
import os
import re
import signal
import subprocess

RESULT = re.compile(rb"^ *--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)", re.M)


@functools.cache
def isolation():
    """Command that gives what follows its own network and processes, or nothing where that is not possible. etcd's tests
    use fixed ports, and some leave members behind."""
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
               'ip link set lo up && exec "$@"', "sh"]
    tried = subprocess.run([*command, "true"], capture_output=True)
    return command if tried.returncode == 0 else []


def tests_of(program, cwd):
    """Names of the top-level tests of a test program."""
    listed = subprocess.run([program, "-test.list", "^Test"], cwd=cwd, text=True, capture_output=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith("Test")]


class Outcome:
    """Result of a test: `state` is passed, failed or skipped; `parts` are the states of its subtests by name."""

    def __init__(self, state, seconds, parts, log):
        self.state, self.seconds, self.parts, self.log = state, seconds, parts, log


STATES = {b"PASS": "passed", b"FAIL": "failed", b"SKIP": "skipped"}


def run(program, test, cwd, flags, log, seconds_max, environment):
    """Runs one top-level test. What it writes goes to the file `log`. A test that does not end in `seconds_max`, or whose
    process crashes, has failed."""
    command = ["nice", "-n", "10", *isolation(), str(program), *flags, "-test.v", "-test.count=1",
               f"-test.timeout={seconds_max}s", f"-test.run={pattern(test)}"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        child = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 env={**os.environ, **environment}, start_new_session=True)
        try:
            # The test program ends itself at `seconds_max` and says where it was; this is for one that does not.
            code = child.wait(seconds_max + 30)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(child)
    return judge(log, test, code)


def pattern(test):
    return "/".join(f"^{re.escape(part)}$" for part in test.split("/"))


def end(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def judge(log, test, code):
    state, seconds, parts = "failed", 0.0, {}
    text = log.read_bytes()
    for word, name, took in RESULT.findall(text):
        if name.decode() == test:
            state, seconds = STATES[word], float(took)
        else:
            parts[name.decode().partition("/")[2]] = STATES[word]
    # etcd counts leaked goroutines after all tests; after one, those of a process that it has just stopped may be left.
    if code != 0 and not (state == "passed" and b"Unexpected goroutines running after all test(s)" in text):
        state = "failed"
    return Outcome(state, seconds, parts, log)


def skipped_because(outcome):
    """The reason that a skipped test gave: what it wrote last before its result, without paths of this machine."""
    said = re.findall(r"^\s+\S+\.go:\d+: (.+)$", outcome.log.read_text(errors="replace"), re.M)
    said = [re.sub(r'"/[^"]*/([^"/]+)"', r"\1", line) for line in said]
    return said[-1].strip() if said else "skips itself, without a reason"
