#!/usr/bin/python3
"""Measures pulls and pushes over a network of 10 Gbit/s, beside bare TCP over the same network.

usage: bazel run -c opt //bench:wire -- [--only CASE]... [--blocks N]

Runs //bench in one network namespace and its servers in another. The two are joined by a virtual
Ethernet link that carries 10 Gbit/s each way. The cases run over the link as it is, then with 1 ms
and 10 ms of delay each way, which a proxy on the benchmark's side adds for psd and bare TCP alike.
Without --only the cases are pull_256MiB and push_256MiB.

Exits 3 and says what is missing where namespaces cannot be made; otherwise as //bench.
"""
import argparse
import os
import signal
import subprocess
import sys

FILES = sys.argv[0] + ".runfiles/psd"
ROOT = FILES if os.path.isdir(FILES) else "."  # Bazel's tests run among the files
sys.path[:0] = [os.path.join(ROOT, "tools/namespaces")]
import namespaces  # noqa: E402

OWN_ADDRESS = "10.78.0.1"
SERVERS_ADDRESS = "10.78.0.2"
LINK = "psd0"
# The bucket holds what the link carries in 0.8 ms, and the queue what it carries in 10 ms more.
RATE = ["root", "tbf", "rate", "10gbit", "burst", "1mb", "latency", "10ms"]
DELAYS_MS = (0, 1, 10)
CASES = ["pull_256MiB", "push_256MiB"]


def file(path):
    return os.path.join(ROOT, path)


def start_servers_host():
    """Returns a host behind a link of limited rate."""
    host = namespaces.Host(LINK, SERVERS_ADDRESS)
    namespaces.command("ip", "address", "add", OWN_ADDRESS + "/24", "dev", LINK)
    namespaces.command("tc", "qdisc", "add", "dev", LINK, *RATE)
    namespaces.command(*host.enter, "tc", "qdisc", "add", "dev", "eth0", *RATE)
    return host


def measure(host, delay_ms, flags):
    """Returns the exit code of the benchmark."""
    print("10 Gbit/s, %d ms of delay each way" % delay_ms, flush=True)
    return subprocess.run(
        [file("bench/bench"), "--daemon", file("server/daemon/psd"),
         "--helper", file("bench/helper"), "--enter", " ".join(host.enter), "--host", host.ip,
         "--delay", "%dms" % delay_ms, *flags], check=False).returncode


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="CASE", action="append", help="a case of //bench")
    parser.add_argument("--blocks", metavar="N", help="how many blocks each case runs")
    options = parser.parse_args()
    flags = ["--blocks", options.blocks] if options.blocks else []
    for case in options.only or CASES:
        flags += ["--only", case]
    missing = namespaces.enter("tc")
    if missing is not None:
        print("wire: " + missing, file=sys.stderr)
        return 3
    # Without it SIGTERM would leave the benchmark, its servers and so the namespaces behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        host = start_servers_host()
    except subprocess.CalledProcessError as error:
        print("wire: %s: %s" % (" ".join(error.cmd), (error.stderr or "").strip()), file=sys.stderr)
        return 3
    try:
        codes = [measure(host, delay_ms, flags) for delay_ms in DELAYS_MS]
    finally:
        host.close()
    # A code below zero is a signal.
    return next((code if code > 0 else 1 for code in codes if code != 0), 0)


if __name__ == "__main__":
    sys.exit(main())
