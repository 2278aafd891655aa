"""Fetches etcd's tests and programs from the Go module proxy and builds them. Nothing of etcd is kept in this repository."""

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROBUSTNESS = HERE.parent / "robustness"

# The newest version of each release that the proxy has with its tests.
VERSIONS = {"3.5": "v3.5.35", "3.6": "v3.6.16", "3.7": "v3.7.3"}
OLDER = {"3.7": "3.6", "3.6": "3.5"}
# 3.5 has the tests that later releases have in `common` among its end-to-end tests.
SUITES = {"3.5": ["e2e"], "3.6": ["common", "e2e"], "3.7": ["common", "e2e"]}
TESTS = "go.etcd.io/etcd/tests/v3"


class BuildError(Exception):
    """A module could not be fetched or built; the text has the command's output."""


def go(args, cwd, **environment):
    """Runs a command of Go, three times if it fails for the network's sake. Returns its standard output."""
    for attempt in (1, 2, 3):
        done = subprocess.run(["go", *args], cwd=cwd, env={**os.environ, **environment}, text=True, capture_output=True)
        if done.returncode == 0:
            return done.stdout
        if attempt == 3 or "dial tcp" not in done.stderr and "timeout" not in done.stderr:
            raise BuildError(f"go {' '.join(args)}:\n{done.stderr}")
    raise AssertionError("unreachable")


def module_directory(version):
    """Returns where the module cache has etcd's tests of a version, after fetching them."""
    return Path(json.loads(go(["mod", "download", "-json", f"{TESTS}@{version}"], cwd=HERE.parent))["Dir"])


class Release:
    """Programs and tests of one release of etcd, in folders below `work`; built once."""

    def __init__(self, release, work):
        self.release, self.version = release, VERSIONS[release]
        self.tests = work / f"tests-{self.version}"
        self.programs = work / f"etcd-{self.version}"

    def build_programs(self):
        """Builds etcd, etcdctl and etcdutl."""
        if (self.programs / "done").exists():
            return
        shutil.rmtree(self.programs, ignore_errors=True)
        self.programs.mkdir(parents=True)
        go(["mod", "init", "etcd-build"], self.programs)
        parts = {"etcd": "server", "etcdctl": "etcdctl", "etcdutl": "etcdutl"}
        go(["get", *(f"go.etcd.io/etcd/{part}/v3@{self.version}" for part in parts.values())], self.programs)
        for name, part in parts.items():
            go(["build", "-o", name, f"go.etcd.io/etcd/{part}/v3"], self.programs)
        (self.programs / "done").touch()

    def build_tests(self):
        """Builds the suites, in a copy of their module: tests of a module can be built only as the main module."""
        if (self.tests / "done").exists():
            return
        shutil.rmtree(self.tests, ignore_errors=True)
        shutil.copytree(module_directory(self.version), self.tests)
        for path in [self.tests, *self.tests.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
        # The module refers to the other modules of etcd as its neighbours.
        for replaced in json.loads(go(["mod", "edit", "-json"], self.tests)).get("Replace") or []:
            if replaced["New"]["Path"].startswith("../"):
                go(["mod", "edit", f"-dropreplace={replaced['Old']['Path']}"], self.tests)
        for suite in SUITES[self.release]:
            go(["test", "-c", "-tags", "e2e", "-o", f"{suite}.test", f"./{suite}"], self.tests, GOFLAGS="-mod=mod")
        (self.tests / "done").touch()


def build_robustness(work):
    """Builds interop/robustness. Returns the program and the folder with the certificates that it needs."""
    program = work / "robustness.test"
    go(["vet", "."], ROBUSTNESS)
    go(["test", "-c", "-o", str(program), "."], ROBUSTNESS)
    return program, module_directory(VERSIONS["3.7"]) / "fixtures"


def fill_bin(folder, **programs):
    """Makes a folder with programs under the names that etcd's tests look for."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, program in programs.items():
        if program:
            (folder / name.replace("_", "-")).symlink_to(program)
    return folder


def as_release(path, mainstay, release):
    """Writes a script that runs Mainstay as a member that reports another release of etcd than its own. It answers
    `--version` itself, because etcd's tests choose flags by that."""
    version = VERSIONS[release].lstrip("v")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "#!/bin/sh\n"
        'for argument in "$@"; do\n'
        "    case $argument in --version | -version)\n"
        f"        printf 'etcd Version: %s\\nGo OS/Arch: linux/amd64\\n' {version}\n"
        "        exit 0 ;;\n"
        "    esac\n"
        "done\n"
        'case ${1:--} in -*) ;; *) exec ' + f"'{mainstay}'" + ' "$@" ;; esac\n'
        f"exec '{mainstay}' --api-version {release} \"$@\"\n"
    )
    path.chmod(0o755)
    return path
