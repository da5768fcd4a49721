"""The unary service as another language uses it, by stubs that protoc generates."""
import json
import struct
import sys
import time
import unittest

sys.path[:0] = ["tests/server", "tests/server/services/stubs"]
import grpc  # noqa: E402
from proto.psd.v1 import service_pb2 as pb  # noqa: E402
from proto.psd.v1 import service_pb2_grpc  # noqa: E402
from proto.psd.v1 import status_pb2  # noqa: E402
from psd_process import Psd  # noqa: E402

TIMEOUT_S = 60

# psd ends a connection that answers no probe for some seconds, as happens on a machine that does too
# much at once. The library then sends the call again, with the number that it had.
REPEAT_CALLS = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "2s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"]}}]})


class Session:
    """Numbers calls and acknowledges answers, as a small client library would do."""

    def __init__(self, stub, client="python"):
        self.stub = stub
        self.opened = stub.OpenSession(pb.OpenSessionRequest(client=client), timeout=TIMEOUT_S)
        self.last = 0
        self.acknowledges = True

    def header(self):
        self.last += 1
        return pb.MutationHeader(session=self.opened.session, sequence=self.last,
                                 acknowledged=self.last - 1 if self.acknowledges else 0)

    def call(self, method, request):
        request.header.CopyFrom(self.header())
        return getattr(self.stub, method)(request, timeout=TIMEOUT_S)


def floats(values, shape=None):
    return pb.TensorData(dtype=pb.DATA_TYPE_F32, shape=shape or [len(values)],
                         elements=struct.pack("<%df" % len(values), *values))


