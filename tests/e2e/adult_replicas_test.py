"""Ranks with replicas of the layers and owners of the rows, started by psctl run, learn the wide
and deep model on a small file in the format of UCI Adult."""
import contextlib
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, "tests/e2e")
sys.path.insert(0, "tests/server")
from adult_demo_test import write_people  # noqa: E402
from psd_process import Psd  # noqa: E402
import ranks  # noqa: E402

TRAINER = "examples/wide_deep_adult/train_replicas"


class AdultReplicasTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.data = os.path.join(folder.name, "adult.data")
        write_people(self.data, 3000)

    def train(self, count, *arguments):
        """Trains with two new owners. Returns the losses of the epochs and the accuracy."""
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(Psd(name="owner0"))
            second = stack.enter_context(
                Psd("--registrar", "owner0=" + first.address, name="owner1"))
            output = ranks.train(count, TRAINER, "--data=" + self.data, *arguments,
                                 owners=["owner0=" + first.address, "owner1=" + second.address])
        losses = [float(loss) for loss in re.findall(r"epoch \d+: loss ([0-9.]+)", output)]
        return losses, float(re.search(r"test accuracy: ([0-9.]+)", output).group(1))

    def test_DDP_32_dense_and_sparse_parts_learn_together(self):
        losses, accuracy = self.train(3, "--epochs=12", "--batch=32", "--lr=0.003")
        self.assertEqual(len(losses), 12)
        self.assertLess(losses[-1], losses[0])
        self.assertGreater(accuracy, 0.95)

    def test_DDP_32_two_ranks_learn_what_one_learns_with_twice_the_batch(self):
        of_two, accuracy_of_two = self.train(2, "--epochs=3", "--batch=64")
        of_one, accuracy_of_one = self.train(1, "--epochs=3", "--batch=128")
        self.assertEqual(len(of_two), 3)
        for two, one in zip(of_two, of_one):
            self.assertAlmostEqual(two, one, delta=0.001)
        self.assertAlmostEqual(accuracy_of_two, accuracy_of_one, delta=0.005)


if __name__ == "__main__":
    unittest.main()
