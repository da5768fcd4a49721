// Gradients that an owner fetches in pieces: what fails on the way, and messages that leave out
// nonsense.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/autograd/variable.h"
#include "core/base/buffer.h"
#include "core/base/completion_threads.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device_loans/device_loans.h"
#include "core/device_pieces/device_pulls.h"
#include "core/device_pieces/piece_methods.h"
#include "core/dist_autograd/autograd_codec.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/gradient_messages.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/core/dist_autograd/test_worker.h"
#include "tests/core/fake_rpc.h"
#include "tests/device/test_device.h"

namespace psd::dist_autograd {
namespace {

using device_pieces::DevicePulls;
using device_pieces::kLeftOutTag;
using device_pieces::kPieceBytes;
using ::testing::HasSubstr;

// A gradient has one piece and a short one.
constexpr auto kElements = static_cast<int64_t>(kPieceBytes / sizeof(float)) + 3;
constexpr size_t kBytes = static_cast<size_t>(kElements) * sizeof(float);
constexpr char kGradient[] = "autograd.gradient", kPiece[] = "value.piece";

// A worker with a device that it does not share.
struct DeviceWorker {
  DeviceWorker(testing::FakeNetwork& network, const std::string& name, Incarnation incarnation)
      : loans(device_loans::DeviceLoans::Create(incarnation, {}, NewNullLogger())),
        worker(network, name, incarnation, [this](TestWorker& self) {
          pulls.emplace(self.agent, completions, *loans);
          return GradientMessages::Uses{loans,       &completions,   &*pulls,
                                        &self.agent, &self.executor, &self.clock};
        }) {}
  ~DeviceWorker() { completions.Shutdown(); }

  const std::shared_ptr<EmulatedDevice> device =
      testing::NewTestDevice(/*seed=*/0, size_t{256} << 20);
  CompletionThreads completions{std::vector<Device*>{device.get()}};
  const std::shared_ptr<device_loans::DeviceLoans> loans;
  std::optional<DevicePulls> pulls;
  TestWorker worker;
};

class LeftOutGradientsTest : public ::testing::Test {
 protected:
  LeftOutGradientsTest() {
    owner_.worker.functions["pull"] = [this](TestWorker&, const ContextPtr&, const Variables&) {
      return Variables{weight_};
    };
    // The same as the result of a function.
    owner_.worker.functions["weight"] = owner_.worker.functions["pull"];
  }
  ~LeftOutGradientsTest() override { network_.SetFilter(nullptr); }

  static Tensor Filled(Device* device, float element) {
    return *CopyTo(device, *Tensor::Full({kElements}, DType::kF32, element));
  }
  // Runs the network until `done`. Devices work on threads of their own.
  void RunUntil(const std::function<bool()>& done) {
    while (!done())
      if (!network_.RunOne()) std::this_thread::yield();
  }
  template <typename T>
  const absl::StatusOr<T>& Await(const Future<T>& future) {
    RunUntil([&future] { return future.IsReady(); });
    return future.Wait();
  }
  Future<Unit> StartBackward(float element, const std::string& function = "pull") {
    const Variable fetched = trainer_.worker.Call(context_, "owner", function, {})[0];
    return trainer_.worker.autograd->BackwardFrom(context_, {fetched},
                                                  {Filled(trainer_.device.get(), element)}, {});
  }
  absl::Status Backward(float element) { return Await(StartBackward(element)).status(); }
  std::optional<Tensor> Gradient() {
    const auto gradient = (*owner_.worker.autograd->Find(context_->id()))->Gradient(kWeight);
    if (!gradient.ok()) return std::nullopt;
    return gradient->gradient;
  }
  // The element of the gradient that the owner has, if all are equal. Otherwise 0.
  float Collected() {
    const std::optional<Tensor> gradient = Gradient();
    if (!gradient.has_value()) return 0;
    const Tensor here = *gradient->ToHost();
    for (int64_t i = 0; i < kElements; ++i)
      if (here.data<float>()[i] != here.data<float>()[0]) return 0;
    return here.data<float>()[0];
  }
  bool CollectedThere() {
    const std::optional<Tensor> gradient = Gradient();
    return gradient.has_value() && gradient->device() == owner_.device.get();
  }
  static bool LeavesOut(const rpc::Request& request) {
    return std::any_of(request.attachments.begin(), request.attachments.end(),
                       [](const rpc::Attachment& each) { return each.tag == kLeftOutTag; });
  }
  // The answer of the trainer to a request for the first byte of a pull.
  absl::Status Ask(DeviceWorker& from, uint64_t pull) {
    v1::PullPieceRequest request;
    request.set_pull(pull);
    request.set_bytes(1);
    return Await(rpc::Ask(from.worker.agent, device_pieces::kValuePiece, {"trainer"}, request, {}))
        .status();
  }

