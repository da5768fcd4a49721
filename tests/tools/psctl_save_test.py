"""psctl save, load and inspect, with two owners that are trained through the unary service. A save
is read with the standard library, and by PyTorch where it is installed."""
import json
import math
import os
import random
import shutil
import struct
import sys
import tempfile
import time
import unittest

sys.path[:0] = ["tests/server", "tests/server/services/stubs", "tests/tools"]
import grpc  # noqa: E402
from proto.psd.v1 import service_pb2 as pb  # noqa: E402
from proto.psd.v1 import service_pb2_grpc  # noqa: E402
from psctl_test import psctl  # noqa: E402
from psd_process import Psd  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

TIMEOUT_S = 60
# psd ends a connection that answers no probe for some seconds, as an idle one of this library does. The
# library then sends a read again.
REPEAT_CALLS = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "2s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"]}}]})
# Sessions of clients that are idle outlive the tests.
LONG_LEASE = ("--lease", "5m", "--retry_window", "5m")
SIZES = {"a/w": (8, 5), "b/w": (130,), "c/w": (1,)}
ADAM = {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.01, "amsgrad": 1}


class Owner:
    """The parameters of an owner, stepped by an Adam optimizer called "main"."""

    def __init__(self, psd, names):
        self.names = names
        self.channel = grpc.insecure_channel(psd.address, [
            ("grpc.use_local_subchannel_pool", 1), ("grpc.service_config", REPEAT_CALLS)])
        self.stub = service_pb2_grpc.ParameterServiceStub(self.channel)
        opened = self.stub.OpenSession(pb.OpenSessionRequest(client="test"), timeout=TIMEOUT_S)
        self.session, self.last = opened.session, 0

    def call(self, method, request):
        self.last += 1
        request.header.CopyFrom(pb.MutationHeader(session=self.session, sequence=self.last))
        try:
            return getattr(self.stub, method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
        # The channel may have been closed because it was idle. The sequence number makes the
        # repetition harmless.
        return getattr(self.stub, method)(request, timeout=TIMEOUT_S, wait_for_ready=True)

    def create(self):
        for seed, name in enumerate(self.names):
            self.call("GetOrCreateParameter", pb.GetOrCreateParameterRequest(
                name=name, dtype=pb.DATA_TYPE_F32, shape=SIZES[name], low=-1, high=1, seed=seed,
                initializer=pb.INITIALIZER_UNIFORM))
        self.call("GetOrCreateOptimizer", pb.GetOrCreateOptimizerRequest(
            name="main", type="adam", option_names=list(ADAM), option_values=list(ADAM.values()),
            parameters=self.names))

    def step(self, number):
        context = self.call("NewContext", pb.NewContextRequest()).context
        for name in self.names:
            gradient = gradient_of(name, number)
            self.call("PushGradient", pb.PushGradientRequest(
                context=context, parameter=name, gradient=pb.TensorData(
                    dtype=pb.DATA_TYPE_F32, shape=SIZES[name],
                    elements=struct.pack("<%df" % len(gradient), *gradient))))
        self.call("Step", pb.StepOptimizerRequest(optimizer="main", context=context))

    def elements(self):
        pulled = self.stub.Pull(pb.PullRequest(names=self.names), timeout=TIMEOUT_S)
        return {name: tensor.elements for name, tensor in zip(self.names, pulled.tensors)}


def await_joined(registrar, name):
    """Returns when the daemon has joined the job: it is ready before that."""
    while name + " joined" not in registrar.errors():
        time.sleep(0.01)


def gradient_of(name, number):
    chance = random.Random(name + str(number))
    return [chance.uniform(-1, 1) for _ in range(math.prod(SIZES[name]))]


def read_safetensors(path):
    """Returns {name: (dtype, shape, bytes)}, read by the description of the format alone."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])
    assert sum(len(t[2]) for t in tensors.values()) == len(data) - 8 - length
    return tensors


def torch_state_dict(optimizer, files):
    """Returns the state of an optimizer of the index as torch.optim loads it."""
    types = {"F32": torch.float32, "F64": torch.float64}
    state = {}
    for i, parameter in enumerate(optimizer["parameters"]):
        state[i] = {}
        slots = parameter["slots"] + [{"name": "step", "file": parameter["file"]}]
        for slot in slots:
            dtype, shape, data = files[slot["file"]]["state.%d.%s" % (i, slot["name"])]
            state[i][slot["name"]] = torch.frombuffer(bytearray(data), dtype=types[dtype]).reshape(shape)
    groups = []
    for number, group in enumerate(optimizer["groups"]):
        options = dict(group["options"])
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
        for flag in ("amsgrad", "maximize"):
            options[flag] = bool(options[flag])
        options["params"] = [i for i, parameter in enumerate(optimizer["parameters"])
                             if parameter["group"] == number]
        groups.append(options)
    return {"state": state, "param_groups": groups}


class SaveTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.saves = os.path.join(self.folder, "saves")
        self.first = self.start("owner0", *LONG_LEASE)
        self.second = self.start("owner1", "--registrar", "owner0=" + self.first.address, *LONG_LEASE)
        await_joined(self.first, "owner1")
        self.owners = [Owner(self.first, ["a/w", "c/w"]), Owner(self.second, ["b/w"])]
        for owner in self.owners:
            self.addCleanup(owner.channel.close)
            owner.create()
            for number in range(4):
                owner.step(number)

    def start(self, name, *arguments):
        psd = Psd(*arguments, name=name)
        self.addCleanup(psd.__exit__)
        return psd

    def save(self, *arguments):
        code, output, errors = psctl("save", self.saves, *arguments, address=self.first.address)
        self.assertEqual(code, 0, errors)
        self.assertIn("saved 3 values and 1 optimizers of owner0, owner1", output)
        with open(os.path.join(self.saves, "latest"), encoding="utf-8") as file:
            folder = os.path.join(self.saves, file.read().split()[0])
        with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
            return folder, json.load(file)

    def elements(self):
        return {name: data for owner in self.owners for name, data in owner.elements().items()}

    def test_a_save_can_be_read_by_others(self):
        folder, index = self.save()
        files = {}
        for file in index["files"]:
            path = os.path.join(folder, file["name"])
            with open(path, "rb") as opened:
                data = opened.read()
            self.assertEqual(len(data), file["bytes"])
            self.assertRegex(file["xxh128"], "^[0-9a-f]{32}$")
            files[file["name"]] = read_safetensors(path)
        elements = self.elements()
        self.assertEqual({value["name"] for value in index["values"]}, set(SIZES))
        for value in index["values"]:
            dtype, shape, data = files[value["file"]][value["name"]]
            self.assertEqual((dtype, tuple(shape)), ("F32", SIZES[value["name"]]))
            self.assertEqual(data, elements[value["name"]])
        (main,) = index["optimizers"]
        self.assertEqual((main["name"], main["type"], main["steps_accepted"]), ("main", "adam", 4))
        self.assertEqual([p["steps"] for p in main["parameters"]], [4, 4, 4])
        self.take_an_equal_step(index, files, main)

    def take_an_equal_step(self, index, files, main):
        if torch is None:
            self.skipTest("python3-torch is not installed")
        where = {(v["owner"], v["name"]): v["file"] for v in index["values"]}
        parameters = []
        for each in main["parameters"]:
            _, shape, data = files[where[each["owner"], each["name"]]][each["name"]]
            tensor = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)
            parameters.append(torch.nn.Parameter(tensor))
        optimizer = torch.optim.Adam(parameters)
        optimizer.load_state_dict(torch_state_dict(main, files))
        for each, parameter in zip(main["parameters"], parameters):
            parameter.grad = torch.tensor(gradient_of(each["name"], 4)).reshape(parameter.shape)
        optimizer.step()
        for owner in self.owners:
            owner.step(4)
        elements = self.elements()
        for each, parameter in zip(main["parameters"], parameters):
            ours = torch.frombuffer(bytearray(elements[each["name"]]), dtype=torch.float32)
            torch.testing.assert_close(ours.reshape(parameter.shape), parameter.detach(), rtol=1e-6,
                                       atol=1e-7)

    def test_loads_and_continues_elsewhere(self):
        self.save("--name", "one")
        for owner in self.owners:
            owner.step(4)
        expected = self.elements()
        with Psd(name="other") as other:
            code, output, errors = psctl("load", self.saves, address=other.address)
            self.assertEqual(code, 0, errors)
            self.assertIn("other: 3 values", output)
            continued = Owner(other, list(SIZES))
            continued.create()
            continued.step(4)
            self.assertEqual(continued.elements(), expected)
            continued.channel.close()
        # The owners are a step ahead. The save brings them back, and the same step leads to the
        # same numbers.
        code, output, errors = psctl("load", os.path.join(self.saves, "one"),
                                     address=self.second.address)
        self.assertEqual(code, 0, errors)
        for owner in self.owners:
            with self.assertRaises(grpc.RpcError) as raised:
                owner.step(4)
            self.assertIn("create the optimizer again", raised.exception.details())
            owner.create()
            owner.step(4)
        self.assertEqual(self.elements(), expected)

    def test_a_dead_owner_is_told_and_left_out_only_when_asked(self):
        self.second.process.kill()
        self.second.process.wait()
        code, output, errors = psctl("save", self.saves, address=self.first.address)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("1 of 2 owners of the job cannot be reached", errors)
        self.assertIn("owner1: cannot reach %s" % self.second.address, errors)
        self.assertIn("--leave_out", errors)
        self.assertFalse(os.path.exists(os.path.join(self.saves, "latest")))
        code, _, errors = psctl("load", self.saves, address=self.first.address)
        self.assertEqual(code, 1)
        self.assertIn("psctl load --owners", errors)
        self.assertNotIn("--leave_out", errors)
        code, output, errors = psctl("save", self.saves, "--leave_out", "owner1",
                                     "--owners", "owner0=%s,owner1=%s" %
                                     (self.first.address, self.second.address))
        self.assertEqual(code, 0, errors)
        self.assertIn("saved 2 values and 1 optimizers of owner0, ", output)
        self.assertIn("left out: owner1: all of its values, as was asked", errors)
        code, output, errors = psctl("inspect", self.saves)
        self.assertEqual(code, 0, errors)
        self.assertIn("owner1: all of its values", output)
        code, _, errors = psctl("save", self.saves, "--leave_out", "ovner0",
                                address=self.first.address)
        self.assertEqual(code, 1)
        self.assertIn("the job has no owner 'ovner0'; did you mean 'owner0'?", errors)

    def test_a_killed_owner_is_missed_after_its_lease_too(self):
        registrar = self.start("owner0", "--lease", "3s")
        killed = self.start("owner1", "--registrar", "owner0=" + registrar.address)
        stopped = self.start("owner2", "--registrar", "owner0=" + registrar.address)
        await_joined(registrar, "owner1")
        await_joined(registrar, "owner2")
        stopped.process.terminate()
        self.assertEqual(stopped.process.wait(), 0)
        killed.process.kill()
        killed.process.wait()
        while "owner1 is lost" not in registrar.errors():
            time.sleep(0.1)
        code, _, errors = psctl("save", self.saves, address=registrar.address)
        self.assertEqual(code, 1)
        self.assertIn("1 of 2 owners of the job cannot be reached:\n  owner1 is absent", errors)
        self.assertFalse(os.path.exists(os.path.join(self.saves, "latest")))
        code, _, errors = psctl("save", self.saves, "--leave_out", "owner1",
                                address=registrar.address)
        self.assertEqual(code, 0, errors)

    def test_a_dead_registrar_can_be_left_out(self):
        self.first.process.kill()
        self.first.process.wait()
        code, _, errors = psctl("save", self.saves, "--leave_out", "owner0",
                                address=self.second.address)
        self.assertEqual(code, 1)
        self.assertIn("owner0 is the registrar", errors)
        self.assertIn("--owners NAME=HOST:PORT", errors)
        code, output, errors = psctl("save", self.saves, "--leave_out", "owner0",
                                     "--owners", "owner0=%s,owner1=%s" %
                                     (self.first.address, self.second.address))
        self.assertEqual(code, 0, errors)
        self.assertIn("saved 1 values and 1 optimizers of owner1, ", output)
        self.assertIn("left out: owner0: all of its values, as was asked", errors)

    def test_an_owner_that_the_configuration_names_is_missed(self):
        with Psd("--owners", "alone,gone", name="alone") as alone:
            code, _, errors = psctl("save", self.saves, address=alone.address)
            self.assertEqual(code, 1)
            self.assertIn("gone is absent; the registrar's configuration names it", errors)
            with Psd("--registrar", "alone=" + alone.address, name="stranger"):
                code, output, errors = psctl("save", self.saves, "--leave_out", "gone",
                                             address=alone.address)
            self.assertEqual(code, 0, errors)
            self.assertIn("of alone, ", output)

    def test_a_registrar_without_values_is_no_empty_owner(self):
        with Psd("--registrar_only", name="registrar") as registrar:
            for command in ("save", "load"):
                code, output, errors = psctl(command, self.saves, address=registrar.address)
                self.assertEqual((code, output), (1, ""), errors)
                self.assertIn("registrar at %s is a registrar that hosts no values" %
                              registrar.address, errors)
                self.assertIn("no owner has joined it", errors)
                self.assertIn("give the address of an owner: --address HOST:PORT", errors)
                code, output, errors = psctl(command, self.saves, "--owners",
                                             "owner0=%s,registrar=%s" %
                                             (self.first.address, registrar.address))
                self.assertEqual((code, output), (1, ""), errors)
                self.assertIn("--owners: registrar at %s is no owner" % registrar.address, errors)
                self.assertIn("remove registrar from --owners", errors)
            self.assertFalse(os.path.exists(os.path.join(self.saves, "latest")))
            code, output, errors = psctl("status", address=registrar.address)
            self.assertIn("registrar (this daemon, which hosts no values)", output)

    def test_a_registrar_without_values_knows_the_owners(self):
        with Psd("--registrar_only", name="registrar") as registrar:
            with Psd("--registrar", "registrar=" + registrar.address, name="alone") as alone:
                await_joined(registrar, "alone")
                Owner(alone, ["a/w"]).create()
                for daemon in (registrar, alone):
                    code, output, errors = psctl("save", self.saves, address=daemon.address)
                    self.assertEqual(code, 0, errors)
                    self.assertIn("saved 1 values and 1 optimizers of alone, ", output)
                code, output, errors = psctl("load", self.saves, "--spread",
                                             address=registrar.address)
                self.assertEqual(code, 0, errors)
                self.assertIn("alone: 1 values", output)

    def test_owners_are_told_in_the_order_of_their_names(self):
        with Psd("--registrar_only", name="registrar") as registrar:
            for name in ("owner2", "owner0", "owner1"):
                self.start(name, "--registrar", "registrar=" + registrar.address)
                await_joined(registrar, name)
            code, output, errors = psctl("save", self.saves, address=registrar.address)
            self.assertEqual(code, 0, errors)
            self.assertIn(" of owner0, owner1, owner2, ", output)

    def test_inspect(self):
        folder, index = self.save()
        code, output, errors = psctl("inspect", self.saves)
        self.assertEqual((code, "a/w" in output, "lr=0.02" in output), (0, True, True), errors)
        self.assertIn("all checksums are right", output)
        path = os.path.join(folder, index["optimizers"][0]["parameters"][0]["file"])
        code, output, errors = psctl("inspect", path)
        self.assertEqual(code, 0, errors)
        self.assertIn("state.0.exp_avg", output)
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x7f")
        code, output, errors = psctl("inspect", os.path.join(folder, "index.json"))
        self.assertEqual(code, 1)
        self.assertIn("is damaged", errors)
        code, _, errors = psctl("load", self.saves, address=self.first.address)
        self.assertEqual(code, 1)
        self.assertIn("is damaged", errors)
        os.truncate(path, 20)
        self.assertEqual(psctl("inspect", path)[0], 1)

    def test_mistakes(self):
        self.assertEqual(psctl("save")[0], 2)
        self.assertEqual(psctl("ping", "--spread")[0], 2)
        code, _, errors = psctl("load", self.saves, address=self.first.address)
        self.assertEqual(code, 1)
        self.assertIn("no save in", errors)
        code, _, errors = psctl("save", "/proc/nowhere", address=self.first.address)
        self.assertEqual(code, 1)
        self.save()
        code, _, errors = psctl("load", self.saves, "--map", "owner7=owner0",
                                address=self.first.address)
        self.assertEqual(code, 1)
        self.assertIn("'owner7' is no owner of this save", errors)


if __name__ == "__main__":
    unittest.main()
