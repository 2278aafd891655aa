# What the checks of `.ci/run` share: steps and their results, fresh members, programs that are built. Sourced by `.ci/run`,
# which has set $work (a temporary folder), $bin (where programs are built) and $mainstay (the server).

child=
pids=()
passed=0
failed=0

# Ends the members of a step, and waits for them.
stop_members() {
    local pid
    for pid in "${pids[@]+"${pids[@]}"}"; do kill "$pid" 2>/dev/null; done
    for pid in "${pids[@]+"${pids[@]}"}"; do wait "$pid" 2>/dev/null; done
}
# Ends what is under way, with all that it started.
stop_all() {
    local pid
    for pid in $child "${beside[@]}"; do kill -- "-$pid" 2>/dev/null && wait "$pid"; done
}
trap 'stop_all; chmod -R u+w "$work"; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

# launch LOG COMMAND...: starts it; $child is its process group, so that it can be ended whole.
launch() {
    local log=$1
    shift
    set -m
    (
        set +m
        trap stop_members EXIT
        trap 'exit 130' TERM
        "$@"
    ) >"$log" 2>&1 &
    child=$!
    set +m
}
# step NAME COMMAND...: runs it, and shows its output only if it fails. Counts the tests it reports, or else one.
step() {
    local name=$1 began=$SECONDS code
    shift
    launch "$work/step.log" "$@"
    wait "$child"
    code=$?
    child=
    judge "$name" "$work/step.log" "$code" "$began"
}
# begin KEY COMMAND...: a step that runs beside those that follow, until `ended KEY NAME`. For what mostly waits, beside what does, too.
declare -A beside=() beside_since=()
begin() {
    local key=$1
    shift
    launch "$work/$key.log" "$@"
    beside[$key]=$child
    beside_since[$key]=$SECONDS
    child=
}
ended() {
    local key=$1 code
    wait "${beside[$key]}"
    code=$?
    unset "beside[$key]"
    judge "$2" "$work/$key.log" "$code" "${beside_since[$key]}"
}
# judge NAME LOG CODE BEGAN: how a step went, for the reader and for the sums.
judge() {
    local name=$1 log=$2 code=$3 began=$4 counts good bad
    counts=$(sed -nE 's/^(test result: .* )?([0-9]+) passed[;,] ([0-9]+) failed.*/\2 \3/p' "$log")
    good=$(awk '{ n += $1 } END { print n + 0 }' <<<"$counts")
    bad=$(awk '{ n += $2 } END { print n + 0 }' <<<"$counts")
    [ "$code" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
    [ "$code" -eq 0 ] && [ "$good" -eq 0 ] && good=1
    passed=$((passed + good))
    failed=$((failed + bad))
    grep -ohE 'SKIPPED .*' "$log"
    if [ "$code" -eq 0 ] && [ "$bad" -eq 0 ]; then
        echo "ok      $name: $good passed ($((SECONDS - began)) s)"
        return 0
    fi
    echo "FAILED  $name: $good passed, $bad failed, exit code $code ($((SECONDS - began)) s)"
    # Which tests failed and why, however much comes behind.
    grep -hE -A8 '^test .* FAILED$|^thread .* panicked at|^(FAILED|VIOLATION) ' "$log" | head -n 200 | sed 's/^/    /'
    grep -vE '^test .* \.\.\. ok$|^running 0 tests$|^test result: ok|^ *Doc-tests |^$' "$log" | tail -n 200 | sed 's/^/    /'
    return 1
}
skip() { echo "SKIPPED $1: $2"; }
# install PACKAGE...: Debian's packages, where this user may install.
install() { thrice apt-get update -q && thrice apt-get install -qy --no-install-recommends "$@"; }
# thrice COMMAND...: what asks the network, which may be busy.
thrice() { "$@" || { sleep 5 && "$@"; } || { sleep 20 && "$@"; }; }
may_install() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

# start NAME PROGRAM: a fresh member; $address is where it serves. With $certificates, a folder, over TLS.
start() {
    local name=$1 program=$2 client peer log ports secured=()
    mapfile -t ports < <(python3 interop/ports.py 2)
    client=http://127.0.0.1:${ports[0]}
    if [ -n "${certificates:-}" ]; then
        client=https://${client#http://}
        secured=(--cert-file "$certificates/server.crt" --key-file "$certificates/server.key"
            --trusted-ca-file "$certificates/ca.crt" --client-cert-auth)
    fi
    peer=http://127.0.0.1:${ports[1]}
    log=$work/$name.log
    rm -rf "$work/$name"
    "$program" --name "$name" --data-dir "$work/$name" \
        --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "$name=$peer" "${secured[@]}" >"$log" 2>&1 &
    pids+=($!)
    for _ in $(seq 600); do
        if grep -q "ready to serve client requests" "$log"; then
            address=${client#*://}
            return 0
        fi
        kill -0 "${pids[-1]}" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$log"
    return 1
}

build_etcd() {
    local version name
    version=$(sed -nE 's/^\s*go\.etcd\.io\/etcd\/client\/v3 (v\S+).*/\1/p' interop/go/go.mod)
    rm -rf "$work/etcd-build" && mkdir "$work/etcd-build" && cd "$work/etcd-build" && go mod init etcd-build &&
        thrice go get "go.etcd.io/etcd/server/v3@$version" "go.etcd.io/etcd/etcdctl/v3@$version" \
            "go.etcd.io/etcd/etcdutl/v3@$version" &&
        go build -o "$bin/etcd" go.etcd.io/etcd/server/v3 &&
        go build -o "$bin/etcdctl" go.etcd.io/etcd/etcdctl/v3 &&
        go build -o "$bin/etcdutl" go.etcd.io/etcd/etcdutl/v3 || return 1
    # Programs look for them by the release.
    version=$(cut -d. -f1,2 <<<"${version#v}")
    rm -rf "$bin/releases" && mkdir "$bin/releases" && for name in etcd etcdctl etcdutl; do
        ln -s "$bin/$name" "$bin/releases/$name-$version" || return 1
    done
}
# One release before that of `build_etcd`, for what depends on the release.
build_older_etcd() {
    rm -rf "$work/older-build" && mkdir "$work/older-build" && cd "$work/older-build" && go mod init older-build && thrice go get go.etcd.io/etcd/server/v3@v3.6.16 &&
        go build -o "$bin/etcd-older" go.etcd.io/etcd/server/v3
}
# The release before: the commit that `.ci/previous` names, from a checkout of its own.
build_previous() {
    local commit tree=$work/previous
    commit=$(sed -n '/^[0-9a-f]/p' .ci/previous)
    if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
        echo "SKIPPED building the previous release: this clone does not have its commit, $commit"
        return 0
    fi
    git worktree add --quiet --detach --force "$tree" "$commit" || return 1
    (cd "$tree" && CARGO_TARGET_DIR=$full_dir/previous cargo build --locked --release --package mainstay) &&
        cp "$full_dir/previous/release/mainstay" "$bin/mainstay-previous"
    local code=$?
    git worktree remove --force "$tree"
    return "$code"
}
# This release beside the one before: up, back and up again; new members of each in a cluster of the other; both in one cluster
# under faults.
upgrade() {
    local previous=$bin/mainstay-previous flags="--snapshot-count 200 --snapshot-catchup-entries 50"
    [ -x "$previous" ] || { echo "SKIPPED the upgrade from the previous release: it is not built"; return 0; }
    python3 interop/upgrade.py --previous "$previous" --mainstay "$mainstay" &&
        "$bin/interop" cluster rolling --server "previous=$previous" --server2 "mainstay=$mainstay" --rounds 1 --replace --flags "$flags" &&
        "$bin/interop" cluster rolling --server "mainstay=$mainstay" --server2 "previous=$previous" --rounds 1 --replace --flags "$flags" &&
        "$bin/interop" cluster history --server "$previous" --mixed "$mainstay" --seconds 30 --every 3s \
            --faults kill-leader,kill-any,restart,partition,pause --flags "--snapshot-count 300 --snapshot-catchup-entries 100"
}
# Without a go.mod: what it needs is what is newest then.
build_h2spec() { GOBIN=$bin go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible; }
build_actionlint() { GOBIN=$bin go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12; }
build_minio() { GOBIN=$bin go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c; }
build_interop() { cd interop/go && thrice go mod download && go vet ./... && go test ./... && go build -o "$bin/interop" .; }
# What reads packages, rules and dashboards; the steps that run them build nothing anew.
build_packages() {
    (cd interop/packages && go build -o "$bin/packages" .) && (cd interop/promql && go build -o "$bin/promql" .)
}
build_systems() { cd interop/systems && go vet . && go build -o "$bin/systems" .; }
build_venv() {
    if ! python3 -m venv "$bin/venv"; then
        may_install && install python3-venv && rm -rf "$bin/venv" && python3 -m venv "$bin/venv" || return 1
    fi
    "$bin/venv/bin/pip" install --quiet --disable-pip-version-check -r interop/python/requirements.txt
}
debian_package() { packaging/try-deb "$mainstay"; }

# compare OPERATIONS
compare() {
    start etcd "$bin/etcd" || return 1
    local reference=$address
    start mainstay "$mainstay" || return 1
    "$bin/interop" compare --without locks --reference "$reference" --subject "$address" --ops "$1" --seed 1
}
compare_tls() {
    local certificates=$work/certificates
    "$bin/interop" certificates --dir "$certificates" || return 1
    start etcd-tls "$bin/etcd" || return 1
    local reference=$address
    start mainstay-tls "$mainstay" || return 1
    local files=(--cacert "$certificates/ca.crt" --cert "$certificates/client-root.crt"
        --key "$certificates/client-root.key")
    "$bin/interop" compare --without locks --reference "$reference" --subject "$address" \
        --ops 700 --seed 2 "${files[@]}" &&
        "$bin/interop" concurrency --endpoint "$address" "${files[@]}"
}
concurrency() { start mainstay "$mainstay" && "$bin/interop" concurrency --endpoint "$address"; }
migration_document() {
    python3 interop/migration_document.py --etcd "$bin/etcd" --also "$bin/etcd-older" --etcdctl "$bin/etcdctl" \
        --mainstay "$mainstay"
}
spans() {
    (cd interop/otel && go vet . && go build -o "$bin/otel" .) &&
        "$bin/otel" --server "etcd=$bin/etcd" --server "mainstay=$mainstay"
}
etcdctl() { start mainstay "$mainstay" && bash interop/etcdctl.sh --without members "$address" "$1"; }
tools_by_name() {
    mkdir -p "$work/tools" && for name in etcdctl etcdutl benchmark; do
        ln -sf "$(realpath "$mainstay")" "$work/tools/$name" || return 1
    done
    etcdctl "$work/tools/etcdctl"
}
cluster_history() {
    "$bin/interop" cluster history --server "$mainstay" --seconds 45 --every 4s \
        --faults kill-leader,kill-any,pause,partition,oneway,restart \
        --flags "--snapshot-count 300 --snapshot-catchup-entries 100"
}
# Half of the clients are at observers, and more than half of the faults are theirs.
observers_history() {
    "$bin/interop" cluster history --server "$mainstay" --observers 3 --seconds 75 --every 3s --clients 12 \
        --flags "--snapshot-count 300 --snapshot-catchup-entries 100"
}
# The same has to show bugs of observers that are planted in a build of its own.
observers_history_finds() {
    cargo build --locked --package mainstay --features planted && cp "$built/debug/mainstay" "$bin/mainstay-planted" || return 1
    local bug good=0 bad=0
    for bug in observer-read-without-round observer-read-without-index; do
        MAINSTAY_PLANTED=$bug "$bin/interop" cluster history --server "$bin/mainstay-planted" --observers 2 --seconds 20 \
            --every 2s --clients 10 --rate 600 --out "$work/history-$bug" | tee "$work/history-$bug.log"
        if grep -q '^verdict: .* violations .*stale read' "$work/history-$bug.log"; then
            good=$((good + 1))
        else
            bad=$((bad + 1))
            echo "FAILED  no stale read was found of $bug"
        fi
    done
    echo "$good passed, $bad failed"
    [ "$bad" -eq 0 ]
}
# Some 20 minutes of two cores, and 3 GB of the Go module cache.
build_kube() {
    python3 interop/kube_apiserver.py --build "$bin/kube" && python3 interop/kube_e2e.py --build "$bin/kube" &&
        cd interop/kube && go vet ./kubelets && go test ./kubelets
}
kube() { python3 interop/kube_apiserver.py --programs "$bin/kube" --server "mainstay=$mainstay" --etcdctl "$bin/etcdctl" "$@"; }
# At the default size, and then planted losses, which have to be found.
kube_e2e() {
    local programs=(--programs "$bin/kube" --etcd "$bin/etcd" --etcdctl "$bin/etcdctl" --mainstay "$mainstay")
    python3 interop/kube_e2e.py "${programs[@]}" && python3 interop/kube_e2e.py "${programs[@]}" --first mainstay --nodes 20 --pods 200 --planted
}
installers() {
    python3 interop/kube_installers.py --server "mainstay=$mainstay" --server "etcd=$bin/etcd" --etcdctl "$bin/etcdctl" \
        --etcdutl "$bin/etcdutl" --programs "$bin/kube"
}
python_clients() {
    start mainstay "$mainstay" &&
        "$bin/venv/bin/python" interop/python/interop.py "$address"
}
