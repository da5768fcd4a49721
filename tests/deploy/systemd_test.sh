#!/bin/sh
# The unit template, verified as an instance of a staged root.
set -eu
unit=deploy/systemd/psd@.service

if ! command -v systemd-analyze >/dev/null; then
  echo "skipped: systemd-analyze is not installed"
  exit 0
fi

stage=$TEST_TMPDIR/stage
mkdir -p "$stage/units"
# verify wants the program to exist where the unit says; any will do.
sed "s|/usr/bin/psd|/bin/true|" "$unit" >"$stage/units/psd@.service"
ln -s "psd@.service" "$stage/units/psd@owner0.service"
problems=$(SYSTEMD_UNIT_PATH="$stage/units:" systemd-analyze verify --man=no \
  "$stage/units/psd@owner0.service" 2>&1 | grep -i psd || true)
if [ -n "$problems" ]; then
  echo "systemd-analyze: $problems" >&2
  exit 1
fi

# It notices: a misspelt setting is reported.
sed "s|^RestartSec=|RestartSeconds=|" "$stage/units/psd@.service" >"$stage/units/bad@.service"
ln -s "bad@.service" "$stage/units/bad@owner0.service"
if ! SYSTEMD_UNIT_PATH="$stage/units:" systemd-analyze verify --man=no \
  "$stage/units/bad@owner0.service" 2>&1 | grep -q "RestartSeconds"; then
  echo "systemd-analyze did not notice a misspelt setting: this test shows nothing" >&2
  exit 1
fi

# Stopping waits longer than psd's default drain.
stop=$(sed -n 's/^TimeoutStopSec=\([0-9]*\)s$/\1/p' "$unit")
drain=$(sed -n 's/^drain_timeout: \([0-9]*\)s$/\1/p' deploy/config/example.yaml)
if [ "$stop" -le "$drain" ]; then
  echo "TimeoutStopSec=$stop is not above drain_timeout, $drain" >&2
  exit 1
fi
