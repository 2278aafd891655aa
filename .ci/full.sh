# `.ci/run full`: all steps beyond those of `.ci/run`, one at a time, with a table of what came out. Sourced by `.ci/run`.
#
#   .ci/run full                      all steps; those that passed on this very build are not run again
#   .ci/run full KEY...               these steps only, whether they passed or not
#   .ci/run full --list               the keys and what they stand for
#   .ci/run full --table              the table of the last runs, for a note
#   .ci/run full --cause KEY TEXT     why a step was FLAKY: it counts as failed until then
#
# A step that fails is run once more, alone. If it passes then it is FLAKY: both logs are kept, and it counts as failed.
# Everything is in target/full: results, logs, and programs that were built.

full_dir=$built/full
# The build that results are of: the commit, and a digest of what is not committed.
build_id() {
    local changes
    changes=$({ git diff HEAD; git ls-files --others --exclude-standard -z | xargs -0r sha1sum; } | sha1sum | cut -c1-8)
    git rev-parse --short=10 HEAD | tr -d '\n'
    [ "$changes" = "$(printf '' | sha1sum | cut -c1-8)" ] || printf '+%s' "$changes"
}
# recorded KEY: the fields of its last result.
recorded() { cat "$full_dir/$1.result" 2>/dev/null; }
# full_step KEY NAME COMMAND...: see the head of this file.
full_step() {
    local key=$1 name=$2 began=$SECONDS state=ok code before_good before_bad said
    shift 2
    if [ "$mode" = list ]; then
        printf '%-22s %s\n' "$key" "$name"
        return 0
    fi
    if [ "$mode" = table ]; then
        show "$key" "$name"
        return 0
    fi
    if [ "${#wanted[@]}" -gt 0 ]; then
        [[ " ${wanted[*]} " == *" $key "* ]] || return 0
    elif [[ "$(recorded "$key")" == "ok	$build	"* ]]; then
        echo "ok      $name: on this build before"
        passed=$((passed + 1))
        return 0
    fi
    # That it passes now, on the same build, says nothing.
    if [[ "$(recorded "$key")" == "FLAKY	$build	"* ]]; then
        echo "FLAKY   $name: on this build before: $full_dir/$key.log, $full_dir/$key.again.log"
        if [ -e "$full_dir/$key.cause" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
        return 0
    fi
    before_good=$passed
    before_bad=$failed
    rm -f "$full_dir/$key.cause" "$full_dir/$key.again.log"
    step "$name" "$@"
    code=$?
    cp "$work/step.log" "$full_dir/$key.log"
    if [ "$code" -ne 0 ]; then
        state=FAILED
        echo "        once more, alone: $name"
        launch "$full_dir/$key.again.log" "$@"
        wait "$child" && state=FLAKY
        child=
        [ "$state" = FLAKY ] && echo "FLAKY   $name: $full_dir/$key.log, $full_dir/$key.again.log"
    fi
    said=$(grep -ohE 'SKIPPED .*' "$full_dir/$key.log" | head -n 1 | tr '\t|' '  ')
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$state" "$build" "$((SECONDS - began))" "$((passed - before_good))" \
        "$((failed - before_bad))" "$said" >"$full_dir/$key.result"
    [ "$state" = ok ]
}
# show KEY NAME: a row of the table.
show() {
    local state of seconds good bad said cause
    IFS=$'\t' read -r state of seconds good bad said <<<"$(recorded "$1")"
    cause=$(cat "$full_dir/$1.cause" 2>/dev/null)
    case $state in
        '') state="not run" failed=$((failed + 1)) ;;
        ok) passed=$((passed + 1)) ;;
        FLAKY) if [ -n "$cause" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi ;;
        *) failed=$((failed + 1)) ;;
    esac
    [ "${of:-$build}" = "$build" ] || state="$state, of another build"
    echo "| $2 | ${of:-} | ${seconds:-} | ${good:-} | ${bad:-} | $state${cause:+: $cause}${said:+; $said} |"
}

