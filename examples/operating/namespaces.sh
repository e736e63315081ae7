#!/usr/bin/env bash
# A project's life in separate network namespaces on one machine: from zero to a first study, a second version, a new
# site, two studies side by side, a lost disk, an expired certificate, a revoked site. Needs root (ip netns), fedpoint[federation] and some minutes.
#   sudo examples/operating/namespaces.sh [FOLDER]
set -euo pipefail
root=${1:-$(mktemp -d)}
mkdir -p "$root" && cd "$root"
parties=(lead hub north south west)
declare -A at=([lead]=10.77.0.9 [hub]=10.77.0.1 [north]=10.77.0.11 [south]=10.77.0.12 [west]=10.77.0.13)
declare -A running=()

inside() { local who=$1; shift; ip netns exec "fp-$who" "$@"; }
say() { printf '\n== %s ==\n' "$*"; }
# Show a command and run it in a party's namespace; a failure that is expected is written as: no WHO COMMAND...
on() { local who=$1; shift; printf '%s$ fedpoint federate %s\n' "$who" "$*"; inside "$who" fedpoint federate "$@"; }
no() { if on "$@" 2>&1; then echo "this should have been refused" >&2; exit 1; fi; }
start() { # WHO COMMAND...: in the background
  local who=$1; shift
  printf '%s$ fedpoint federate %s &\n' "$who" "$*"
  (exec ip netns exec "fp-$who" fedpoint federate "$@") >>"$who.log" 2>&1 & # exec: its number is that of the command
  running[$who]=$!
}
halt() { kill -TERM "${running[$1]}" 2>/dev/null || true; wait "${running[$1]}" 2>/dev/null || true; unset "running[$1]"; }
until_file() { for _ in $(seq 600); do [ -e "$1" ] && return; sleep 1; done; echo "waited in vain for $1" >&2; exit 1; }
until_said() { for _ in $(seq 600); do grep -q "$2" "$1" && return; sleep 1; done; echo "waited in vain: $2" >&2; exit 1; }
tidy() {
  for who in "${!running[@]}"; do halt "$who"; done
  for who in "${parties[@]}"; do
    ip netns pids "fp-$who" 2>/dev/null | xargs -r kill || true
    ip netns del "fp-$who" 2>/dev/null || true
  done
  ip link del fp-bridge 2>/dev/null || true
}
trap tidy EXIT

ip link add fp-bridge type bridge && ip link set fp-bridge up
for who in "${parties[@]}"; do
  ip netns add "fp-$who"
  ip link add "fp-$who" type veth peer name eth0 netns "fp-$who"
  ip link set "fp-$who" master fp-bridge up
  inside "$who" ip link set lo up && inside "$who" ip link set eth0 up
  inside "$who" ip address add "${at[$who]}/24" dev eth0
done
for site in north south west; do
  awk -v seed="$RANDOM" 'BEGIN { srand(seed); print "age,sex,died"; for (i = 0; i < 200; i++) { age = 20 + int(60 * rand());
    print age "," (rand() < .5 ? "f" : "m") "," (rand() < age / 100 ? 1 : 0) } }' > "$site.csv"
done
write_study() { # SITES ROUNDS [NAME]: as TOML
  cat > "${3:-mortality}.toml" <<TOML
name = "${3:-mortality}"
sites = $1
rounds = $2
quorum = 2
deadline = 60.0
runs = 1
purpose = "quality of care"

[problem]
kind = "table"
model = "logistic"
target = "died"
features = ["age", "sex"]

[algorithm]
name = "fedavg"
step = 0.5
local_steps = 2
TOML
}
join_project() { # SITE: its own key, a request, the leader's signature
  on "$1" request project/invitation.json "$1"
  on lead add "$1/$1.csr" --project project --yes --offline
  on "$1" join "$1" "project/certificates/$1.crt"
}
issue() { # VERSION SITES ROUNDS WHO...: signed by the leader, then fetched and approved at the sites named
  local version=$1 who; write_study "$2" "$3"; shift 3
  on lead study mortality.toml --project project
  for who in "$@"; do until_file "$who/studies/mortality.$version/signed.json"; done
  for who in "$@"; do on "$who" approve "$who" --data "$who.csv" --yes; done
}
run_study() { on lead run mortality.toml --project project --quiet --folder "result-$1"; }

say "From zero to a first study"
on lead init project --server 10.77.0.1:8102
start hub server project/server
join_project north; join_project south
start north site north; start south site south
issue 1 '["north", "south"]' 3 north south
run_study 1

say "A second version: a policy approves it in the north, a person in the south"
cat > north/policy.toml <<TOML
purpose = "quality of care"
data = "$root/north.csv"
columns = ["age", "sex", "died"]
models = ["logistic"]
methods = ["fedavg"]
rounds = 2000
runs = 10
TOML
issue 2 '["north", "south"]' 5 south
until_file north/studies/mortality.2/approval.json
run_study 2

say "A new site"
join_project west; start west site west
issue 3 '["north", "south", "west"]' 5 south west
run_study 3

say "Two studies side by side"
write_study '["north", "west"]' 400 severity
on lead study severity.toml --project project
until_file west/studies/severity.1/signed.json
on west approve west severity --data west.csv --yes
until_file north/studies/severity.1/approval.json
issue 4 '["north", "south", "west"]' 400 south west
until_file north/studies/mortality.4/approval.json
(on lead run severity.toml --project project --quiet --folder result-severity > severity.log 2>&1) & running[severity]=$!
run_study 4
wait "${running[severity]}"; unset "running[severity]"
cat severity.log
span() { # the times of the first and the last round that the north has worked in
  grep '"kind":"work"' "north/studies/$1/records/audit.jsonl" | grep -o '"time":"[^"]*"' | sed -n '1p;$p' | tr '\n' ' '; }
echo "severity.1: $(span severity.1)"; echo "mortality.4: $(span mortality.4)"

say "A lost disk: the south has lost its key"
halt south; rm -rf south
on lead revoke south --project project
join_project south; start south site south
issue 5 '["north", "south", "west"]' 6 south west
run_study 5

say "An expired certificate in the west"
halt west
on lead renew west --project project --days 0.0001 --offline
on west join west project/certificates/west.crt
sleep 10
no west site west
on lead renew west --project project
on west join west project/certificates/west.crt
start west site west

say "The north is revoked while a study runs"
issue 6 '["north", "south", "west"]' 2000 south west
until_file north/studies/mortality.6/approval.json
(run_study 6 > run.log 2>&1) & running[run]=$!
until_file north/studies/mortality.6/records/audit.jsonl
until_said north/studies/mortality.6/records/audit.jsonl '"kind":"work"'
on lead revoke north --project project
wait "${running[run]}"; unset "running[run]"
cat run.log
worked() { grep -c '"kind":"work"' "$1/studies/mortality.6/records/audit.jsonl"; }
echo "the north has worked in $(worked north) rounds, the south in $(worked south)"
[ "$(worked north)" -lt "$(worked south)" ] || { echo "the north was not refused" >&2; exit 1; }
say "What the sites said meanwhile"
grep -h "has come\|approved\|ended" north.log south.log west.log | cut -c1-160 | sort -u | head -20
say "done"
