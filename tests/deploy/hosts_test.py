"""A job on three hosts, which are network namespaces connected by a bridge. Owners listen on
0.0.0.0 and announce their addresses by `advertise`. psctl save and load work from every host."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = ["tests/server"]
from psd_process import Psd, run  # noqa: E402

PSCTL = "tools/cli/psctl"
INSIDE = "PSD_HOSTS_TEST_INSIDE"
HOSTS = 3
PORT = 7071


def command(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60, **options)


class Host:
    """A network namespace that lives as long as the process that holds it."""

    def __init__(self, number):
        self.ip = "10.77.0.%d" % (number + 1)
        # The first line comes from inside the namespace, so it exists by then.
        self._holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._holder.stdout.readline()
        pid = str(self._holder.pid)
        self.enter = ["nsenter", "--net=/proc/%s/ns/net" % pid]
        self._link = "psd%d" % number
        command("ip", "link", "add", self._link, "type", "veth",
                "peer", "name", "eth0", "netns", pid)
        command("ip", "link", "set", self._link, "master", "bridge0", "up")
        command(*self.enter, "ip", "address", "add", self.ip + "/24", "dev", "eth0")
        command(*self.enter, "ip", "link", "set", "eth0", "up")
        command(*self.enter, "ip", "link", "set", "lo", "up")

    def close(self):
        # The kernel would remove the link only some time after the namespace ends.
        command("ip", "link", "delete", self._link)
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()

    def psd(self, name, *arguments):
        return Psd("--insecure", *arguments, name=name, listen="0.0.0.0:%d" % PORT,
                   prefix=self.enter)

    def psctl(self, *arguments):
        done = subprocess.run([*self.enter, PSCTL, *arguments], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr


class HostsTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", "bridge0", "type", "bridge")
        self.addCleanup(command, "ip", "link", "delete", "bridge0")
        command("ip", "link", "set", "bridge0", "up")
        self.hosts = []
        for number in range(HOSTS):
            self.hosts.append(Host(number))
            self.addCleanup(self.hosts[-1].close)

    def start_owners(self):
        """Starts an owner on each host, and returns when all have joined."""
        names = ["owner%d" % number for number in range(HOSTS)]
        registrar = "owner0=%s:%d" % (self.hosts[0].ip, PORT)
        for name, host in zip(names, self.hosts):
            more = [] if name == "owner0" else ["--registrar", registrar]
            psd = host.psd(name, "--advertise", host.ip, "--owners", ",".join(names), *more)
            self.addCleanup(psd.__exit__)
            self.assertEqual(psd.address, "%s:%d" % (host.ip, PORT))
        return names

    def test_save_and_load_from_every_host(self):
        names = self.start_owners()
        for number, host in enumerate(self.hosts):
            # psctl asks the owner of its own host at 127.0.0.1, where the other hosts cannot reach
            # it.
            address = "127.0.0.1:%d" % PORT
            saves = os.path.join(self.folder, "saves%d" % number)
            code, output, errors = self.until_all_have_joined(host, address, saves)
            self.assertEqual(code, 0, errors)
            self.assertIn("optimizers of %s, " % ", ".join(names), output)
            code, output, errors = host.psctl("load", saves, "--address", address)
            self.assertEqual(code, 0, errors)

    def until_all_have_joined(self, host, address, saves):
        """Runs psctl save, and repeats it while an owner has not joined the registrar yet."""
        while True:
            code, output, errors = host.psctl("save", saves, "--address", address,
                                              "--timeout", "30s")
            if "and has not joined" not in errors:
                return code, output, errors

    def test_all_interfaces_without_advertise_are_refused(self):
        code, _, errors = run("--name", "a", "--insecure", "--listen", "0.0.0.0:%d" % PORT)
        self.assertEqual(code, 2)
        self.assertIn("advertise", errors)


def can(*words):
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def main():
    """Runs the tests in a network namespace of their own, which holds the bridge.

    Returns what is missing for that in CI, where a test that cannot run fails. Elsewhere, such a
    test passes.
    """
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # ip
    if os.environ.get(INSIDE):
        return unittest.main()
    for words in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        if can(*words, "ip", "link", "add", "psd0", "type", "veth", "peer", "name", "psd1"):
            os.environ[INSIDE] = "yes"
            os.execvp(words[0], [*words, sys.executable, "-B", *sys.argv])
    missing = "network namespaces cannot be made here (unshare --net, ip link add type veth)"
    if os.environ.get("PSD_CI"):
        return missing
    print("skipped: " + missing)
    return None


if __name__ == "__main__":
    sys.exit(main())
