import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.ClientBuilder;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.Lease;
import io.etcd.jetcd.Watch;
import io.etcd.jetcd.Watch.Watcher;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.op.Cmp;
import io.etcd.jetcd.op.CmpTarget;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.options.WatchOption;
import io.etcd.jetcd.watch.WatchEvent;
import io.grpc.stub.StreamObserver;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * jetcd over TLS, as the user {@code alice}, who may use the keys below {@code alice/}. The variables ENDPOINT, CACERT, CERT,
 * KEY, USER, PASSWORD and TOKEN_SECONDS (after so many unused seconds a token is void) say how; {@code interop/secured_clients.py}
 * sets them. An argument "--without locks" leaves out the lock and election services.
 */
public final class Interop {
    private interface Case {
        void run() throws Exception;
    }

    private static int passed;
    private static int failed;

    private static ByteSequence bytes(String text) {
        return ByteSequence.from(text, StandardCharsets.UTF_8);
    }

    private static <T> T get(CompletableFuture<T> future) throws Exception {
        return future.get(20, TimeUnit.SECONDS);
    }

    private static void check(boolean holds, Object what) {
        if (!holds) {
            throw new AssertionError(String.valueOf(what));
        }
    }

    private static void run(String name, Case what) {
        try {
            what.run();
            passed++;
            System.out.println("ok      java " + name);
        } catch (Throwable error) {
            failed++;
            System.out.println("FAILED  java " + name + ": " + error);
        }
    }

    private static String refusal(CompletableFuture<?> future) throws Exception {
        try {
            get(future);
            return "";
        } catch (ExecutionException error) {
            return String.valueOf(error.getCause());
        }
    }

    private static Client connect(String user, String password) throws Exception {
        String cert = System.getenv("CERT");
        ClientBuilder builder = Client.builder().endpoints("https://" + System.getenv("ENDPOINT")).authority("localhost")
            .sslContext(tls -> {
                tls.trustManager(new File(System.getenv("CACERT")));
                if (cert != null) {
                    tls.keyManager(new File(cert), new File(System.getenv("KEY")));
                }
            });
        if (user != null) {
            builder.user(bytes(user)).password(bytes(password));
        }
        return builder.build();
    }

