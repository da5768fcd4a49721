"""psd as a process: ready line, exit codes, signals."""
import json
import os
import re
import resource
import signal
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, "tests/server")
from psd_process import NotReady, Psd, run  # noqa: E402


def write_file(folder, text):
    path = os.path.join(folder, "psd.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


# A sanitizer needs more address space than there is memory, and its use of address space grows.
without_sanitizer = unittest.skipIf({"ASAN_OPTIONS", "TSAN_OPTIONS"} & os.environ.keys(),
                                    "a sanitizer cannot do with less address space")


class ProcessTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_ready_is_said_everywhere_and_sigterm_stops_in_order(self):
        path = os.path.join(self.folder, "address")
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind(os.path.join(self.folder, "notify"))
        manager.settimeout(60)
        os.environ["NOTIFY_SOCKET"] = manager.getsockname()
        self.addCleanup(os.environ.pop, "NOTIFY_SOCKET")
        with Psd("--address_file", path, "--log_json") as psd:
            self.assertEqual(manager.recv(100), b"READY=1")
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), psd.address + "\n")
            self.assertEqual(psd.stop(signal.SIGTERM), 0)
            self.assertEqual(manager.recv(100), b"STOPPING=1")
            self.assertEqual(psd.output, "psd owner0 ready at %s\n" % psd.address)
            events = [json.loads(line)["event"] for line in psd.errors().splitlines()]
            self.assertIn("daemon_ready", events)
            self.assertIn("worker_joined", events, "it is its own registrar")
            self.assertLess(events.index("daemon_draining"), events.index("daemon_stopped"))

    def test_dev_says_how_to_connect(self):
        start = time.monotonic()
        with Psd("--dev", name=None, listen=None) as psd:
            took = time.monotonic() - start
            self.assertEqual(psd.stop(signal.SIGINT), 0)
            self.assertIn("psd owner0 ready at " + psd.address, psd.output)
            self.assertIn('options.name = "trainer0";', psd.output)
            self.assertIn('options.owners = {{"owner0", "%s"}};' % psd.address, psd.output)
            self.assertIn("tools/psctl status --address " + psd.address, psd.output)
        print("--dev was ready in %.3f s" % took)

    def test_dev_takes_another_port_if_its_own_is_taken(self):
        with Psd("--dev", name=None, listen=None) as first, \
             Psd("--dev", name=None, listen=None) as second:
            self.assertNotEqual(first.address, second.address)

    def test_out_of_descriptors_it_refuses_connections_and_recovers(self):
        def greeted(connection):
            """Tells whether gRPC answers a greeting on the connection."""
            try:
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                return connection.recv(100) != b""
            except (BrokenPipeError, ConnectionResetError):
                return False

        def answered(address):
            with socket.create_connection(address, timeout=60) as connection:
                return greeted(connection)

        def events(psd):
            return [json.loads(line) for line in psd.errors().splitlines()]

        def wait_for(condition):
            until = time.monotonic() + 60
            while not condition():
                self.assertLess(time.monotonic(), until)
                time.sleep(0.01)

        # There are so few descriptors that they do not suffice for the silent connections that psd
        # would keep, which are at least 16.
        with Psd("--log_json", "--shared_memory=false", descriptors=38) as psd:
            host, port = psd.address.rsplit(":", 1)
            address = (host, int(port))
            crowd = [socket.create_connection(address, timeout=60)]
            self.assertTrue(greeted(crowd[0]))
            crowd += [socket.create_connection(address, timeout=60) for _ in range(60)]
            wait_for(lambda: "connections_refused" in [e["event"] for e in events(psd)])
            self.assertFalse(answered(address))
            for connection in crowd:
                connection.close()
            wait_for(lambda: answered(address))
            refused = [e for e in events(psd) if e["event"] == "connections_refused"]
            self.assertEqual(len(refused), 1, "said once, not for each")
            self.assertIn("of 38 file descriptors", refused[0]["message"])
            self.assertIn("connections_taken", [e["event"] for e in events(psd)])
            self.assertEqual(psd.stop(), 0)

    def test_signals_that_mean_no_stop_do_no_harm(self):
        with Psd() as psd:
            for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                psd.process.send_signal(number)
            self.assertEqual(psd.stop(signal.SIGTERM), 0)

    @without_sanitizer
    def test_too_little_memory_or_threads_at_the_start_is_an_exit_code_and_a_reason(self):
        refused = 0
        # With few threads of its own it is gRPC that may lack some.
        limits = [(2, mebibytes) for mebibytes in range(150, 260, 10)]
        limits += [(32, mebibytes) for mebibytes in range(100, 300, 20)]
        for threads, mebibytes in limits:
            try:
                with Psd("--threads", str(threads), "--drain_timeout", "100ms",
                         address_space=mebibytes << 20) as psd:
                    # 6: gRPC lacked a thread later, because memory had taken the address space.
                    self.assertIn(psd.stop(), (0, 5, 6), psd.errors())
            except NotReady as not_ready:
                if not_ready.code == 127:
                    continue  # the system could not load the program
                self.assertEqual(not_ready.code, 5, not_ready.errors)
                self.assertIn("RLIMIT_AS, ulimit -v", not_ready.errors)
                self.assertIn("RLIMIT_NPROC", not_ready.errors)
                refused += 1
        self.assertGreater(refused, 0, "some of these limits are too low for it")

    @without_sanitizer
    def test_a_stop_needs_no_further_thread(self):
        with Psd() as psd:
            with open("/proc/%d/status" % psd.process.pid, encoding="utf-8") as status:
                size = next(int(line.split()[1]) << 10 for line in status
                            if line.startswith("VmSize:"))
            resource.prlimit(psd.process.pid, resource.RLIMIT_AS, (size, size))
            code = psd.stop()
            self.assertIn(code, (0, 5), psd.errors())

    def test_port_in_use(self):
        with Psd() as first:
            code, _, errors = run("--name", "owner1", "--listen", first.address)
            self.assertEqual(code, 3)
            self.assertIn(first.address, errors)

    def test_dev_does_not_move_from_a_port_that_was_asked_for(self):
        with Psd() as first:
            self.assertEqual(run("--dev", "--listen", first.address)[0], 3)

    def test_bad_configuration_is_refused_whole(self):
        path = write_file(self.folder, "nam: a\nthreads: none\nlisten: 0.0.0.0:7071\n")
        code, output, errors = run("--config", path, "--lease", "nonsense")
        self.assertEqual(code, 2)
        self.assertEqual(output, "")
        for problem in ("%s:1: unknown key 'nam'; did you mean 'name'?" % path,
                        "%s:2: threads:" % path, "%s:3: listen:" % path, "--lease: lease:",
                        "name: missing"):
            self.assertIn("psd: " + ("configuration: " if problem.startswith("name") else "")
                          + problem, errors)

    def test_a_device_that_this_build_lacks_is_a_usage_mistake(self):
        code, output, errors = run("--name", "owner0", "--listen", "127.0.0.1:0",
                                   "--log_level", "error", "--devices=emu:0,cuda:0")
        self.assertEqual((code, output), (2, ""))
        self.assertEqual(errors, "psd: cuda:0 cannot be opened, because this psd was built without "
                                 "CUDA devices; leave cuda:0 out of 'devices'\n")

    def test_usage_mistakes(self):
        code, _, errors = run("--nane", "a", "b")
        self.assertEqual(code, 2)
        self.assertIn("psd: --nane: unknown flag; did you mean --name?", errors)
        self.assertEqual(run()[0], 2, "no name")
        self.assertEqual(run("--config", "/nonexistent")[0], 2)

    def test_first_log_line_says_the_memory_budget(self):
        def budget(*arguments):
            with Psd(*arguments) as psd:
                first = psd.errors().splitlines()[0]
            self.assertIn("memory_budget", first)
            return int(re.search(r"bytes=(\d+)$", first).group(1)), first

        whole, why = budget()
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.assertGreater(whole, 0)
        self.assertLessEqual(whole, machine * 8 // 10)
        self.assertIn("80 % of the ", why)
        self.assertEqual(budget("--daemons_on_host", "2")[0], whole // 2)
        configured, why = budget("--memory_budget", "1GiB")
        self.assertEqual(configured, 1 << 30)
        self.assertIn("as configured", why)

    def test_check_config_prints_what_reads_back(self):
        path = write_file(self.folder, "name: owner5\nmemory_budget: 2048MiB\n")
        code, output, errors = run("--check_config", "--config", path, "--threads", "7",
                                   "--devices=emu:0=2048MiB,cuda:3")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("memory_budget: 2GiB\n", output)
        self.assertIn("threads: 7\n", output)
        self.assertIn("devices: 'emu:0=2GiB,cuda:3'\n", output)
        again = run("--check_config", "--config", write_file(self.folder, output))
        self.assertEqual(again, (0, output, ""))
        self.assertEqual(run("--check_config", "--config", "/nonexistent")[0], 2)

    def test_help_and_version(self):
        code, output, _ = run("--help")
        self.assertEqual(code, 0)
        self.assertIn("--drain_timeout", output)
        code, output, _ = run("--version")
        self.assertEqual(code, 0)
        self.assertRegex(output, r"^psd \d+\.\d+\.\d+\n$")

    def test_killed_and_started_again_at_once_on_its_port(self):
        with Psd() as first:
            self.assertEqual(first.stop(signal.SIGKILL), -signal.SIGKILL)
            with Psd(listen=first.address) as second:
                self.assertEqual(second.address, first.address)
                self.assertEqual(second.stop(), 0)

    def test_a_file_that_cannot_be_written_is_a_failure(self):
        code, _, errors = run("--dev", "--address_file", "/nonexistent/address")
        self.assertEqual(code, 1)
        self.assertIn("/nonexistent/address", errors)


if __name__ == "__main__":
    unittest.main()
