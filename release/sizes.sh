#!/bin/sh
# How many megabytes do fedpoint and its extras take? release/sizes.sh ENVIRONMENT WHEEL
# ENVIRONMENT: a clean one with the wheel in it, as `make release` leaves in build/clean.
set -eu
WHEEL=$2
SITE=$("$1/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
echo "fedpoint alone: $(du -sm "$SITE/fedpoint" | cut -f1) MB; with all that it needs: $(du -sm "$SITE" | cut -f1) MB"
for extra in ui proofs rl federation data trackers docs; do
  python3 -m venv "$FOLDER/$extra"
  here=$("$FOLDER/$extra/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
  echo "$SITE" > "$here/below.pth" # what is there already is not installed again
  before=$(du -sm "$here" | cut -f1)
  "$FOLDER/$extra/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt "$WHEEL[$extra]"
  echo "$extra: $(($(du -sm "$here" | cut -f1) - before)) MB more"
  rm -rf "${FOLDER:?}/$extra"
done
