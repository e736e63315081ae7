#!/bin/sh
# Use an installed fedpoint as somebody would who has no clone: release/use.sh ENVIRONMENT/bin
set -eu
BIN=$(cd "$1" && pwd)
unset PYTHONPATH
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
cd "$FOLDER"
fedpoint() {
  echo "fedpoint $*"
  "$BIN/fedpoint" "$@" > said.txt 2>&1 || { cat said.txt; exit 1; }
}
fedpoint --version
fedpoint new mine
fedpoint forecast mine.toml
fedpoint run mine.toml
fedpoint check runs/mine-1
fedpoint report runs/mine-1
fedpoint examples --all
fedpoint run examples/table.toml
fedpoint plan examples/plan.toml
fedpoint lab linear-gain --quick
test -s runs/mine-1/report.html || ls -R runs
"$BIN/python" -c "import fedpoint as fp; quad = fp.problems.Quadratic(1.0, [[0.0], [1.0]]); print(fp.run(fp.FedAvg(step=0.1), quad, rounds=50).model)"