def values_of(tensor):
    return list(struct.unpack("<%df" % (len(tensor.elements) // 4), tensor.elements))


class UnaryTest(unittest.TestCase):
    def setUp(self):
        self.start()

    def start(self, *flags, **named):
        self.psd = Psd(*flags, **named)
        self.addCleanup(self.psd.__exit__)
        self.connect()

    def connect(self):
        # The channel has a connection of its own. After a restart of psd, the library would
        # otherwise share the broken one.
        channel = grpc.insecure_channel(self.psd.address, [
            ("grpc.use_local_subchannel_pool", 1), ("grpc.service_config", REPEAT_CALLS)])
        self.addCleanup(channel.close)
        self.channel = channel
        self.stub = service_pb2_grpc.ParameterServiceStub(channel)

    def refused(self, code, function, *arguments, **named):
        with self.assertRaises(grpc.RpcError) as caught:
            function(*arguments, **named)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception.details()

    def pull(self, *names):
        return self.stub.Pull(pb.PullRequest(names=names), timeout=TIMEOUT_S)

    def create(self, session, name="w", shape=(3,), **fields):
        fields.setdefault("initializer", pb.INITIALIZER_ZEROS)
        return session.call("GetOrCreateParameter", pb.GetOrCreateParameterRequest(
            name=name, dtype=pb.DATA_TYPE_F32, shape=shape, **fields))

    def optimize(self, session, name="sgd", parameters=("w",)):
        session.call("GetOrCreateOptimizer", pb.GetOrCreateOptimizerRequest(
            name=name, type="sgd", option_names=["lr"], option_values=[0.5],
            parameters=parameters))

    def test_train_steps(self):
        session = Session(self.stub)
        self.assertEqual(session.opened.worker, "owner0")
        self.create(session)
        self.create(session)  # creating the same parameter again is no error
        self.optimize(session)
        context = session.call("NewContext", pb.NewContextRequest()).context
        for gradient in ([1, 2, 3], [1, 0, -1]):
            session.call("PushGradient", pb.PushGradientRequest(
                context=context, parameter="w", gradient=floats(gradient), version=1))
        step = session.call("Step", pb.StepOptimizerRequest(optimizer="sgd", context=context))
        self.assertEqual((step.steps_accepted, step.parameters_stepped), (1, 1))
        pulled = self.pull("w")
        self.assertEqual(values_of(pulled.tensors[0]), [-1, -1, -1])
        self.assertEqual(list(pulled.versions), [2])
        self.stub.ReleaseContext(pb.ReleaseContextRequest(
            session=session.opened.session, context=context), timeout=TIMEOUT_S)
        self.refused(grpc.StatusCode.NOT_FOUND, session.call, "Step",
                     pb.StepOptimizerRequest(optimizer="sgd", context=context))

    def test_a_repeated_step_is_applied_once(self):
        session = Session(self.stub)
        self.create(session)
        self.optimize(session)
        context = session.call("NewContext", pb.NewContextRequest()).context
        push = pb.PushGradientRequest(context=context, parameter="w", gradient=floats([1, 1, 1]))
        session.call("PushGradient", push)
        self.stub.PushGradient(push, timeout=TIMEOUT_S)  # repeats the same number
        step = pb.StepOptimizerRequest(optimizer="sgd", context=context, header=session.header())
        first = self.stub.Step(step, timeout=TIMEOUT_S)
        for _ in range(3):
            self.assertEqual(self.stub.Step(step, timeout=TIMEOUT_S), first)
        self.assertEqual(values_of(self.pull("w").tensors[0]), [-0.5, -0.5, -0.5])

    def test_uniform_is_reproducible(self):
        session = Session(self.stub)
        for name in ("a", "b"):
            self.create(session, name, (100,), initializer=pb.INITIALIZER_UNIFORM, low=-2, high=3,
                        seed=7)
        pulled = self.pull("a", "b")
        a, b = (values_of(tensor) for tensor in pulled.tensors)
        self.assertEqual(a, b)
        self.assertTrue(all(-2 <= x < 3 for x in a) and max(a) > min(a))

    def test_mistakes_are_named(self):
        session = Session(self.stub)
        self.create(session)
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        self.refused(invalid, self.stub.GetOrCreateParameter, pb.GetOrCreateParameterRequest(
            header=session.header(), name="v", shape=[1], initializer=pb.INITIALIZER_ZEROS))
        self.refused(invalid, self.create, session, "v", (1,),
                     initializer=pb.INITIALIZER_UNSPECIFIED)
        self.refused(invalid, self.create, session, "v", (-1,))
        self.refused(invalid, self.create, session, "v", (1 << 40, 1 << 40))
        self.refused(invalid, self.create, session, "a b")
        self.refused(grpc.StatusCode.FAILED_PRECONDITION, self.create, session, "w", (4,))
        self.assertIn("weight", self.refused(grpc.StatusCode.NOT_FOUND, self.pull, "weight"))
        context = session.call("NewContext", pb.NewContextRequest()).context

        def push(gradient, parameter="w", **fields):
            session.call("PushGradient", pb.PushGradientRequest(
                context=context, parameter=parameter, gradient=gradient, **fields))

        self.assertIn("f32[3]", self.refused(invalid, push, floats([1, 2])))
        self.refused(invalid, push, pb.TensorData(dtype=pb.DATA_TYPE_F32, shape=[3], elements=b"x"))
        self.refused(invalid, push, pb.TensorData(shape=[3], elements=b"x" * 12))
        self.refused(invalid, push, pb.TensorData(dtype=99, shape=[3], elements=b"x" * 12))
        self.refused(invalid, push, floats([1, 2, 3]), version=9)
        self.refused(grpc.StatusCode.NOT_FOUND, push, floats([1]), "nothing")
        self.refused(grpc.StatusCode.NOT_FOUND, session.call, "Step",
                     pb.StepOptimizerRequest(optimizer="adam", context=context))
        self.refused(invalid, session.call, "Step",
                     pb.StepOptimizerRequest(optimizer="w", context=context))
        self.refused(grpc.StatusCode.NOT_FOUND, session.call, "GetOrCreateOptimizer",
                     pb.GetOrCreateOptimizerRequest(name="o", type="sdg", parameters=["w"]))
        self.refused(invalid, session.call, "GetOrCreateOptimizer", pb.GetOrCreateOptimizerRequest(
            name="o", type="sgd", option_names=["lr"], parameters=["w"]))

    def test_not_a_number_passes_unaltered(self):
        session = Session(self.stub)
        self.create(session)
        self.optimize(session)
        context = session.call("NewContext", pb.NewContextRequest()).context
        gradient = [float("nan"), float("inf"), 0.0]
        session.call("PushGradient", pb.PushGradientRequest(
            context=context, parameter="w", gradient=floats(gradient)))
        session.call("Step", pb.StepOptimizerRequest(optimizer="sgd", context=context))
        stepped = values_of(self.pull("w").tensors[0])
        self.assertNotEqual(stepped[0], stepped[0])
        self.assertEqual(stepped[1:], [float("-inf"), 0.0])

    def test_lists_page_by_page_and_drops(self):
        session = Session(self.stub)
        for i in range(5):
            self.create(session, "layer%d" % i)
        self.create(session, "other")
        names, token = [], ""
        while True:
            page = self.stub.List(pb.ListValuesRequest(
                prefix="layer", page_size=2, page_token=token), timeout=TIMEOUT_S)
            self.assertLessEqual(len(page.names), 2)
            names += page.names
            token = page.next_page_token
            if not token:
                break
        self.assertEqual(names, ["layer%d" % i for i in range(5)])
        session.acknowledges = False
        drop = pb.DropRequest(name="layer0", header=session.header())
        self.stub.Drop(drop, timeout=TIMEOUT_S)
        self.create(session, "layer0")
        self.stub.Drop(drop, timeout=TIMEOUT_S)  # repeats the old call, so the new value stays
        self.pull("layer0")
        self.refused(grpc.StatusCode.NOT_FOUND, session.call, "Drop", pb.DropRequest(name="none"))

    def test_contexts_end_with_their_session(self):
        session = Session(self.stub)
        self.create(session)
        context = session.call("NewContext", pb.NewContextRequest()).context
        thief = Session(self.stub, "thief")
        self.refused(grpc.StatusCode.NOT_FOUND, thief.call, "PushGradient", pb.PushGradientRequest(
            context=context, parameter="w", gradient=floats([1, 1, 1])))
        self.assertEqual(self.status().contexts_held, 1)
        close = pb.CloseSessionRequest(session=session.opened.session)
        self.stub.CloseSession(close, timeout=TIMEOUT_S)
        self.stub.CloseSession(close, timeout=TIMEOUT_S)
        self.assertEqual(self.status().contexts_held, 0)
        details = self.refused(grpc.StatusCode.ABORTED, session.call, "NewContext",
                               pb.NewContextRequest())
        self.assertIn("open a new session", details)
        self.pull("w")  # named values stay

    def test_contexts_end_with_the_lease(self):
        self.start("--lease", "10s")
        session = Session(self.stub)
        session.call("NewContext", pb.NewContextRequest())
        self.assertEqual(self.status().contexts_held, 1)
        deadline = time.monotonic() + TIMEOUT_S
        while self.status().contexts_held and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.status().contexts_held, 0)
        self.refused(grpc.StatusCode.ABORTED, self.stub.RenewSession,
                     pb.RenewSessionRequest(session=session.opened.session))

    def test_a_restarted_owner_applies_nothing_of_before(self):
        session = Session(self.stub)
        self.create(session)
        old = session.opened
        self.psd.process.kill()
        self.psd.wait()
        self.start(listen=self.psd.address)
        session.stub = self.stub
        self.refused(grpc.StatusCode.ABORTED, self.create, session, "late")
        new = Session(self.stub).opened
        self.assertNotEqual(new.incarnation, old.incarnation)
        self.refused(grpc.StatusCode.NOT_FOUND, self.pull, "late")

    def status(self):
        return self.stub.Status(status_pb2.StatusRequest(), timeout=TIMEOUT_S)

    def test_status(self):
        session = Session(self.stub)
        self.create(session, "w", (2, 3))
        self.optimize(session)
        status = self.status()
        self.assertEqual((status.name, status.address), ("owner0", self.psd.address))
        self.assertEqual(status.registrar, "owner0")
        parameter = [value for value in status.values if value.name == "w"][0]
        self.assertEqual((list(parameter.shape), parameter.dtype, parameter.version),
                         ([2, 3], "f32", 1))
        self.assertEqual([optimizer.name for optimizer in status.optimizers], ["sgd"])
        self.assertIn("lr=0.5", status.optimizers[0].spec)
        self.assertGreater(status.memory.used_bytes, 0)
        self.assertIn("python", [client.client for client in status.clients])

    def test_health_and_reflection(self):
        def raw(data):
            return data
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check", raw, raw)
        self.assertEqual(check(b"", timeout=TIMEOUT_S), b"\x08\x01")
        service = b"psd.v1.ParameterService"
        request = b"\x0a" + bytes([len(service)]) + service
        self.assertEqual(check(request, timeout=TIMEOUT_S), b"\x08\x01")
        self.refused(grpc.StatusCode.NOT_FOUND, lambda: check(b"\x0a\x01x", timeout=TIMEOUT_S))
        reflect = self.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", raw, raw)
        answers = list(reflect(iter([b"\x3a\x01*"]), timeout=TIMEOUT_S))
        self.assertIn(service, answers[0])


if __name__ == "__main__":
    unittest.main()
