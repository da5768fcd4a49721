"""bench/wire runs its cases in namespaces, or says what is missing for that."""
import os
import re
import subprocess
import sys
import unittest

sys.path[:0] = ["tools/namespaces"]
import namespaces  # noqa: E402

WIRE = "bench/wire.py"
CASES = ("pull_16MiB", "push_16MiB")


def wire(*arguments, **environment):
    """Returns exit code, standard output and standard error."""
    done = subprocess.run([sys.executable, "-B", WIRE, *arguments], stdin=subprocess.DEVNULL,
                          env={**os.environ, **environment}, capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout, done.stderr


class WireTest(unittest.TestCase):

    def test_psd_and_bare_tcp_are_measured_for_every_delay(self):
        code, output, errors = wire("--blocks", "1", "--only", CASES[0], "--only", CASES[1])
        self.assertEqual(code, 0, errors)
        settings = re.findall(r"^10 Gbit/s, (\d+) ms of delay", output, re.MULTILINE)
        self.assertEqual(settings, ["0", "1", "10"])
        for case in CASES:
            rows = re.findall(r"^%s +grpc +(\S+) +GB/s +(\S+) +(\S+)" % case, output, re.MULTILINE)
            self.assertEqual(len(rows), 3, output)
            for psd, tcp, _ in rows:
                # The link bounds both. What the full bucket lets through at once is less than a
                # tenth of these 16 MiB.
                self.assertTrue(0 < float(psd) < 1.25 * 1.1, output)
                self.assertTrue(0 < float(tcp) < 1.25 * 1.1, output)

    def test_unknown_cases_are_refused(self):
        code, _, errors = wire("--only", "no_such_case")
        self.assertEqual(code, 2)
        self.assertIn("unknown case 'no_such_case'", errors)


class MissingTest(unittest.TestCase):

    def test_missing_programs_are_named(self):
        code, _, errors = wire(PATH="/nowhere")
        self.assertEqual(code, 3)
        self.assertRegex(errors, r"not installed: .*unshare \(package util-linux\)")


def main():
    """Runs the tests. Returns what is missing for namespaces in CI, where a test that cannot run
    fails. Elsewhere, such a test passes."""
    missing = namespaces.enter("tc")
    if missing is None:
        return unittest.main()
    if os.environ.get("PSD_CI"):
        return missing
    print("skipped: " + missing)
    return None


if __name__ == "__main__":
    sys.exit(main())
