#pragma once

// Two workers that share a device, each with memory of its own there. The test runs their network.

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/variable.h"
#include "core/base/completion_threads.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/carrier/passed_descriptors.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device_loans/device_loans.h"
#include "core/dist_autograd/autograd_codec.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/gradient_messages.h"
#include "core/rpc/rpc_agent.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/device_loans/crowded_device.h"
#include "tests/core/dist_autograd/test_worker.h"
#include "tests/core/fake_rpc.h"
#include "tests/device/test_device.h"

namespace psd::dist_autograd {

inline constexpr auto kElements =
    static_cast<int64_t>(GradientMessages::kMostCopiedBytes / sizeof(float)) + 3;
inline constexpr char kGradient[] = "autograd.gradient", kReturn[] = "device.return_loans";

// A worker with a device that it shares.
struct Sharer {
  // `may_be_crowded`: the worker shares its device as `crowded`, on which it lends nothing.
  Sharer(testing::FakeNetwork& network, const std::string& name, Incarnation incarnation,
         bool may_be_crowded = false)
      : shared(may_be_crowded ? std::shared_ptr<Device>(crowded) : device),
        loans(device_loans::DeviceLoans::Create(incarnation, {shared}, NewNullLogger())),
        worker(network, name, incarnation, [this](TestWorker&) {
          return GradientMessages::Uses{loans, &completions};
        }) {
    loans->Serve(worker.agent);
  }
  ~Sharer() {
    loans->Close();
    completions.Shutdown();
  }

  const std::shared_ptr<EmulatedDevice> device = testing::NewSharedTestDevice(/*seed=*/0);
  const std::shared_ptr<testing::CrowdedDevice> crowded =
      std::make_shared<testing::CrowdedDevice>(device);
  const std::shared_ptr<Device> shared;
  CompletionThreads completions{std::vector<Device*>{device.get()}};
  const std::shared_ptr<carrier::HostProcess> process =
      std::make_shared<carrier::HostProcess>("a process");
  const std::shared_ptr<device_loans::DeviceLoans> loans;
  TestWorker worker;
};

// Passes what `from` shows to `to`.
inline void Show(Sharer& from, Sharer& to) {
  for (const carrier::NamedDescriptor& each : from.loans->ForPeer(to.process)) {
    UniqueFd fd(fcntl(each.fd->get(), F_DUPFD_CLOEXEC, 0));
    EXPECT_TRUE(to.loans->OnPassed(from.process, each.name, std::move(fd)).ok());
  }
}

// A trainer that lends gradients to an owner, once they have shown each other their devices.
class LentGradientsTest : public ::testing::Test {
 protected:
  LentGradientsTest() {
    owner_.worker.functions["pull"] = [this](TestWorker&, const ContextPtr&, const Variables&) {
      return Variables{weight_};
    };
    // The same as the result of a function, whose gradient enters the owner's graph.
    owner_.worker.functions["weight"] = owner_.worker.functions["pull"];
  }
  ~LentGradientsTest() override { network_.SetFilter(nullptr); }

  void ShowAll() {
    Show(trainer_, owner_);
    Show(owner_, trainer_);
  }

  // Runs the network until `done`. Devices work on threads of their own.
  void RunUntil(const std::function<bool()>& done) {
    while (!done())
      if (!network_.RunOne()) std::this_thread::yield();
  }
  void RunUntilNothingIsLent() {
    RunUntil([this] { return trainer_.loans->lent().empty(); });
  }

  Variable Fetch(const std::string& function) {
    return trainer_.worker.Call(context_, "owner", function, {})[0];
  }
  static Tensor OnTheHost(float element) {
    return *Tensor::Full({kElements}, DType::kF32, element);
  }
  // Is lent.
  Tensor OnTheDevice(float element) { return *CopyTo(trainer_.device.get(), OnTheHost(element)); }
  Future<Unit> StartBackward(float element) {
    return trainer_.worker.autograd->BackwardFrom(context_, {Fetch("pull")}, {OnTheDevice(element)},
                                                  {});
  }
  absl::Status BackwardFrom(const Variables& outputs, const std::vector<Tensor>& gradients) {
    return Finish(trainer_.worker.autograd->BackwardFrom(context_, outputs, gradients, {}));
  }
  absl::Status Finish(const Future<Unit>& done) {
    RunUntil([&done] { return done.IsReady(); });
    return done.Wait().status();
  }
  // The gradient of the pulled weight has equal elements.
  absl::Status Backward(float element) { return Finish(StartBackward(element)); }
  // Returns the gradient that the owner has collected: an element, if all are equal. Otherwise 0.
  float Collected() {
    const auto gradient = (*owner_.worker.autograd->Find(context_->id()))->Gradient(kWeight);
    if (!gradient.ok()) return 0;
    const Tensor here = *gradient->gradient.ToHost();
    for (int64_t i = 0; i < kElements; ++i)
      if (here.data<float>()[i] != here.data<float>()[0]) return 0;
    return here.data<float>()[0];
  }
  // Whether the owner's gradient is on its device.
  bool CollectedThere() {
    const auto gradient = (*owner_.worker.autograd->Find(context_->id()))->Gradient(kWeight);
    return gradient.ok() && gradient->gradient.device() == owner_.device.get();
  }
  size_t loans() const {
    size_t sum = 0;
    for (const device_loans::Lent& each : trainer_.loans->lent()) sum += each.loans;
    return sum;
  }

  // Loses each message of gradients that lends, and keeps the last one.
  void LoseLending() {
    network_.SetFilter([this](const std::string&, const std::string&, const rpc::Request& request) {
      if (request.method != kGradient || request.attachments.size() < 2) return absl::OkStatus();
      lost_ = request;
      return absl::UnavailableError("lost");
    });
  }
  // Sends a request of the trainer, and returns its answer.
  absl::StatusOr<rpc::Reply> Send(rpc::Request request) {
    const Future<rpc::Reply> reply =
        trainer_.worker.agent.StartCall("owner", std::move(request), {}).reply();
    RunUntil([&reply] { return reply.IsReady(); });
    return reply.Wait();
  }
  static absl::Status RefusalIn(const absl::StatusOr<rpc::Reply>& reply) {
    return DecodeGradientAnswer(reply->payload.header)->refused;
  }

  static constexpr GlobalId kWeight{2, 1'000'000};
  const Variable weight_ =
      Variable::Leaf(*Tensor::Zeros({kElements}, DType::kF32), kWeight, /*version=*/1);
  testing::FakeNetwork network_;
  Sharer owner_{network_, "owner", 2, /*may_be_crowded=*/true};
  Sharer trainer_{network_, "trainer", 1};
  ContextPtr context_ = trainer_.worker.autograd->NewContext();
  rpc::Request lost_;
};

}  // namespace psd::dist_autograd
