"""For kube_apiserver.py: the Lease objects of many nodes, which their kubelets create and renew."""

import concurrent.futures
import json
import re
import threading
import time

from kube_store import processor_time, wait_for

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CONNECTIONS = 16
CREATION_SECONDS = 100
RENEWAL_SECONDS = 40
RENEWAL_PERIOD = 10


def body(name, version, renewed):
    """A Lease object as text: to make it of a dictionary would cost the client more than the rest."""
    metadata = f'{{"name":"{name}"' + (f',"resourceVersion":"{version}"}}' if version else "}")
    return (f'{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{metadata},"spec":{{"holderIdentity":"{name}",'
            f'"leaseDurationSeconds":40,"renewTime":"2026-01-01T00:{renewed // 60 % 60:02}:{renewed % 60:02}.000000Z"}}}}')


class NodeChecks:
    """Needs `kube`, `store` and `options.nodes`."""

    def node_leases(self):
        """All leases are created, as many as there is time for, and each is renewed every ten seconds, as kubelets do, or as often as there
        is time. No renewal may fail, a watch sees each change of each lease once and in order, and in the end the lists are what was
        acknowledged."""
        kube, store = self.kube, self.store
        begin = kube.expect(200, "GET", f"{LEASES}?limit=1")["metadata"]["resourceVersion"]
        # The versions of each lease that were acknowledged, and that the watch saw.
        acknowledged, seen, latencies = {}, {}, []
        stop = threading.Event()

        def watch():
            connection = kube.connection()
            connection.request("GET", f"{LEASES}?watch=true&resourceVersion={begin}&timeoutSeconds=600")
            answer = connection.getresponse()
            assert answer.status == 200, answer.status
            for line in answer:
                item = json.loads(line)["object"]["metadata"]
                seen.setdefault(item["name"], []).append(int(item["resourceVersion"]))
                if item["name"] == "the-end":
                    break
            connection.close()

        def client(number, work):
            connection = kube.connection()
            try:
                work(number, connection)
            finally:
                connection.close()

        def request(connection, wanted, method, path, text):
            connection.request(method, path, text, {"Content-Type": "application/json", "Accept": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == wanted, f"{method} {path}: {answer.status} {said[:300]}"
            return int(re.search(rb'"resourceVersion":"(\d+)"', said)[1])

        def create(number, connection):
            for n in range(number, self.options.nodes, CONNECTIONS):
                if stop.is_set():
                    break
                name = f"node-{n:06}"
                acknowledged[name] = [request(connection, 201, "POST", LEASES, body(name, None, 0))]

        def renew(number, connection):
            mine, turn, start = sorted(acknowledged)[number::CONNECTIONS], 0, time.monotonic()
            while mine and not stop.is_set():
                turn += 1
                for n, name in enumerate(mine):
                    stop.wait(max(0, start + (turn - 1 + n / len(mine)) * RENEWAL_PERIOD - time.monotonic()))
                    began = time.monotonic()
                    version = request(connection, 200, "PUT", f"{LEASES}/{name}", body(name, acknowledged[name][-1], turn))
                    acknowledged[name].append(version)
                    latencies.append(time.monotonic() - began)
                    if stop.is_set():
                        break

        def phase(work, seconds):
            """Says how long it took, and the processor time of members, observers and kube-apiserver."""
            stop.clear()
            timer = threading.Timer(seconds, stop.set)
            timer.start()

            def used():
                return [store.cpu(store.names), store.cpu(store.observers), processor_time(kube.process.pid)]
            before, began = used(), time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as clients:
                for done in [clients.submit(client, number, work) for number in range(CONNECTIONS)]:
                    done.result()
            took = time.monotonic() - began
            timer.cancel()
            return took, [(after - earlier) / took for earlier, after in zip(before, used())]

        def figures(count, took, cores):
            store_us = sum(cores[:2]) * took / count * 1e6
            return (f"{count / took:.0f}/s, cores: members {cores[0]:.2f}, observers {cores[1]:.2f}, kube-apiserver {cores[2]:.2f}, "
                    f"store {store_us:.0f} us each")

        watching = self.threads.submit(watch)
        took, cores = phase(create, CREATION_SECONDS)
        count = len(acknowledged)
        created = figures(count, took, cores)
        took, cores = phase(renew, RENEWAL_SECONDS)
        renewed = figures(len(latencies), took, cores)
        end = request(kube.connection(), 201, "POST", LEASES, body("the-end", None, 0))
        acknowledged["the-end"] = [end]
        watching.result(120)
        wrong = [name for name in acknowledged.keys() | seen.keys() if acknowledged.get(name) != seen.get(name)]
        assert not wrong, f"the watch saw other changes of {len(wrong)} leases: {wrong[0]}: {seen.get(wrong[0])}, not {acknowledged.get(wrong[0])}"
        newest = {name: versions[-1] for name, versions in acknowledged.items()}

        def listed(query):
            items = kube.expect(200, "GET", f"{LEASES}{query}")["items"]
            return {item["metadata"]["name"]: int(item["metadata"]["resourceVersion"]) for item in items}
        assert listed("") == newest, "the list is not what was acknowledged"
        wait_for("the cache has what was acknowledged", lambda: listed("?resourceVersion=0") == newest, 30)
        latencies.sort()
        percentiles = ", ".join(f"p{p} {latencies[len(latencies) * p // 100] * 1000:.0f} ms" for p in [50, 99])
        return (f"\n        {count} leases created, {created}"
                f"\n        {len(latencies)} renewals, of {count / RENEWAL_PERIOD:.0f}/s: {renewed}; {percentiles}")