  // Runs a backward whose gradient has 40 pieces. The answer to each takes `answer_takes`. Returns
  // how many of them were under way at most.
  int MostUnderWay(absl::Duration answer_takes) {
    const Shape shape = {40 * static_cast<int64_t>(kPieceBytes / sizeof(float))};
    const auto filled = [&](Device* device) {
      return *CopyTo(device, *Tensor::Full(shape, DType::kF32, 1));
    };
    const Variable large = Variable::Leaf(filled(owner_.device.get()), kLarge, /*version=*/1);
    owner_.worker.functions["pull"] = [&](TestWorker&, const ContextPtr&, const Variables&) {
      return Variables{large};
    };
    // The first task of the fetch asks for pieces, and one task stores each.
    const auto stored = [&] { return owner_.worker.executor.tasks - 1; };
    const int before = network_.Count(kPiece) - owner_.worker.executor.tasks;
    int most = 0;
    network_.SetFilter([&](const std::string&, const std::string&, const rpc::Request& request) {
      if (request.method != kPiece) return absl::OkStatus();
      most = std::max(most, network_.Count(kPiece) - stored() - before);
      owner_.worker.clock.Advance(answer_takes);
      return absl::OkStatus();
    });
    const Variable fetched = trainer_.worker.Call(context_, "owner", "pull", {})[0];
    const Future<Unit> done = trainer_.worker.autograd->BackwardFrom(
        context_, {fetched}, {filled(trainer_.device.get())}, {});
    EXPECT_TRUE(Await(done).ok());
    network_.SetFilter(nullptr);
    return most;
  }

