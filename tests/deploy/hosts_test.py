"""A job on three hosts, which are network namespaces connected by a bridge. Owners listen on
0.0.0.0 and announce their addresses by `advertise`. psctl save and load work from every host."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = ["tests/server", "tools/namespaces"]
import namespaces  # noqa: E402
from namespaces import command  # noqa: E402
from psd_process import Psd, run  # noqa: E402

PSCTL = "tools/cli/psctl"
HOSTS = 3
PORT = 7071


class Host(namespaces.Host):
    """A host on the bridge."""

    def __init__(self, number):
        link = "psd%d" % number
        super().__init__(link, "10.77.0.%d" % (number + 1))
        command("ip", "link", "set", link, "master", "bridge0")

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


def main():
    """Runs the tests in a network namespace of their own, which holds the bridge.

    Returns what is missing for that in CI, where a test that cannot run fails. Elsewhere, such a
    test passes.
    """
    missing = namespaces.enter()
    if missing is None:
        return unittest.main()
    if os.environ.get("PSD_CI"):
        return missing
    print("skipped: " + missing)
    return None


if __name__ == "__main__":
    sys.exit(main())
