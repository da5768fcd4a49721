#!/bin/sh
# Verifies the unit template by an instance of it in a staged folder.
set -eu
unit=deploy/systemd/psd@.service

if ! command -v systemd-analyze >/dev/null; then
  echo "skipped: systemd-analyze is not installed"
  exit 0
fi

stage=$TEST_TMPDIR/stage
mkdir -p "$stage/units"
# verify requires that the program of the unit exists. Any program will do.
sed "s|/usr/bin/psd|/bin/true|" "$unit" >"$stage/units/psd@.service"
ln -s "psd@.service" "$stage/units/psd@owner0.service"
problems=$(SYSTEMD_UNIT_PATH="$stage/units:" systemd-analyze verify --man=no \
  "$stage/units/psd@owner0.service" 2>&1 | grep -i psd || true)
if [ -n "$problems" ]; then
  echo "systemd-analyze: $problems" >&2
  exit 1
fi

# A misspelled setting is reported, which shows that verify notices mistakes.
sed "s|^RestartSec=|RestartSeconds=|" "$stage/units/psd@.service" >"$stage/units/bad@.service"
ln -s "bad@.service" "$stage/units/bad@owner0.service"
if ! SYSTEMD_UNIT_PATH="$stage/units:" systemd-analyze verify --man=no \
  "$stage/units/bad@owner0.service" 2>&1 | grep -q "RestartSeconds"; then
  echo "systemd-analyze did not notice a misspelt setting: this test shows nothing" >&2
  exit 1
fi

# The stop timeout must be longer than psd's default drain timeout.
stop=$(sed -n 's/^TimeoutStopSec=\([0-9]*\)s$/\1/p' "$unit")
drain=$(sed -n 's/^drain_timeout: \([0-9]*\)s$/\1/p' deploy/config/example.yaml)
if [ "$stop" -le "$drain" ]; then
  echo "TimeoutStopSec=$stop is not above drain_timeout, $drain" >&2
  exit 1
fi
