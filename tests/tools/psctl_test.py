"""psctl against a real owner."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, "tests/server")
from psd_process import Psd  # noqa: E402

PSCTL = "tools/cli/psctl"


def psctl(*arguments, address=None):
    """Runs psctl to its end. Returns (exit code, standard output, standard error)."""
    environment = dict(os.environ, PATH=os.path.abspath("server/daemon") + ":" + os.environ["PATH"])
    environment.pop("PSD_ADDRESS", None)
    if address:
        environment["PSD_ADDRESS"] = address
    done = subprocess.run([PSCTL, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


def session(psd, peer):
    """Waits until `psd` is connected to `peer`. Returns (carrier, why not shared memory), as psctl
    shows them."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        code, output, errors = psctl("status", "--address", psd.address)
        assert code == 0, errors
        lines = output.splitlines()
        rows = [line for line in lines if line.split()[:1] == [peer]]
        if not rows:
            continue
        head = next(line for line in lines if line.split()[:2] == ["WORKER", "INCARNATION"])
        cells = {name: rows[0][head.index(name):] for name in ("CARRIER", "WHY NOT SHARED MEMORY")}
        carrier, why = (re.split("  +", cell)[0].strip() for cell in cells.values())
        if carrier != "none":
            return carrier, why
    raise AssertionError("no session with %s:\n%s" % (peer, output))


class PsctlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.psd = Psd("--memory_budget", "1GiB")

    @classmethod
    def tearDownClass(cls):
        cls.psd.__exit__()

    def test_status_for_people_and_programs(self):
        code, output, errors = psctl("status", "--address", self.psd.address)
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("owner0 at %s, version " % self.psd.address, output)
        self.assertRegex(output, r"memory: .* of values and .* in transit, of 1 GiB")
        self.assertNotIn("\033", output, "colour is for terminals")
        code, output, _ = psctl("status", "--json", address=self.psd.address)
        status = json.loads(output)
        self.assertEqual(code, 0)
        self.assertEqual((status["name"], status["registrar"]), ("owner0", "owner0"))
        self.assertEqual(status["memory"]["budget_bytes"], str(1 << 30))

    def test_status_says_which_carrier_a_session_uses(self):
        registrar = "owner0=" + self.psd.address
        with Psd("--registrar", registrar, name="near") as near:
            self.assertEqual(session(near, "owner0"), ("shm", "-"))
            self.assertEqual(session(self.psd, "near"), ("shm", "-"))

    def test_status_says_why_a_session_does_not_use_shared_memory(self):
        registrar = "owner0=" + self.psd.address
        with Psd("--registrar", registrar, "--shared_memory=false", name="off") as off:
            self.assertEqual(session(off, "owner0"),
                             ("grpc", "shared memory is off at this worker"))
            self.assertEqual(session(self.psd, "off"),
                             ("grpc", "the peer dialled over the network"))

    def test_list_and_drop(self):
        self.assertEqual(psctl("list", address=self.psd.address), (0, "", ""))
        code, output, _ = psctl("list", "--json", "prefix", address=self.psd.address)
        self.assertEqual((code, json.loads(output)["names"]), (0, []))
        code, _, errors = psctl("drop", "nothing", address=self.psd.address)
        self.assertEqual(code, 1)
        self.assertIn("nothing", errors)

    def test_ping(self):
        code, output, errors = psctl("ping", address=self.psd.address)
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("serves", output)
        code, output, _ = psctl("ping", "--json", address=self.psd.address)
        self.assertTrue(json.loads(output)["serving"])

    def test_nobody_there(self):
        with Psd() as gone:
            address = gone.address
        for command in (["ping"], ["status"], ["list"], ["drop", "x"]):
            code, output, errors = psctl(*command, address=address)
            self.assertEqual((code, output), (1, ""))
            self.assertIn("cannot reach " + address, errors)
            self.assertIn("is psd running there?", errors)

    def test_check(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "psd.yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write("name: a\n")
            code, output, _ = psctl("check", path)
            self.assertEqual(code, 0)
            self.assertIn("name: 'a'", output)
            with open(path, "a", encoding="utf-8") as file:
                file.write("threads: many\n")
            code, _, errors = psctl("check", path)
            self.assertEqual(code, 1)
            self.assertIn(path + ":2: threads:", errors)

    def test_usage(self):
        self.assertEqual(psctl()[0], 2)
        self.assertEqual(psctl("frobnicate")[0], 2)
        self.assertEqual(psctl("drop")[0], 2)
        self.assertEqual(psctl("ping", "--timeout", "soon")[0], 2)
        self.assertEqual(psctl("ping", "--adress", "x")[0], 2)
        for bad in ("", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", "a b:1"):
            for arguments in (("ping", "--address", bad),
                              ("save", "folder", "--owners", "a=127.0.0.1:1,b=" + bad)):
                code, output, errors = psctl(*arguments)
                self.assertEqual((code, output), (2, ""), arguments)
                self.assertIn("--" + arguments[-2].strip("-"), errors.splitlines()[0])
        self.assertEqual(psctl("ping", address="nowhere")[0], 2)
        code, output, _ = psctl("--help")
        self.assertEqual(code, 0)
        self.assertIn("psctl drop NAME", output)


if __name__ == "__main__":
    unittest.main()