    public static void main(String[] arguments) throws Exception {
        String user = System.getenv("USER_NAME");
        boolean locks = !String.join(" ", arguments).contains("--without locks");
        int tokenSeconds = Integer.parseInt(System.getenv().getOrDefault("TOKEN_SECONDS", "0"));
        try (Client client = connect(user, System.getenv("PASSWORD"))) {
            KV kv = client.getKVClient();
            run("put and range", () -> {
                for (int n = 0; n < 100; n++) {
                    get(kv.put(bytes("alice/k" + String.format("%03d", n)), bytes("v" + n)));
                }
                var all = get(kv.get(bytes("alice/k"), GetOption.builder().isPrefix(true).withLimit(30).build()));
                check(all.getKvs().size() == 30 && all.getCount() == 100 && all.isMore(), all);
                var one = get(kv.get(bytes("alice/k042"))).getKvs().get(0);
                check(one.getValue().equals(bytes("v42")) && one.getVersion() == 1, one);
                var before = get(kv.put(bytes("alice/k042"), bytes("new"), PutOption.builder().withPrevKV().build()));
                check(before.getPrevKv().getValue().equals(bytes("v42")), before);
                var gone = get(kv.delete(bytes("alice/k"), DeleteOption.builder().isPrefix(true).build()));
                check(gone.getDeleted() == 100, gone);
            });
            run("a large value", () -> {
                byte[] large = new byte[1_000_000];
                get(kv.put(bytes("alice/large"), ByteSequence.from(large)));
                check(get(kv.get(bytes("alice/large"))).getKvs().get(0).getValue().getBytes().length == large.length, "length");
            });
            run("many at once", () -> {
                var all = new java.util.ArrayList<CompletableFuture<?>>();
                for (int n = 0; n < 2000; n++) {
                    all.add(kv.put(bytes("alice/many/" + n), bytes("x")));
                }
                get(CompletableFuture.allOf(all.toArray(new CompletableFuture<?>[0])));
                var count = GetOption.builder().isPrefix(true).withCountOnly(true).build();
                check(get(kv.get(bytes("alice/many/"), count)).getCount() == 2000, "count");
            });
            run("transactions", () -> {
                get(kv.put(bytes("alice/t"), bytes("1")));
                Cmp is = new Cmp(bytes("alice/t"), Cmp.Op.EQUAL, CmpTarget.value(bytes("1")));
                Op two = Op.put(bytes("alice/t"), bytes("2"), PutOption.DEFAULT);
                Op read = Op.get(bytes("alice/t"), GetOption.DEFAULT);
                check(get(kv.txn().If(is).Then(two).Else(read).commit()).isSucceeded(), "first");
                var second = get(kv.txn().If(is).Then(two).Else(read).commit());
                check(!second.isSucceeded() && second.getGetResponses().get(0).getKvs().get(0).getValue().equals(bytes("2")), second);
            });
            run("what is not granted", () -> {
                check(refusal(kv.put(bytes("bob"), bytes("x"))).contains("permission denied"), "put");
                check(refusal(kv.get(bytes("a"), GetOption.builder().withRange(bytes("z")).build())).contains("permission denied"), "range");
                check(refusal(client.getAuthClient().userAdd(bytes("eve"), bytes("e"))).contains("permission denied"), "user add");
                check(refusal(kv.txn().Then(Op.put(bytes("bob"), bytes("x"), PutOption.DEFAULT)).commit()).contains("permission denied"), "txn");
            });
            BlockingQueue<WatchEvent> events = new LinkedBlockingQueue<>();
            Watch.Listener listener = Watch.listener(response -> events.addAll(response.getEvents()));
            WatchOption below = WatchOption.builder().isPrefix(true).withPrevKV(true).build();
            Watcher watcher = client.getWatchClient().watch(bytes("alice/w"), below, listener);
            run("watch", () -> {
                // The watch begins some time after the call.
                WatchEvent first = null;
                for (int n = 0; n < 100 && first == null; n++) {
                    get(kv.put(bytes("alice/w0"), bytes("begin")));
                    first = events.poll(200, TimeUnit.MILLISECONDS);
                }
                check(first != null, "no event");
                get(kv.put(bytes("alice/w1"), bytes("a")));
                get(kv.put(bytes("alice/w1"), bytes("b")));
                get(kv.delete(bytes("alice/w1")));
                WatchEvent event = events.poll(10, TimeUnit.SECONDS);
                while (event != null && event.getKeyValue().getKey().equals(bytes("alice/w0"))) {
                    event = events.poll(10, TimeUnit.SECONDS);
                }
                check(event.getKeyValue().getValue().equals(bytes("a")), event);
                event = events.poll(10, TimeUnit.SECONDS);
                check(event.getPrevKV().getValue().equals(bytes("a")) && event.getKeyValue().getValue().equals(bytes("b")), event);
                check(events.poll(10, TimeUnit.SECONDS).getEventType() == WatchEvent.EventType.DELETE, "delete");
            });
            run("a watch of what is not granted", () -> {
                CompletableFuture<Throwable> refused = new CompletableFuture<>();
                try (Watcher other = client.getWatchClient().watch(bytes("bob"), WatchOption.DEFAULT,
                    Watch.listener(response -> { }, refused::complete))) {
                    check(String.valueOf(get(refused)).toLowerCase().contains("permission"), get(refused));
                }
            });
            Lease leases = client.getLeaseClient();
            run("leases", () -> {
                long id = get(leases.grant(2)).getID();
                get(kv.put(bytes("alice/leased"), bytes("x"), PutOption.builder().withLeaseId(id).build()));
                BlockingQueue<LeaseKeepAliveResponse> kept = new LinkedBlockingQueue<>();
                try (var keeping = leases.keepAlive(id, new StreamObserver<>() {
                    @Override
                    public void onNext(LeaseKeepAliveResponse response) {
                        kept.add(response);
                    }

                    @Override
                    public void onError(Throwable error) { }

                    @Override
                    public void onCompleted() { }
                })) {
                    for (int n = 0; n < 6; n++) {
                        check(kept.poll(10, TimeUnit.SECONDS).getTTL() == 2, "kept");
                    }
                }
                check(get(kv.get(bytes("alice/leased"))).getCount() == 1, "still there");
                var left = get(leases.timeToLive(id, LeaseOption.builder().withAttachedKeys().build()));
                check(left.getKeys().equals(List.of(bytes("alice/leased"))), left);
                get(leases.revoke(id));
                check(get(kv.get(bytes("alice/leased"))).getCount() == 0, "gone");
            });
            if (locks) {
                run("locks", () -> {
                    long id = get(leases.grant(20)).getID();
                    var held = get(client.getLockClient().lock(bytes("alice/lock"), id));
                    check(get(kv.get(held.getKey())).getCount() == 1, "the key of the lock");
                    long other = get(leases.grant(20)).getID();
                    var waiting = client.getLockClient().lock(bytes("alice/lock"), other);
                    Thread.sleep(300);
                    check(!waiting.isDone(), "two hold it");
                    get(client.getLockClient().unlock(held.getKey()));
                    get(client.getLockClient().unlock(get(waiting).getKey()));
                });
                run("elections", () -> {
                    var elections = client.getElectionClient();
                    long id = get(leases.grant(20)).getID();
                    var leader = get(elections.campaign(bytes("alice/election"), id, bytes("first"))).getLeader();
                    check(get(elections.leader(bytes("alice/election"))).getKv().getValue().equals(bytes("first")), "leader");
                    get(elections.proclaim(leader, bytes("second")));
                    check(get(elections.leader(bytes("alice/election"))).getKv().getValue().equals(bytes("second")), "proclaim");
                    get(elections.resign(leader));
                });
            }
            if (user != null) {
                run("a wrong password", () -> {
                    try (Client wrong = connect(user, "wrong")) {
                        // jetcd logs in inside of a call, which it then fails with a code of its own.
                        String said = refusal(wrong.getKVClient().get(bytes("alice/t")));
                        check(said.contains("UNAUTHENTICATED"), said);
                    }
                });
                if (tokenSeconds > 0) {
                    run("a token that ends is replaced", () -> {
                        events.clear();
                        Thread.sleep(1000L * tokenSeconds);
                        get(kv.put(bytes("alice/again"), bytes("x")));
                        long id = get(leases.grant(20)).getID();
                        check(get(leases.keepAliveOnce(id)).getTTL() == 20, "kept");
                        get(kv.put(bytes("alice/w2"), bytes("later")));
                        WatchEvent event = events.poll(10, TimeUnit.SECONDS);
                        check(event != null && event.getKeyValue().getKey().equals(bytes("alice/w2")), "the watch goes on: " + event);
                    });
                }
            }
            watcher.close();
        }
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }
}
