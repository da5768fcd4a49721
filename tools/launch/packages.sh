# shellcheck shell=sh
# Sourced by tools/demo and tools/test, with their arguments: installs the packages that are missing,
# and can be stopped while it does so.

# A shell cannot trap a signal that it was started to ignore, and a script has what it starts in the
# background ignore SIGINT.
if [ -z "${PSD_SIGNALS_RESET-}" ]; then
  PSD_SIGNALS_RESET=yes exec env --default-signal=INT "$0" "$@"
fi
unset PSD_SIGNALS_RESET

# install_packages stops apt-get in the right way, which may take a while.
stop_installing() {
  trap '' INT TERM HUP
  if [ -n "${!-}" ]; then
    kill -TERM $! 2>/dev/null || true
    wait $! || true
  fi
  exit "$1"
}
trap 'stop_installing 130' INT
trap 'stop_installing 143' TERM
trap 'stop_installing 129' HUP
# In the background: a shell that waits for a program in the foreground hears of no signal until
# that ends.
"$(dirname "$0")/install_packages" &
wait $!
trap - INT TERM HUP
