#!/usr/bin/env python3
"""Figures of the continuous backup. `shipping`: puts at a fixed rate, alternately without and with a process that ships; lag of the
backup, p99 of the puts, and processor time of both. `restore`: a backup of some gigabytes, of which random revisions are restored; each
must have the HashKV of the member, and every key that the history says.
"""

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from backup import Process, Server, cpu_seconds, directory_of_run, text, wait_for
from ports import free_port


class Shipper(Process):
    """A process that ships to a directory, and tells its metrics."""

    def __init__(self, arguments, directory, name, feed, to):
        peer, self.metrics = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        super().__init__(directory, name, [
            arguments.mainstay, "backup", "run", f"--to=file://{to}", f"--data-dir={directory / name}", f"--feed={feed}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--listen-metrics-urls={self.metrics}"])

    def metric(self, name):
        try:
            with urllib.request.urlopen(f"{self.metrics}/metrics", timeout=10) as answer:
                for line in answer.read().decode().splitlines():
                    if line.startswith(f"{name} "):
                        return float(line.split()[1])
        except OSError:
            pass
        return None


def listed(arguments, to):
    done = subprocess.run([arguments.mainstay, "backup", "list", f"file://{to}", "-w", "json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def put_load(arguments, member):
    done = subprocess.run(
        [arguments.mainstay, "bench", f"--endpoints={member.client.removeprefix('http://')}", "--conns=20", "--clients=400",
         "--json=-", "put", f"--rate={arguments.rate}", f"--duration={arguments.seconds}s", "--warmup=3s", "--val-size=256",
         "--key-size=16", "--key-space-size=100000"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def p99_ms(report):
    row = report["rows"][0]["median"]
    return row["latency_ms"]["p99"], row["rate_per_s"]


def shipping(arguments, directory):
    member = Server(directory, "member", arguments.mainstay).start()
    rounds = {False: [], True: []}
    for number in range(arguments.rounds):
        for ships in (False, True):
            shipper, lags, stops = None, [], threading.Event()
            if ships:
                to = directory / f"to-{number}"
                to.mkdir()
                shipper = Shipper(arguments, directory, f"shipper-{number}", member.peer, to).start()
                wait_for("a base is there", lambda at=to: listed(arguments, at) or shipper.alive())

            def sample():
                while not stops.wait(0.25):
                    lag = shipper.metric("mainstay_backup_lag_seconds")
                    if lag is not None:
                        lags.append(lag)

            sampling = threading.Thread(target=sample, daemon=True)
            if ships:
                sampling.start()
            own = shipper.process.pid if ships else None
            before = (cpu_seconds(member.process.pid), cpu_seconds(own) if ships else 0, time.monotonic())
            p99, rate = p99_ms(put_load(arguments, member))
            took = time.monotonic() - before[2]
            cpu = ((cpu_seconds(member.process.pid) - before[0]) / took, (cpu_seconds(own) - before[1]) / took if ships else 0)
            stops.set()
            rounds[ships].append((p99, rate, *cpu, percentile(lags, 0.99) if lags else None))
            print(f"{'with' if ships else 'without'} a backup: {rate:.0f} puts/s, p99 {p99:.2f} ms, member {cpu[0] * 100:.0f} % of a "
                  f"processor" + (f", shipper {cpu[1] * 100:.0f} %, lag p99 {rounds[ships][-1][4]:.0f} s" if ships else ""), flush=True)
            if shipper:
                shipper.stop()

    def median(ships, at):
        return percentile([one[at] for one in rounds[ships]], 0.5)

    print(f"p99 {median(True, 0) / median(False, 0):.2f} of that without a backup; the member takes "
          f"{median(True, 2) / median(False, 2) * 100 - 100:+.1f} % processor time", flush=True)


def restore(arguments, directory):
    """One client puts values that cannot be compressed, so its answers are the history."""
    member = Server(directory, "member", arguments.mainstay, flags=["--quota-backend-bytes=68719476736"]).start()
    to = directory / "to"
    to.mkdir()
    shipper = Shipper(arguments, directory, "shipper", member.peer, to).start()
    wait_for("a base is there", lambda: listed(arguments, to) or shipper.alive())
    generator, history, bytes_put = random.Random(arguments.seed), [], 0
    while bytes_put < arguments.gigabytes * 1e9:
        key, value = f"k/{generator.randrange(400)}", generator.randbytes(arguments.value_bytes * 3 // 4).hex()
        if generator.random() < 0.05:
            answer, value = member.call("kv/deleterange", {"key": text(key)}), None
        else:
            answer = member.put(key, value)
            bytes_put += len(value)
        history.append((int(answer["header"]["revision"]), text(key), value and hashlib.sha256(text(value).encode()).digest()))
    newest = history[-1][0]
    wait_for("all is shipped", lambda: shipper.alive() or max(epoch["to"]["revision"] for epoch in listed(arguments, to)) >= newest)
    shipper.stop()
    size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    print(f"{len(history)} changes of {bytes_put / 1e9:.1f} GB; the backup has {size / 1e9:.1f} GB", flush=True)
    first = min(epoch["from"]["revision"] for epoch in listed(arguments, to))
    for revision in sorted(generator.sample(range(first + 1, newest + 1), 5)):
        name = f"restored-{revision}"
        server = Server(directory, name, arguments.mainstay, flags=["--quota-backend-bytes=68719476736"])
        begun = time.monotonic()
        subprocess.run([arguments.mainstay, "utl", "snapshot", "restore", f"file://{to}", f"--to-revision={revision}",
                        f"--data-dir={server.data}", f"--name={name}", f"--initial-cluster={name}={server.peer}",
                        f"--initial-advertise-peer-urls={server.peer}"], check=True, capture_output=True)
        took = time.monotonic() - begun
        server.start()
        hashes = [at.call("maintenance/hashkv", {"revision": str(revision)})["hash"] for at in (server, member)]
        if hashes[0] != hashes[1]:
            raise RuntimeError(f"revision {revision}: HashKV {hashes}")
        expected = {}
        for changed, key, digest in history:
            if changed <= revision:
                expected.pop(key, None)
                if digest:
                    expected[key] = (changed, digest)
        found = {}
        for number in range(400):
            for kv in server.call("kv/range", {"key": text(f"k/{number}")}).get("kvs", []):
                found[kv["key"]] = (int(kv["mod_revision"]), hashlib.sha256(kv["value"].encode()).digest())
        if found != expected:
            raise RuntimeError(f"revision {revision}: {len(found)} keys, and the history says {len(expected)}")
        server.stop()
        shutil.rmtree(server.data)
        print(f"revision {revision} restored in {took:.1f} s: HashKV and {len(found)} keys as they were", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["shipping", "restore"], help="what is measured")
    parser.add_argument("--mainstay", required=True, help="the program mainstay, a release build")
    parser.add_argument("--rate", type=int, default=10_000, help="puts per second")
    parser.add_argument("--seconds", type=int, default=30, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements with and without a backup")
    parser.add_argument("--gigabytes", type=float, default=10, help="bytes that are put; the disk needs four times as much")
    parser.add_argument("--value-bytes", type=int, default=256 << 10, help="bytes of a value")
    parser.add_argument("--seed", type=int, default=1, help="seed of the keys and the revisions")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    arguments = parser.parse_args()
    arguments.mainstay = str(Path(arguments.mainstay).resolve())
    with directory_of_run("mainstay-backup-figures-", arguments.keep) as directory:
        {"shipping": shipping, "restore": restore}[arguments.what](arguments, directory)
    print("ok")


if __name__ == "__main__":
    main()
