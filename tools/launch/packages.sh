# shellcheck shell=sh Sourced by tools/demo and tools/test, with their arguments: installs the
# packages that are missing, and can be stopped meanwhile.

# A shell cannot trap a signal that was ignored when the shell started, and a script lets programs
# that it starts in the background ignore SIGINT. So this script first restores SIGINT.
if [ -z "${PSD_SIGNALS_RESET-}" ]; then
  PSD_SIGNALS_RESET=yes exec env --default-signal=INT "$0" "$@"
fi
unset PSD_SIGNALS_RESET

# Lets install_packages stop apt-get properly, which may take a while.
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
# Runs in the background, because a shell that waits for a program in the foreground handles no
# signal until that program ends.
"$(dirname "$0")/install_packages" &
wait $!
trap - INT TERM HUP