# The simulator's planted bugs, torture of real processes, Miri.
torture() {
    "$built/debug/mainstay-torture" --server "$built/debug/mainstay" --seconds 30 --out "$full_dir/torture" &&
        "$built/debug/mainstay-torture" --server "$built/debug/mainstay" --seconds 30 --every 1 --tls --users \
            --faults certs,kill,partition --out "$full_dir/torture-tls"
    local code=$?
    [ "$code" -eq 3 ] && echo "SKIPPED torture in network namespaces: it cannot be set up here" && return 0
    return "$code"
}
build_torture() { cargo build --locked --package mainstay --package mainstay-torture --bins; }
torture_of_processes() {
    if [ "$(id -u)" -ne 0 ] || ! command -v ip >/dev/null; then
        echo "SKIPPED torture in network namespaces: it needs root and iproute2"
        return 0
    fi
    rm -rf "$full_dir/torture" "$full_dir/torture-tls"
    build_torture && torture
}
miri() {
    if ! { cargo +nightly miri --version || { rustup component add --toolchain nightly miri rust-src && cargo +nightly miri --version; }; } >/dev/null 2>&1; then
        echo "SKIPPED Miri on mvcc: there is no nightly toolchain with the component miri"
        return 0
    fi
    env MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked --package mainstay-mvcc --test it property
}
advisories() {
    if ! cargo audit --version >/dev/null 2>&1; then
        echo "SKIPPED advisories about dependencies: cargo-audit is not installed"
        return 0
    fi
    cargo audit
}
instructions() {
    if ! { command -v valgrind && command -v h2load; } >/dev/null; then
        may_install && install valgrind nghttp2-client || { echo "SKIPPED instructions: valgrind or h2load is not installed"; return 0; }
    fi
    # What requests took when this was written, and some per cent. Whoever makes them cheaper lowers it.
    python3 interop/instructions.py --server "mainstay=$mainstay" --runs 2 --methods put,range,cluster-put \
        --most put=17200 --most range=7800 --most cluster-put=46000
}
try_debian_package() {
    if ! may_install || ! command -v dpkg-deb >/dev/null || dpkg -s mainstay >/dev/null 2>&1; then
        echo "SKIPPED the Debian package: this is no Debian, this user may not install, or a package is installed already"
        return 0
    fi
    if ! { command -v lintian && command -v objdump && command -v man; } >/dev/null; then
        install lintian binutils man-db groff-base adduser || return 1
    fi
    debian_package
}
# A forge's own actions and those of others only by commit; actionlint has no rule for that.
workflows() {
    [ -x "$bin/actionlint" ] || { echo "FAILED  actionlint is not built"; return 1; }
    "$bin/actionlint" .github/workflows/*.yml || return 1
    local unpinned
    unpinned=$(grep -nE '^ *(- )?uses:' .github/workflows/*.yml | grep -vE '@[0-9a-f]{40}( |$)')
    [ -z "$unpinned" ] || { echo "FAILED  actions that are not pinned: $unpinned"; return 1; }
}
has_cross_tools() {
    command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64-static >/dev/null && return 0
    may_install && install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
}
cross_toolchain() {
    if ! may_install || ! has_cross_tools; then
        echo "SKIPPED a compiler for arm64: this is no Debian, or this user may not install"
        return 0
    fi
    [ -x "$full_dir/cross/rustc" ] || packaging/cross-toolchain "$full_dir/cross"
}
arm64() {
    [ -x "$full_dir/cross/rustc" ] || { echo "SKIPPED tests for arm64: the step cross brought no compiler"; return 0; }
    RUSTC=$full_dir/cross/rustc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu" \
        cargo test --locked --target aarch64-unknown-linux-gnu --no-fail-fast \
        --package mainstay-numbers --package mainstay-mvcc --package mainstay-machine --package mainstay-consensus
}
try_release() {
    [ -x "$full_dir/cross/rustc" ] || { echo "SKIPPED a release: the step cross brought no compiler"; return 0; }
    if ! { command -v minisign && command -v skopeo && command -v debootstrap && command -v rpmbuild; } >/dev/null; then
        install minisign skopeo debootstrap rpm || return 1
    fi
    RUSTC=$full_dir/cross/rustc packaging/try-release --target x86_64-unknown-linux-gnu --target aarch64-unknown-linux-gnu &&
        env $(cat "$full_dir/cross/musl.env") packaging/try-release --target x86_64-unknown-linux-musl --target aarch64-unknown-linux-musl
}
# etcd's own tests, from the module proxy, with Mainstay in the place of etcd; the robustness tests run apart.
etcds_own_tests() { python3 interop/conformance.py --mainstay "$mainstay" --work "$full_dir/conformance" "$@"; }
backup_figures() {
    python3 interop/backup_figures.py shipping --mainstay "$mainstay" &&
        python3 interop/backup_figures.py restore --mainstay "$mainstay"
}
one_load() {
    build_systems_once && "$bin/systems" --server "mainstay=$mainstay" --server "etcd=$bin/etcd" --seconds 1 --runs 1 --keys 500 --fill 1000
}
build_systems_once() { (build_systems); }
reports() {
    local timeline=$full_dir/torture/timeline.html
    [ -f "$timeline" ] || timeline=
    python3 interop/console/reports.py --mainstay "$mainstay" ${timeline:+--timeline "$timeline"}
}
has_chromium() { command -v chromium >/dev/null || { may_install && install chromium; }; }
debians_etcdctl() {
    if [ ! -x /usr/bin/etcdctl ]; then
        may_install && install etcd-client || { echo "SKIPPED Debian's etcdctl: etcd-client is not installed"; return 0; }
    fi
    etcdctl /usr/bin/etcdctl
}
secured_clients() {
    local clients=python
    if command -v npm >/dev/null; then clients=python,node; else echo "SKIPPED the client for Node: there is no npm"; fi
    python3 interop/secured_clients.py --server "mainstay=$mainstay" --etcdctl "$mainstay ctl" --client "$clients" \
        --python "$bin/venv/bin/python"
}

full_steps() {
    local ours=(--ours "$mainstay ctl" --real "$bin/etcdctl") etcd=$bin/etcd
    full_step advisories "advisories about dependencies" advisories
    full_step processes "all tests that start processes" cargo test --locked --package mainstay --features full --test it --no-fail-fast
    full_step planted "the simulator finds planted bugs" cargo run --locked --package mainstay-sim --features planted -- --smoke
    full_step miri "Miri on mvcc" miri
    full_step torture "torture of real processes, its history judged" torture_of_processes
    full_step release "release build" cargo build --locked --release --package mainstay
    full_step instructions "instructions of a put and of a range, held against their limits" instructions
    full_step tools "the tools under etcd's names" tools_by_name
    full_step guides "each command of the documents, and the names in all of them" python3 interop/guides.py --mainstay "$mainstay"
    full_step deb "the Debian package, installed and tried" try_debian_package

    full_step build-actionlint "building actionlint" build_actionlint
    full_step workflows "the workflows of a public forge, as their linter reads them" workflows
    full_step cross "a compiler for arm64 and musl, from Debian's packages" cross_toolchain
    full_step arm64 "tests of the crates without IO as programs for arm64, under emulation" arm64
    full_step try-release "two builds of a release with the same bytes; its files verified, installed and started" try_release

    full_step build-packages "building what reads packages" build_packages
    full_step packages "what Mainstay is installed by: image, compose file, chart, manifests; rules, alerts and dashboard" \
        python3 interop/packages.py --server "$mainstay"
    full_step build-interop "building the interop program" build_interop
    full_step go-client "etcd's Go client" concurrency
    full_step selftest "planted mistakes in histories" "$bin/interop" cluster history-selftest
    full_step history "a cluster under faults, its whole history judged" cluster_history
    full_step history-observers "a cluster with observers under faults of both, its whole history judged" observers_history
    full_step history-planted "planted bugs of observers, shown by a history" observers_history_finds
    full_step build-previous "building the previous release" build_previous
    full_step upgrade "from the previous release to this one and back, under load, both in one cluster, its history judged" upgrade
    full_step build-h2spec "building h2spec" build_h2spec
    full_step h2spec "HTTP/2 as h2spec has it" python3 interop/h2spec.py --h2spec "$bin/h2spec" --server "mainstay=$mainstay"

    full_step build-etcd "building real etcd" build_etcd
    full_step build-older-etcd "building real etcd of the release before" build_older_etcd
    full_step compare "the same answers as real etcd" compare 1500
    full_step compare-tls "the same over TLS, and etcd's Go client with a certificate" compare_tls
    full_step gateway "the same answers in JSON as real etcd" python3 interop/gateway_same.py "$etcd" "$mainstay"
    full_step members "members that come and go" "$bin/interop" cluster members --server "$mainstay" --etcdctl "$bin/etcdctl"
    full_step outputs-etcd "the same outputs as etcdctl, at etcd" \
        python3 interop/etcdctl_same.py "${ours[@]}" --server "$etcd" --auth
    full_step outputs "the same outputs as etcdctl, at Mainstay" \
        python3 interop/etcdctl_same.py "${ours[@]}" --server "$mainstay" --auth
    full_step outputs-tls "the same outputs as etcdctl, over TLS" \
        python3 interop/etcdctl_same.py "${ours[@]}" --server "$mainstay" --tls --only '^(cert|cacert|endpoint|member)'
    full_step metrics "the same metrics as real etcd, by etcd's alert rules and dashboards too" \
        python3 interop/metrics_same.py --reference "$etcd" --subject "$mainstay" --etcdctl "$bin/etcdctl" --promql
    full_step systems "one load at Mainstay and at real etcd" one_load
    full_step spans "the same spans as real etcd, at an OpenTelemetry collector's receiver" spans
    full_step etcdctl "etcdctl of the newest etcd" etcdctl "$bin/etcdctl"
    full_step round-trip "by files from etcd to Mainstay and back" \
        python3 interop/round_trip.py --etcd-dir "$bin/releases" --mainstay "$mainstay" --keys 3000
    full_step takeover "members of etcd that become Mainstay's in place, and etcd's again" python3 interop/takeover.py --short \
        --etcd "$etcd" --etcdctl "$bin/etcdctl" --mainstay "$mainstay"
    full_step shadow "a shadow beside real etcd, equal under load and kills, and a planted change found" \
        python3 interop/shadow.py --etcd "$etcd" --etcd "$bin/etcd-older" --etcdctl "$bin/etcdctl" --mainstay "$mainstay"
    full_step build-minio "building MinIO" build_minio
    full_step backup "backups to MinIO under kills and faults, restored to random revisions, for etcd too" \
        python3 interop/backup.py --minio "$bin/minio" --etcd "$etcd" --etcd "$bin/etcd-older" --mainstay "$mainstay"
    full_step backup-kills "a backup whose processes and members are killed for 20 minutes, restored to random revisions" \
        python3 interop/backup_kills.py --minio "$bin/minio" --mainstay "$mainstay"
    full_step backup-figures "lag and cost of a backup; ten gigabytes restored to random revisions" backup_figures
    full_step lost-members "half an hour of lost members, replaced by the autopilot" \
        python3 interop/lost_members.py --mainstay "$mainstay"
    full_step migration "each command of docs/migration.md" migration_document
    full_step conformance "etcd's own end-to-end tests, with Mainstay in its place" etcds_own_tests --release 3.7 --suite common --suite e2e
    full_step robustness "etcd's own robustness tests, alone and beside etcd" etcds_own_tests --release 3.7 --suite robustness
    full_step mixed "members that change between etcd and Mainstay under faults, their history judged" \
        "$bin/interop" cluster history --server "$etcd" --migrate "$mainstay" --seconds 40 --every 1s \
        --faults in-place,in-place,replacement,kill-leader,kill-any,partition
    full_step health "the same health pages as real etcd" \
        "$bin/interop" cluster health --server "etcd=$etcd" --server "mainstay=$mainstay"
    full_step snapshots "snapshots between members of etcd and of Mainstay" \
        python3 interop/etcd_snapshots.py --etcd "$etcd" --mainstay "$mainstay"
    full_step doctor-etcd "problems that the doctor has to name, of etcd's members" \
        python3 interop/doctor_planted.py --doctor "$mainstay doctor" --etcd "$etcd"
    full_step doctor "problems that the doctor has to name, of Mainstay's members" \
        python3 interop/doctor_planted.py --doctor "$mainstay doctor" --mainstay "$mainstay"
    full_step proxy "clients through a gRPC proxy" python3 interop/through_proxy.py --short --server "$mainstay" \
        --proxy "mainstay=$mainstay" --etcdctl "$bin/etcdctl" --interop "$bin/interop" --bench "$mainstay bench"

    full_step build-kube "building kube-apiserver, kubectl, a control plane and simulated kubelets" build_kube
    full_step kube "a real kube-apiserver over TLS, on members that are killed" kube --members 3 --auth root
    full_step kube-observers "a real kube-apiserver on observers, which are killed, wiped, and lose their feeders" \
        kube --members 3 --observers 2 --auth root --nodes 10000
    full_step kube-e2e "a control plane with 500 pods: restarts, kills, moved between etcd and Mainstay, compacted, restored" kube_e2e
    full_step installers "members as kubeadm, Talos, kops and etcd-operator start them, a cluster of kubeadm moved and moved back" installers
    full_step chromium "chromium is there" has_chromium
    full_step console "the console in a browser" python3 interop/console/console.py --mainstay "$mainstay" --etcd "$etcd"
    full_step session "a slow client, a hot prefix and a full quota, found through the console alone" \
        python3 interop/console/session.py --mainstay "$mainstay"
    full_step reports "reports in a browser" reports
    full_step debian-etcdctl "Debian's etcdctl" debians_etcdctl

    full_step venv "installing the Python clients" build_venv
    full_step python "Python clients" python_clients
    full_step json-clients "clients of the JSON gateway: curl, etcd3gw, Patroni" \
        "$bin/venv/bin/python" interop/json_clients.py "etcd=$etcd" "mainstay=$mainstay"
    full_step secured "clients over TLS, with passwords, tokens and certificates" secured_clients
}

full() {
    local mode=run wanted=() build
    mkdir -p "$full_dir/bin"
    full_dir=$(realpath "$full_dir")
    bin=$full_dir/bin
    mainstay=$(realpath -m "$built/release/mainstay")
    build=$(build_id)
    case ${1:-} in
        --list) mode=list ;;
        --table)
            mode=table
            echo "| step | build | seconds | passed | failed | result |"
            echo "|---|---|---|---|---|---|"
            ;;
        --cause)
            [ $# -eq 3 ] && [ -f "$full_dir/$2.result" ] || { echo "usage: .ci/run full --cause KEY TEXT" >&2; exit 2; }
            echo "$3" >"$full_dir/$2.cause"
            exit 0
            ;;
        -*)
            sed -n '3,11s/^# \{0,1\}//p' .ci/full.sh >&2
            exit 2
            ;;
        *)
            wanted=("$@")
            local known key
            known=$(mode=list full_steps | awk '{ print $1 }')
            for key in "${wanted[@]+"${wanted[@]}"}"; do
                grep -qxF -- "$key" <<<"$known" || { echo ".ci/run full: no step $key; see --list" >&2; exit 2; }
            done
            ;;
    esac
    full_steps
    [ "$mode" = list ] && exit 0
    if [ "$mode" = run ]; then
        echo
        passed=0 failed=0
        full --table
    fi
}
