#!/usr/bin/env python3
"""How much a range of 20,000 keys in a loop holds up cheap reads and writes.

    interop/expensive_range.py --benchmark PATH --server NAME=PATH [--server ...]

20,000 keys of 1 KiB; cheap reads of one key at 100/s and puts at 100/s for ten seconds each, first alone and then
while one client reads all 20,000 keys again and again. Prints the p99 of both, and the ratio. Needs h2load.
"""

import os
import re
import subprocess
import tempfile

from side_by_side import arguments, filled, frame


def p99_ms(benchmark, endpoint, words):
    command = [benchmark, f"--endpoints={endpoint}", "--conns=10", "--clients=10", *words, "--rate=100", "--total=1000"]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120).stdout
    return float(re.search(r"^\s+99% in (\S+) secs", out, re.M).group(1)) * 1e3


def main():
    args = arguments(__doc__).parse_args()
    print("| server | load | alone p99 ms | beside the ranges p99 ms | ratio | ranges/s |\n|---|---|---|---|---|---|")
    for server in filled(args, 20_000, 1024):
        endpoint = f"127.0.0.1:{args.port}"
        loads = [("cheap read", ["range", "cheap"]), ("put", ["put", "--val-size=128", "--key-space-size=1"])]
        alone = {load: p99_ms(args.benchmark, endpoint, words) for load, words in loads}
        with tempfile.TemporaryDirectory() as work:
            body = frame(os.path.join(work, "all"), (1, b"\0"), (2, b"\0"))
            for load, words in loads:
                loop = subprocess.Popen(["h2load", "-t1", "-c1", "-m1", "-D", "14", "-w", "20", "-W", "24", "-d", body,
                                         "-H", "content-type: application/grpc", "-H", "te: trailers",
                                         f"http://{endpoint}/etcdserverpb.KV/Range"],
                                        stdout=subprocess.PIPE, text=True)
                beside = p99_ms(args.benchmark, endpoint, words)
                rate = re.search(r"finished in .*?, (\S+) req/s", loop.communicate()[0]).group(1)
                print(f"| {server.name} | {load} | {alone[load]:.2f} | {beside:.2f} | {beside / alone[load]:.2f} | {rate} |",
                      flush=True)


if __name__ == "__main__":
    main()
