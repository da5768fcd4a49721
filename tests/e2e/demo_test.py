"""All programs of the demo on a small generated data set: owners, trainers and evaluation."""
import gzip
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tools/launch")
import children  # noqa: E402
import demo  # noqa: E402
import progress  # noqa: E402

PSD = "server/daemon/psd"
TRAIN = "examples/fashion_mnist/train"
EVALUATE = "examples/fashion_mnist/evaluate"


def write_idx(path, magic, extents, data):
    header = struct.pack(">I%dI" % len(extents), magic, *extents)
    with open(path, "wb") as file:
        file.write(gzip.compress(header + bytes(data), compresslevel=1))


def write_set(folder, prefix, count, seed):
    """Writes noisy images with one bright band each. The label is the position of the band."""
    chance = random.Random(seed)
    pixels, labels = bytearray(), bytearray()
    for _ in range(count):
        label = chance.randrange(10)
        image = bytearray(chance.randrange(60) for _ in range(784))
        for i in range(label * 78, label * 78 + 78):
            image[i] += 190
        pixels += image
        labels.append(label)
    write_idx(os.path.join(folder, prefix + "-images-idx3-ubyte.gz"), 0x803, (count, 28, 28),
              pixels)
    write_idx(os.path.join(folder, prefix + "-labels-idx1-ubyte.gz"), 0x801, (count,), labels)


class DemoTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.data = folder.name
        write_set(self.data, "train", 2560, seed=1)
        write_set(self.data, "t10k", 200, seed=2)

    def plan(self, epochs=2, seconds=0, device=None):
        return demo.Plan(psd=PSD, train=TRAIN, evaluate=EVALUATE, data=self.data, epochs=epochs,
                         seconds=seconds, device=device)

    def script(self, command):
        path = os.path.join(self.data, "script")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexec " + command + "\n")
        os.chmod(path, 0o755)
        return path

    def test_two_owners_and_two_trainers_learn(self):
        result = demo.run(self.plan(), progress.ProgressLine(), children.StopRequest())
        self.assertGreater(result.accuracy, 0.9)
        self.assertGreater(result.per_s, 0)

    def test_they_learn_as_well_with_the_parameters_on_a_device(self):
        result = demo.run(self.plan(device="emu:0"), progress.ProgressLine(),
                          children.StopRequest())
        self.assertGreater(result.accuracy, 0.9)

    def test_a_device_that_the_owners_lack_is_told(self):
        with self.assertRaises(children.ChildFailed) as caught:
            demo.run(self.plan()._replace(train=self.script(TRAIN + ' --device=emu:0 "$@"')),
                     progress.ProgressLine(), children.StopRequest())
        self.assertIn("emu:0", str(caught.exception))

    def test_time_limit_ends_training(self):
        result = demo.run(self.plan(epochs=1_000_000, seconds=0.5), progress.ProgressLine(),
                          children.StopRequest())
        self.assertGreater(result.train_s, 0.4)

    def test_truncated_data_is_told(self):
        path = os.path.join(self.data, "train-images-idx3-ubyte.gz")
        os.truncate(path, os.path.getsize(path) // 2)
        with self.assertRaises(children.ChildFailed) as caught:
            demo.run(self.plan(), progress.ProgressLine(), children.StopRequest())
        self.assertIn("train-images-idx3-ubyte.gz: cut off", str(caught.exception))

    def test_missing_data_is_told(self):
        os.unlink(os.path.join(self.data, "train-labels-idx1-ubyte.gz"))
        with self.assertRaises(children.ChildFailed) as caught:
            demo.run(self.plan(), progress.ProgressLine(), children.StopRequest())
        self.assertIn("dataset-fashion-mnist", str(caught.exception))

    def test_trainer_says_what_is_wrong_with_its_arguments(self):
        for flag, words in (("--owners=x", "name=host:port"), ("--part=2/2", "0 <= k < n"),
                            ("--epochs=0", "start at 1"), ("--bogus", "bogus")):
            result = subprocess.run([TRAIN, "--data=" + self.data, flag], capture_output=True,
                                    text=True, timeout=60, check=False)
            self.assertEqual(result.returncode, 1, flag)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
