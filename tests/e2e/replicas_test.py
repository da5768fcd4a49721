"""The ranks of a training without owners, started by psctl run, learn Fashion-MNIST."""
import os
import re
import sys
import unittest

sys.path.insert(0, "tests/e2e")
import ranks  # noqa: E402

TRAINER = "examples/fashion_mnist/train_replicas"
DATA = "/usr/share/datasets/fashion-mnist"


class ReplicasTest(unittest.TestCase):
    def test_four_ranks_learn_with_their_share_of_the_state(self):
        if not os.path.isdir(DATA):
            # CI leaves nothing out.
            (self.fail if os.environ.get("PSD_CI") else self.skipTest)(
                "dataset-fashion-mnist is not installed")
        output = ranks.train(4, TRAINER, "--epochs=10", "--lr=0.002", timeout_s=800)
        accuracy = float(re.search(r"test accuracy: ([0-9.]+)", output).group(1))
        self.assertGreaterEqual(accuracy, 0.87)
        shares = [int(n) for n in re.findall(r"(\d+) bytes of optimizer state", output)]
        self.assertEqual(len(shares), 4)
        whole = 2 * 4 * (784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10)
        self.assertGreaterEqual(sum(shares), whole)
        self.assertLess(sum(shares), 1.01 * whole)
        self.assertEqual(len(set(re.findall(r"epoch 10: loss ([0-9.]+)", output))), 4,
                         "each rank has images of its own")


if __name__ == "__main__":
    unittest.main()
