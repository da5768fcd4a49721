"""A rank of a training that psctl run has started is killed in the middle of its steps."""
import os
import re
import signal
import sys
import unittest

sys.path.insert(0, "tests/e2e")
import ranks  # noqa: E402

TRAINER = "examples/tinyshakespeare/train"
ARGUMENTS = ("--steps=500", "--micro_batches=1", "--batch=16")


def result_of(output):
    return re.search(r"test loss: .*", output).group(0)


class KilledRankTest(unittest.TestCase):

    def train_with_a_death(self, *flags):
        """Kills rank 1 after 100 steps. Returns psctl's exit code, output and errors, and the
        process id of the rank."""
        with ranks.start(3, TRAINER, *ARGUMENTS, flags=flags) as job:
            try:
                self.assertIn("step 100:", job.stdout.readline())
                killed = ranks.pid_of(job, 1)
                os.kill(killed, signal.SIGKILL)
                output, errors = job.communicate(timeout=90)
            finally:
                job.kill()
        return job.returncode, output, errors, killed

    def test_the_job_ends_with_a_line_that_names_the_rank(self):
        code, output, errors, killed = self.train_with_a_death()
        self.assertEqual(code, 128 + signal.SIGKILL, errors)
        self.assertNotIn("test loss", output)
        self.assertEqual(errors.splitlines()[-1],
                         "psctl: rank 1 (pid %d) was killed by SIGKILL" % killed)

    def test_a_job_that_starts_its_ranks_again_learns_what_an_undisturbed_one_learns(self):
        code, output, errors, killed = self.train_with_a_death("--restarts=10")
        self.assertEqual(code, 0, errors)
        self.assertIn("rank 1 (pid %d) was killed by SIGKILL; restart 1 of 10" % killed, errors)
        self.assertRegex(errors, r"\[[02]\] train: UNAVAILABLE: .*rank 1 \(rank1\) is lost")
        self.assertEqual(result_of(output), result_of(ranks.train(3, TRAINER, *ARGUMENTS)))


if __name__ == "__main__":
    unittest.main()
