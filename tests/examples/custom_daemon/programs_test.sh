#!/bin/sh
# Runs the two programs as a user would: the daemon with its functions, and the program that calls
# them.
set -eu
daemon=$1
use=$2
folder=$(mktemp -d)
"$daemon" --name=owner0 --listen=127.0.0.1:0 --address_file="$folder/address" &
owner=$!
trap 'kill "$owner" 2>/dev/null || true; rm -rf "$folder"' EXIT
while [ ! -s "$folder/address" ]; do
  kill -0 "$owner" || { echo "the daemon has ended" >&2; exit 1; }
  sleep 0.05
done
"$use" "$(cat "$folder/address")" >"$folder/said"
cat "$folder/said"
grep -q '^standardized: -1\.07 -0\.53 0\.00 1\.60$' "$folder/said"
grep -q '^sampled: f32\[4, 2\]$' "$folder/said"
kill "$owner"
wait "$owner"