  static constexpr GlobalId kWeight{2, 1'000'000}, kLarge{2, 1'000'001};
  testing::FakeNetwork network_;
  DeviceWorker owner_{network_, "owner", 2}, trainer_{network_, "trainer", 1},
      stranger_{network_, "stranger", 3};
  const Variable weight_ = Variable::Leaf(Filled(owner_.device.get(), 0), kWeight, /*version=*/1);
  ContextPtr context_ = trainer_.worker.autograd->NewContext();
};

TEST_F(LeftOutGradientsTest, TheOwnerFetchesThemToItsDevice) {
  const absl::Status back = Backward(3);
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(network_.Count(kGradient), 1);
  EXPECT_EQ(network_.Count(kPiece), 2);
  EXPECT_TRUE(CollectedThere());
  EXPECT_EQ(Collected(), 3);
  EXPECT_EQ(Ask(owner_, 1).code(), absl::StatusCode::kNotFound) << "the pull has not ended";
}

// The owner collects it wherever it is, and would copy it back to the host in a pass like this.
TEST_F(LeftOutGradientsTest, AGradientThatIsWantedAnywhereComesWhole) {
  ASSERT_TRUE(Await(StartBackward(3, "weight")).ok());
  EXPECT_EQ(network_.Count(kGradient), 1);
  EXPECT_EQ(network_.Count(kPiece), 0);
  EXPECT_EQ(Collected(), 3);
}

// Only the worker to which a message goes may ask for what it leaves out.
TEST_F(LeftOutGradientsTest, OthersGetNothingOfThem) {
  bool first = true;
  network_.SetFilter([&](const std::string&, const std::string&, const rpc::Request& request) {
    if (request.method == kPiece && std::exchange(first, false)) {
      EXPECT_EQ(Ask(stranger_, 1).code(), absl::StatusCode::kNotFound);
      EXPECT_TRUE(Ask(owner_, 1).ok());
    }
    return absl::OkStatus();
  });
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_FALSE(first);
  EXPECT_EQ(Collected(), 3);
}

TEST_F(LeftOutGradientsTest, AnOwnerThatIsBusyGetsThemWhole) {
  const Future<Unit> done = StartBackward(3);
  owner_.worker.executor.full = true;
  const absl::Status back = Await(done).status();
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(network_.Count(kGradient), 2);
  EXPECT_EQ(network_.Count(kPiece), 0);
  EXPECT_EQ(Collected(), 3);
}

TEST_F(LeftOutGradientsTest, AfterAPieceThatIsLostTheyComeWhole) {
  network_.SetFilter([](const std::string&, const std::string&, const rpc::Request& request) {
    return request.method == kPiece ? absl::UnavailableError("lost") : absl::OkStatus();
  });
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_EQ(network_.Count(kGradient), 2);
  EXPECT_EQ(Collected(), 3);
  EXPECT_FALSE(CollectedThere());
}

TEST_F(LeftOutGradientsTest, PiecesOfAnotherSizeAreNotTaken) {
  trainer_.worker.agent.RegisterMethod({kPiece, rpc::MethodKind::kRead, rpc::RunsOn::kExecutor,
                                        [](const std::shared_ptr<rpc::ServerCall>& call) {
                                          rpc::Payload one;
                                          one.buffers.push_back(
                                              Tensor::Zeros({1}, DType::kU8)->AsBuffer());
                                          call->Reply(std::move(one));
                                        }});
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_EQ(network_.Count(kGradient), 2);
  EXPECT_EQ(Collected(), 3);
}

TEST_F(LeftOutGradientsTest, ALostMessageEndsItsPull) {
  bool kept = false;
  network_.SetFilter([&](const std::string&, const std::string&, const rpc::Request& request) {
    if (request.method != kGradient) return absl::OkStatus();
    kept = LeavesOut(request) && Ask(owner_, 1).ok();
    return absl::UnavailableError("lost");
  });
  EXPECT_EQ(Backward(3).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(kept);
  EXPECT_EQ(Ask(owner_, 1).code(), absl::StatusCode::kNotFound);
}

TEST_F(LeftOutGradientsTest, AReceiverWithTheMostPullsGetsThemWhole) {
  const Device& device = *trainer_.device;
  for (size_t i = 0; i < DevicePulls::kPerSession; ++i)
    ASSERT_TRUE(trainer_.pulls->Keep(2, device, {}));
  ASSERT_TRUE(trainer_.pulls->Keep(3, device, {}));
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_EQ(network_.Count(kPiece), 0);
  EXPECT_EQ(network_.Count(kGradient), 1);
  EXPECT_EQ(Collected(), 3);
  trainer_.pulls->EndKept(2, device, 7);
  ASSERT_TRUE(Backward(4).ok());
  EXPECT_EQ(network_.Count(kPiece), 2);
}

// The rest of the backward needs memory, too.
TEST_F(LeftOutGradientsTest, WhatIsKeptIsAtMostAPartOfTheDevice) {
  const size_t most = trainer_.device->budget_bytes() / DevicePulls::kKeptFraction;
  const auto keep = [&](size_t bytes) {
    return trainer_.pulls->Keep(3, *trainer_.device,
                                {Buffer(*trainer_.device->memory().Allocate(bytes))});
  };
  EXPECT_FALSE(keep(most + 1).has_value());
  const std::optional<uint64_t> pull = keep(most - kBytes + 1);
  ASSERT_TRUE(pull.has_value());
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_EQ(network_.Count(kPiece), 0);
  EXPECT_EQ(Collected(), 3);
  trainer_.pulls->EndKept(3, *trainer_.device, *pull);
  trainer_.pulls->EndKept(3, *trainer_.device, *pull);  // does nothing
  ASSERT_TRUE(Backward(4).ok());
  EXPECT_EQ(network_.Count(kPiece), 2);
  EXPECT_EQ(Collected(), 7);
}

TEST_F(LeftOutGradientsTest, MorePiecesAreUnderWayIfAnswersAreSlow) {
  EXPECT_EQ(MostUnderWay(absl::Microseconds(500)), 3);
  EXPECT_EQ(MostUnderWay(absl::Milliseconds(100)), 12);
  EXPECT_EQ(MostUnderWay(absl::Microseconds(500)), 3);
}

// ---- nonsense

class HostileLeftOutTest : public LeftOutGradientsTest {
 protected:
  // Keeps a message of gradients, which has not come.
  HostileLeftOutTest() {
    network_.SetFilter([this](const std::string&, const std::string&, const rpc::Request& request) {
      if (request.method != kGradient) return absl::OkStatus();
      lost_ = request;
      return absl::UnavailableError("lost");
    });
    backward_ = StartBackward(3);
    RunUntil([this] { return !lost_.attachments.empty(); });
    network_.SetFilter(nullptr);
    EXPECT_TRUE(left_out_.ParseFromString(Attachment(lost_)));
    EXPECT_EQ(left_out_.bytes(0), kBytes);
  }

  static std::string& Attachment(rpc::Request& request) {
    for (rpc::Attachment& each : request.attachments)
      if (each.tag == kLeftOutTag) return each.bytes;
    ADD_FAILURE() << "nothing is left out";
    return request.attachments[0].bytes;
  }
  absl::StatusOr<rpc::Reply> SendWith(const std::string& bytes) {
    rpc::Request request = lost_;
    Attachment(request) = bytes;
    return Await(trainer_.worker.agent.StartCall("owner", std::move(request), {}).reply());
  }
  // How the owner says that it could not read what was left out.
  absl::Status RefusalOf(const v1::LeftOut& left_out) {
    const absl::StatusOr<rpc::Reply> reply = SendWith(left_out.SerializeAsString());
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? DecodeGradientAnswer(reply->payload.header)->refused : reply.status();
  }

  rpc::Request lost_;
  Future<Unit> backward_;
  v1::LeftOut left_out_;
};

TEST_F(HostileLeftOutTest, BuffersThatTheMessageDoesNotHaveAreErrors) {
  std::vector<v1::LeftOut> wrong(6, left_out_);
  wrong[0].set_buffers(0, 1);
  wrong[1].set_buffers(0, std::numeric_limits<uint32_t>::max());
  wrong[2].add_buffers(0);  // twice
  wrong[2].add_bytes(kBytes);
  wrong[3].set_bytes(0, 0);
  wrong[4].add_bytes(kBytes);
  wrong[5].clear_buffers();
  wrong[5].clear_bytes();
  for (const v1::LeftOut& each : wrong) {
    const absl::Status refused = SendWith(each.SerializeAsString()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("trainer left out buffers"));
  }
  for (const std::string& bytes : {std::string("\xff\xff"), std::string(100, 'x')}) {
    const absl::Status refused = SendWith(bytes).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  EXPECT_EQ(network_.Count(kPiece), 0);
}

// Memory for a made-up size would be taken from others.
TEST_F(HostileLeftOutTest, MoreBytesThanTheTensorsHaveAreAnError) {
  for (const uint64_t bytes : {uint64_t{kBytes + 1}, uint64_t{1} << 40,
                               static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                               std::numeric_limits<uint64_t>::max()}) {
    left_out_.set_bytes(0, bytes);
    const absl::Status refused = SendWith(left_out_.SerializeAsString()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  EXPECT_EQ(network_.Count(kPiece), 0);
}

TEST_F(HostileLeftOutTest, LoansOfWhatIsLeftOutAreAnError) {
  left_out_.add_lent()->set_bytes(kBytes);
  const absl::Status refused = SendWith(left_out_.SerializeAsString()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
}

TEST_F(HostileLeftOutTest, FewerBytesThanTheTensorHasAreNotTaken) {
  const Buffer gradient = Filled(trainer_.device.get(), 3).AsBuffer();
  left_out_.set_pull(*trainer_.pulls->Keep(2, *trainer_.device, {gradient}));
  left_out_.set_bytes(0, kBytes - sizeof(float));
  const absl::Status refused = SendWith(left_out_.SerializeAsString()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_EQ(Collected(), 0);
}

TEST_F(HostileLeftOutTest, APullThatIsNotThereIsRefused) {
  for (const uint64_t pull : {left_out_.pull(), uint64_t{0}, ~uint64_t{0}}) {
    left_out_.set_pull(pull);
    const absl::Status refused = RefusalOf(left_out_);
    EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound) << refused;
  }
  EXPECT_EQ(Collected(), 0);
}

}  // namespace
}  // namespace psd::dist_autograd
