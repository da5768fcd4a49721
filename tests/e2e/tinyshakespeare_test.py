"""Ranks that accumulate gradients, started by psctl run, learn a model of characters."""
import re
import sys
import unittest

sys.path.insert(0, "tests/e2e")
import ranks  # noqa: E402

TRAINER = "examples/tinyshakespeare/train"


def train(count, *arguments):
    """Returns the loss on the test, and that of a model that knows only frequencies."""
    output = ranks.train(count, TRAINER, *arguments)
    losses = re.search(r"test loss: ([0-9.]+) nats per character; by frequency alone: ([0-9.]+)",
                       output)
    return float(losses.group(1)), float(losses.group(2))


class TinyshakespeareTest(unittest.TestCase):

    def test_two_ranks_learn_more_than_frequencies(self):
        learned, by_frequency = train(2, "--steps=300", "--micro_batches=4", "--batch=32")
        self.assertAlmostEqual(by_frequency, 3.40, delta=0.01)
        self.assertLess(learned, 2.45)

    def test_DDP_26_a_step_does_not_depend_on_who_takes_which_micro_batch(self):
        shared, _ = train(2, "--steps=20", "--micro_batches=3", "--batch=16")
        alone, _ = train(1, "--steps=20", "--micro_batches=1", "--batch=96")
        self.assertAlmostEqual(shared, alone, delta=0.001)


if __name__ == "__main__":
    unittest.main()
