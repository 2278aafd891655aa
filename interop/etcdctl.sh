#!/usr/bin/env bash
# Runs the commands of an etcdctl (3.4 to 3.7) against an endpoint and checks
# what it prints. The server may hold other data, but auth must be off.
#
#   etcdctl.sh [--without PARTS] ENDPOINT ETCDCTL
#                                      e.g. etcdctl.sh 127.0.0.1:2379 /usr/bin/etcdctl
#
# PARTS, with commas between them, are left out because the server lacks them on
# purpose: auth (users and roles), members (adding and removing members).
# Last line: "N passed, M failed"; exit code 0 only when nothing failed.
set -u
usage() {
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
without=,
if [ "${1-}" = --without ] && [ $# -ge 2 ]; then
    for part in ${2//,/ }; do
        case $part in
        auth | members) without=$without$part, ;;
        *) usage ;;
        esac
    done
    shift 2
fi
[ $# -eq 2 ] || usage
endpoint=${1#http://}
ctl=$2
unset ETCDCTL_API # 3 is the default since 3.4, and 3.6 warns about the variable
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
left_out=0
leaving= # not empty while checks are only counted and no command is run
part() { case $without in *",$1,"*) leaving=1 ;; *) leaving= ;; esac; }
p="interop-ctl/$(date +%s%N)/"

# Background commands call $ctl themselves: with the function, kill would end
# only the shell around it.
e() { [ -n "$leaving" ] || "$ctl" --endpoints="$endpoint" --command-timeout=60s "$@"; }

leave() { [ -n "$leaving" ] && left_out=$((left_out + 1)); }
pass() { passed=$((passed + 1)); }
fail() {
    failed=$((failed + 1))
    echo "FAIL $1"
    echo "    want: ${2//$'\n'/$'\n'          }"
    echo "    got:  ${3//$'\n'/$'\n'          }"
}

# same NAME WANT GOT
same() { leave || if [ "$2" = "$3" ]; then pass; else fail "$1" "$2" "$3"; fi; }
# like NAME REGEX GOT: the whole text, over all lines
like() { leave || if [[ $3 =~ ^$2$ ]]; then pass; else fail "$1" "$2" "$3"; fi; }
# refused NAME REGEX COMMAND...: must exit non-zero and say so on stderr
refused() {
    leave && return
    local name=$1 regex=$2 said code
    shift 2
    said=$("$@" 2>&1 >"$work/refused.out") && code=0 || code=$?
    if [ "$code" -ne 0 ] && [[ $said =~ $regex ]]; then pass; else fail "$name" "an exit code and $regex" "exit code $code: $said"; fi
}
# reached FILE LINES: waits until a background command has printed that many lines
reached() {
    for _ in $(seq 1200); do
        [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ] && return 0
        sleep 0.05
    done
    return 1
}
# revision KEY: mod revision of a key
revision() { e get "$1" -w fields | sed -n 's/^"ModRevision" : //p'; }

if ! said=$(e endpoint health 2>&1); then
    echo "etcdctl.sh: $endpoint does not answer: $said" >&2
    exit 2
fi
version=$(e version | sed -n 's/^etcdctl version: //p')
like "version" '3\.[0-9]+\.[0-9]+.*' "$version"
minor=${version#3.}
minor=${minor%%.*}

# --- put and get
same "put" "OK" "$(e put "${p}a" 1)"
same "put from stdin" "OK" "$(printf 'from stdin' | e put "${p}stdin")"
same "get what came from stdin" "from stdin" "$(e get "${p}stdin" --print-value-only)"
same "put with a dash" "OK" "$(e put "${p}dash" -- "-x-")"
same "put --prev-kv" "OK
${p}a
1" "$(e put "${p}a" 2 --prev-kv)"
same "put --ignore-value" "OK" "$(e put "${p}a" --ignore-value)"
same "put --ignore-lease" "OK" "$(e put "${p}a" 3 --ignore-lease)"
refused "put --ignore-value of a missing key" "etcdserver: key not found" e put "${p}none" --ignore-value
refused "put with an unknown lease" "etcdserver: requested lease not found" e put "${p}a" 1 --lease=7b
same "get" "${p}a
3" "$(e get "${p}a")"
same "get of a missing key" "" "$(e get "${p}missing")"
for i in 1 2 3 4 5; do e put "${p}n/$i" "v$((6 - i))" >/dev/null; done
same "get --prefix" "${p}n/1
v5
${p}n/2
v4
${p}n/3
v3
${p}n/4
v2
${p}n/5
v1" "$(e get "${p}n/" --prefix)"
same "get range" "${p}n/2
${p}n/3" "$(e get "${p}n/2" "${p}n/4" --keys-only | grep .)"
same "get --limit" "v5
v4" "$(e get "${p}n/" --prefix --limit=2 --print-value-only)"
same "get --order=DESCEND" "v1
v2
v3
v4
v5" "$(e get "${p}n/" --prefix --order=DESCEND --sort-by=KEY --print-value-only)"
same "get --sort-by=VALUE" "v1
v2
v3
v4
v5" "$(e get "${p}n/" --prefix --order=ASCEND --sort-by=VALUE --print-value-only)"
same "get --sort-by=MODIFY" "v1" "$(e get "${p}n/" --prefix --order=DESCEND --sort-by=MODIFY --limit=1 --print-value-only)"
same "get --sort-by=CREATE" "v5" "$(e get "${p}n/" --prefix --order=ASCEND --sort-by=CREATE --limit=1 --print-value-only)"
e put "${p}n/3" v3 >/dev/null
same "get --sort-by=VERSION" "v3" "$(e get "${p}n/" --prefix --order=DESCEND --sort-by=VERSION --limit=1 --print-value-only)"
same "get --consistency=s" "v5" "$(e get "${p}n/1" --consistency=s --print-value-only)"
same "get --from-key" "${p}n/4
${p}n/5" "$(e get "${p}n/4" --from-key --keys-only --limit=2 | grep .)"
old=$(revision "${p}a")
e put "${p}a" 4 >/dev/null
same "get --rev" "3" "$(e get "${p}a" --rev="$old" --print-value-only)"
refused "get --rev in the future" "required revision is a future revision" e get "${p}a" --rev=999999999
like "get -w fields" '"ClusterID" : [0-9]+
"MemberID" : [0-9]+
"Revision" : [0-9]+
"RaftTerm" : [0-9]+
"Key" : "'"${p}"'n/3"
"CreateRevision" : [0-9]+
"ModRevision" : [0-9]+
"Version" : 2
"Value" : "v3"
"Lease" : 0
"More" : false
"Count" : 1' "$(e get "${p}n/3" -w fields)"
key64=$(printf '%sn/3' "$p" | base64 -w0)
like "get -w json" '\{"header":\{"cluster_id":[0-9]+,"member_id":[0-9]+,"revision":[0-9]+,"raft_term":[0-9]+\},"kvs":\[\{"key":"'"$key64"'","create_revision":[0-9]+,"mod_revision":[0-9]+,"version":2,"value":"djM="\}\],"count":1\}' "$(e get "${p}n/3" -w json)"
same "get --hex" '\x76\x33' "$(e get "${p}n/3" --hex --print-value-only)"
if [ "$minor" -ge 6 ]; then
    same "get --count-only -w fields" '"Count" : 5' "$(e get "${p}n/" --prefix --count-only -w fields | grep Count)"
    same "get --min-mod-rev" "${p}a" "$(e get "$p" --prefix --min-mod-rev="$(revision "${p}a")" --keys-only | grep .)"
    same "get --max-create-rev" "${p}a" "$(e get "$p" --prefix --max-create-rev="$(e get "${p}a" -w fields | sed -n 's/^"CreateRevision" : //p')" --keys-only | grep .)"
fi
if [ "$minor" -ge 7 ]; then
    same "get --stream" "$(e get "${p}n/" --prefix)" "$(e get "${p}n/" --prefix --stream)"
fi

# --- txn
same "txn that succeeds" "SUCCESS

OK

${p}a
changed" "$(e txn <<EOF
value("${p}a") = "4"
ver("${p}n/3") > "1"

put ${p}a changed
get ${p}a

get ${p}none

EOF
)"
same "txn that fails" "FAILURE

1" "$(e txn <<EOF
mod("${p}a") = "1"

put ${p}a never

del ${p}stdin

EOF
)"
like "txn -w json" '\{"header":\{.*\},"succeeded":true,"responses":\[\{"Response":\{"(response_put|ResponsePut)":\{"header":\{"revision":[0-9]+\}\}\}\}\]\}' "$(e txn -w json <<EOF
create("${p}none") = "0"

put ${p}j 1


EOF
)"
refused "txn with a key twice" "etcdserver: duplicate key given in txn request" e txn <<EOF

put ${p}twice 1
put ${p}twice 2


EOF

# --- del
same "del" "1" "$(e del "${p}dash")"
same "del again" "0" "$(e del "${p}dash")"
same "del --prev-kv" "1
${p}j
1" "$(e del "${p}j" --prev-kv)"
if [ "$minor" -ge 5 ]; then
    same "del range" "2" "$(e del "${p}n/1" "${p}n/3" --range)"
else
    same "del range" "2" "$(e del "${p}n/1" "${p}n/3")"
fi
same "del --prefix" "3" "$(e del "${p}n/" --prefix)"

# --- watch
first=$(e put "${p}w/1" one -w json | sed 's/.*"revision":\([0-9]*\).*/\1/')
e put "${p}w/1" two >/dev/null
e put "${p}w/2" three >/dev/null
e del "${p}w/1" >/dev/null
"$ctl" --endpoints="$endpoint" watch "${p}w/" --prefix --rev="$first" --prev-kv >"$work/watch" 2>&1 &
watching=$!
reached "$work/watch" 16
kill "$watching" 2>/dev/null
wait "$watching" 2>/dev/null
same "watch --rev --prefix --prev-kv" "PUT
${p}w/1
one
PUT
${p}w/1
one
${p}w/1
two
PUT
${p}w/2
three
DELETE
${p}w/1
two
${p}w/1" "$(grep . "$work/watch")"
"$ctl" --endpoints="$endpoint" watch "${p}live" >"$work/live" 2>&1 &
watching=$!
# The watch has no sign that it stands, so the key is put until it is seen.
for _ in $(seq 1200); do
    e put "${p}live" now >/dev/null
    [ "$(wc -l <"$work/live")" -ge 3 ] && break
    sleep 0.05
done
kill "$watching" 2>/dev/null
wait "$watching" 2>/dev/null
same "watch a live key" "PUT
${p}live
now" "$(head -3 "$work/live")"
"$ctl" --endpoints="$endpoint" watch "${p}w/2" --rev="$first" -- sh -c 'echo "$ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_KEY $ETCD_WATCH_VALUE"' >"$work/exec" 2>&1 &
watching=$!
for _ in $(seq 1200); do
    grep -q '^"PUT"' "$work/exec" && break
    sleep 0.05
done
kill "$watching" 2>/dev/null
wait "$watching" 2>/dev/null
same "watch with a command" "\"PUT\" \"${p}w/2\" \"three\"" "$(grep '^"PUT"' "$work/exec")"

# --- lease
granted=$(e lease grant 60)
like "lease grant" 'lease [0-9a-f]{16} granted with TTL\(60s\)' "$granted"
lease=$(echo "$granted" | cut -d' ' -f2)
same "put --lease" "OK" "$(e put "${p}leased" 1 --lease="$lease")"
like "lease timetolive" "lease $lease granted with TTL\\(60s\\), remaining\\((60|[1-5][0-9])s\\)" "$(e lease timetolive "$lease")"
like "lease timetolive --keys" "lease $lease granted with TTL\\(60s\\), remaining\\((60|[1-5][0-9])s\\), attached keys\\(\\[${p}leased\\]\\)" "$(e lease timetolive "$lease" --keys)"
same "lease keep-alive --once" "lease $lease keepalived with TTL(60)" "$(e lease keep-alive "$lease" --once)"
like "lease list" "found [1-9][0-9]* leases" "$(e lease list | head -1)"
same "lease in the list" "$lease" "$(e lease list | grep "^$lease\$")"
same "lease revoke" "lease $lease revoked" "$(e lease revoke "$lease")"
same "get after revoke" "" "$(e get "${p}leased")"
same "lease timetolive of a dead lease" "lease $lease already expired" "$(e lease timetolive "$lease")"
refused "lease revoke of a dead lease" "etcdserver: requested lease not found" e lease revoke "$lease"
refused "lease keep-alive of a dead lease" "etcdserver: requested lease not found" e lease keep-alive "$lease" --once

# --- lock and elect
same "lock with a command" "held" "$(e lock "${p}lock" -- echo held)"
"$ctl" --endpoints="$endpoint" elect "${p}elect" me >"$work/elect" 2>&1 &
electing=$!
reached "$work/elect" 2
like "elect" "${p}elect/[0-9a-f]+
me" "$(cat "$work/elect")"
timeout 90 "$ctl" --endpoints="$endpoint" elect -l "${p}elect" >"$work/listen" 2>&1 &
listening=$!
reached "$work/listen" 2
like "elect -l" "${p}elect/[0-9a-f]+
me" "$(cat "$work/listen")"
kill "$listening" "$electing" 2>/dev/null
wait "$listening" "$electing" 2>/dev/null

# --- compaction
for v in 1 2 3; do e put "${p}compact" $v >/dev/null; done
at=$(revision "${p}compact")
same "compaction" "compacted revision $at" "$(e compaction "$at")"
refused "compaction again" "etcdserver: mvcc: required revision has been compacted" e compaction "$at"
refused "compaction of the future" "etcdserver: mvcc: required revision is a future revision" e compaction 999999999
refused "get of a compacted revision" "required revision has been compacted" e get "${p}compact" --rev="$((at - 1))"
same "get at the compacted revision" "3" "$(e get "${p}compact" --rev="$at" --print-value-only)"
e put "${p}compact" 4 >/dev/null
same "compaction --physical" "compacted revision $((at + 1))" "$(e compaction "$((at + 1))" --physical)"
same "watch of a compacted revision" "watch was canceled (etcdserver: mvcc: required revision has been compacted)" \
    "$(timeout 90 "$ctl" --endpoints="$endpoint" watch "${p}compact" --rev=1 2>&1 | grep '^watch was')"

# --- endpoints
like "endpoint health" "$endpoint is healthy: successfully committed proposal: took = .*" "$(e endpoint health 2>&1)"
like "endpoint health --cluster" ".* is healthy: successfully committed proposal: took = .*" "$(e endpoint health --cluster 2>&1)"
like "endpoint health -w json" '\[\{"endpoint":"'"$endpoint"'","health":true,"took":".*"\}\]' "$(e endpoint health -w json 2>/dev/null)"
if [ "$minor" -ge 6 ]; then
    like "endpoint status" "$endpoint, [0-9a-f]+, 3\\.[0-9]+\\.[0-9]+.*, 3\\.[0-9]+\\.0, [0-9.]+ .?B, [0-9.]+ .?B, [0-9]+%, [0-9.]+ .?B, true, false, [0-9]+, [0-9]+, [0-9]+, , , false" "$(e endpoint status)"
    like "endpoint hashkv" "$endpoint, [0-9]+, [0-9]+" "$(e endpoint hashkv)"
else
    like "endpoint status" "$endpoint, [0-9a-f]+, 3\\.[0-9]+\\.[0-9]+.*, [0-9.]+ .?B, true, false, [0-9]+, [0-9]+, [0-9]+, *" "$(e endpoint status)"
    like "endpoint hashkv" "$endpoint, [0-9]+" "$(e endpoint hashkv)"
fi
like "endpoint status -w json" '\[\{"Endpoint":"'"$endpoint"'","Status":\{"header":\{"cluster_id":[0-9]+,"member_id":[0-9]+,"revision":[0-9]+,"raft_term":[0-9]+\},"version":"3\.[0-9.]+.*","dbSize":[0-9]+,"leader":[0-9]+,"raftIndex":[0-9]+,"raftTerm":[0-9]+,.*\}\}\]' "$(e endpoint status -w json)"
same "endpoint hashkv twice" "$(e endpoint hashkv)" "$(e endpoint hashkv)"
like "endpoint status -w table" '.*ENDPOINT.*ID.*VERSION.*DB SIZE.*'"$endpoint"'.*' "$(e endpoint status -w table)"

# --- members, alarms, maintenance
like "member list" "[0-9a-f]+, started, .+, https?://.+, https?://.+, false" "$(e member list | head -1)"
like "member list -w table" '.*ID.*STATUS.*NAME.*PEER ADDRS.*CLIENT ADDRS.*IS LEARNER.*started.*false.*' "$(e member list -w table)"
like "member list -w json" '\{"header":\{"cluster_id":[0-9]+,"member_id":[0-9]+,"raft_term":[0-9]+\},"members":\[\{"ID":[0-9]+,"name":".+","peerURLs":\[.*\],"clientURLs":\[.*\]\}.*\]\}' "$(e member list -w json)"
part members
refused "member remove of nobody" "etcdserver: member not found" e member remove 1234567
refused "member add with a known URL" "etcdserver: Peer URLs already exists" e member add again --peer-urls="$(e member list | head -1 | cut -d, -f4 | tr -d ' ')"
part none
same "alarm list" "" "$(e alarm list)"
same "alarm disarm" "" "$(e alarm disarm)"
like "defrag" 'Finished defragmenting etcd member.*' "$(e defrag 2>&1 | tail -1)"
e snapshot save "$work/s.db" >"$work/save" 2>&1
like "snapshot save" "Snapshot saved at $work/s.db" "$(grep '^Snapshot saved' "$work/save")"
same "snapshot size modulo 512" "32" "$(($(stat -c %s "$work/s.db") % 512))"
same "snapshot hash" "$(head -c -32 "$work/s.db" | sha256sum | cut -d' ' -f1)" "$(tail -c 32 "$work/s.db" | od -An -v -tx1 | tr -d ' \n')"

# --- users and roles; auth is on only between the two marks
part auth
same "role add" "Role ${p}r created" "$(e role add "${p}r")"
same "role grant-permission" "Role ${p}r updated" "$(e role grant-permission "${p}r" readwrite "${p}mine/" --prefix)"
like "role get" "Role ${p}r
KV Read:
	\\[${p}mine/, ${p}mine0\\) \\(prefix ${p}mine/\\)
KV Write:
	\\[${p}mine/, ${p}mine0\\) \\(prefix ${p}mine/\\)" "$(e role get "${p}r" | grep .)"
same "user add" "User ctl-user created" "$(e user add ctl-user:secret)"
same "user grant-role" "Role ${p}r is granted to user ctl-user" "$(e user grant-role ctl-user "${p}r")"
like "user get" "User: ctl-user
Roles: ${p}r" "$(e user get ctl-user)"
refused "user add again" "etcdserver: user name already exists" e user add ctl-user:secret
refused "auth enable without root" "root user does not exist" e auth enable
same "user add root" "User root created" "$(e user add root:rootpw)"
# etcdctl itself creates the role root and grants it.
same "auth enable" "Authentication Enabled" "$(e auth enable 2>/dev/null)"
# -- auth on
r() { e --user=root:rootpw "$@"; }
u() { e --user=ctl-user:secret "$@"; }
refused "put without a user" "etcdserver: user name is empty" e put "${p}mine/x" 1
refused "put with a wrong password" "etcdserver: authentication failed, invalid user ID or password" e --user=ctl-user:wrong put "${p}mine/x" 1
same "put as a user" "OK" "$(u put "${p}mine/x" 1)"
same "get as a user" "1" "$(u get "${p}mine/x" --print-value-only)"
refused "put outside the permission" "etcdserver: permission denied" u put "${p}yours/x" 1
refused "get over more than the permission" "etcdserver: permission denied" u get "$p" --prefix
refused "user list as a user" "etcdserver: permission denied" u user list
same "user list as root" "ctl-user
root" "$(r user list)"
same "put as root" "OK" "$(r put "${p}yours/x" 1)"
same "auth disable" "Authentication Disabled" "$(r auth disable)"
# -- auth off
same "user revoke-role" "Role ${p}r is revoked from user ctl-user" "$(e user revoke-role ctl-user "${p}r")"
same "user delete" "User ctl-user deleted" "$(e user delete ctl-user)"
same "user delete root" "User root deleted" "$(e user delete root)"
same "role revoke-permission" "Permission of range [${p}mine/, ${p}mine0) is revoked from role ${p}r" "$(e role revoke-permission "${p}r" "${p}mine/" --prefix | head -1)"
same "role delete" "Role ${p}r deleted" "$(e role delete "${p}r")"
same "role delete root" "Role root deleted" "$(e role delete root)"
part none

e del "$p" --prefix >/dev/null
[ "$left_out" -eq 0 ] || echo "$left_out left out"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
