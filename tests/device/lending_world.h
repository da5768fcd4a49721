#pragma once

// An owner and a trainer on one device, in one process.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device_loans/device_loans.h"
#include "core/device_pieces/piece_methods.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "proto/psd/v1/status.pb.h"
#include "tests/client/test_world.h"
#include "tests/device/device_owner.h"
#include "tests/device/test_device.h"

namespace psd::testing {

// Each parameter has two pieces and a short one.
inline constexpr auto kElements =
    static_cast<int64_t>(2 * device_pieces::kPieceBytes / sizeof(float) + 3);
inline constexpr size_t kBytes = static_cast<size_t>(kElements) * sizeof(float);

inline std::vector<float> ElementsThere(const Tensor& tensor) {
  return Elements(Must(tensor.ToHost()));
}

inline bool AllAre(float element, const std::vector<float>& elements) {
  return !elements.empty() && std::all_of(elements.begin(), elements.end(),
                                          [element](float each) { return each == element; });
}

inline worker::RuntimeOptions Sharing(bool shares = true, bool shared_memory = true) {
  worker::RuntimeOptions options;
  options.share_devices = shares;
  options.shared_memory = shared_memory;
  return options;
}

// An owner and a trainer on one device. They have an emulated device each.
class World {
 public:
  explicit World(worker::RuntimeOptions owner = Sharing(), bool trainer_shares = true,
                 bool trainer_shares_memory = true, uint64_t seed = 0)
      : host_("owner", testing::NewSharedTestDevice(seed), std::move(owner)),
        device_(testing::NewSharedTestDevice(seed)) {
    WorkerOptions options;
    options.name = "trainer";
    options.owners = {host_.owner().address()};
    options.devices = {device_};
    options.share_devices = trainer_shares;
    options.shared_memory = trainer_shares_memory;
    // On a busy machine the first link may use the network, because shared memory takes too long.
    for (int attempt = 0; attempt < 20; ++attempt) {
      trainer_.reset();
      while (HasPeer(host_.owner().runtime(), "trainer",
                     [](const auto& peer) { return peer.epoch_here != 0; })) {
        std::this_thread::yield();  // the session of the trainer before, whose name this one takes
      }
      trainer_ = Must(Worker::Start(options));
      if (!trainer_shares_memory || HasPeer(RuntimeOf(*trainer_), "owner", [](const auto& peer) {
            return peer.shares_memory();
          })) {
        break;
      }
    }
    there_.device = "emu:0";
  }

  RRef Make(const std::string& name, double element = 2) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = "emu:0";
    return Must(trainer_->GetOrCreate("owner", name, Full({kElements}, element), options));
  }
  Tensor Pull(const RRef& parameter) {
    return Must(trainer_->Pull({parameter}, there_))[0].elements;
  }
  void Assign(const RRef& parameter, double element) {
    Must(trainer_->Assign(parameter, Must(Tensor::Full({kElements}, DType::kF32, element))));
  }
  device_loans::DeviceLoans& loans() { return host_.owner().runtime().loans(); }
  size_t BytesLent() { return BytesLent(loans()); }
  void AwaitNothingLent() {
    while (!loans().lent().empty()) std::this_thread::yield();
  }
  // The bytes of gradients that the trainer lends to the owner now.
  size_t GradientBytesLent() { return BytesLent(trainers_loans()); }
  void AwaitNoGradientLent() {
    while (!trainers_loans().lent().empty()) std::this_thread::yield();
  }
  device_loans::DeviceLoans& trainers_loans() { return RuntimeOf(*trainer_).loans(); }
  store::Parameter& At(const RRef& parameter) {
    return *Must(host_.owner().runtime().store().Get(parameter.value_id()))->parameter;
  }
  // How the owner's status says that the trainer reads it.
  std::string HowRead() { return HowRead(host_.owner().runtime(), "trainer"); }
  // How the trainer's status says that the owner reads it.
  std::string HowGradientsAreRead() { return HowRead(RuntimeOf(*trainer_), "owner"); }

  DeviceOwner& host() { return host_; }
  EmulatedDevice& owners_device() { return host_.device(); }
  EmulatedDevice& trainers_device() { return *device_; }
  std::unique_ptr<Worker>& trainer() { return trainer_; }
  const CallOptions& there() const { return there_; }

 private:
  template <typename Test>
  static bool HasPeer(worker::Runtime& runtime, const std::string& name, const Test& test) {
    const std::vector<rpc::PeerStatus> peers = runtime.agent().Peers();
    return std::any_of(peers.begin(), peers.end(), [&](const rpc::PeerStatus& peer) {
      return peer.peer.name == name && test(peer);
    });
  }
  static size_t BytesLent(device_loans::DeviceLoans& loans) {
    size_t bytes = 0;
    for (const device_loans::Lent& one : loans.lent()) bytes += one.bytes;
    return bytes;
  }
  static std::string HowRead(worker::Runtime& lender, const std::string& borrower) {
    const v1::WorkerStatus status = lender.status().Collect({});
    for (const v1::PeerState& peer : status.peers())
      if (peer.name() == borrower) return peer.device_memory();
    return "no such peer";
  }

  DeviceOwner host_;
  const std::shared_ptr<EmulatedDevice> device_;
  std::unique_ptr<Worker> trainer_;
  CallOptions there_;
};

// A trainer's calls in one context, all results on its device.
class Step {
 public:
  explicit Step(World& world)
      : world_(world), context_(Must(world.trainer()->NewContext())), options_(world.there()) {
    options_.context = &context_;
  }

  Variable Fetch(const RRef& parameter) {
    return *Must(world_.trainer()->ToHere({parameter}, options_))[0].As<Variable>();
  }
  // Computes the product of two values of the owner there.
  Variable ProductThere(const RRef& a, const RRef& b) {
    const Function mul = Function::Operator("mul", 2);
    return *Must(world_.trainer()->RpcSync("owner", mul, {a, b}, options_))[0].As<Variable>();
  }
  absl::Status Backward(const Variable& loss) { return context_.Backward({loss}); }
  std::vector<float> Gradient(const RRef& parameter) {
    return Elements(Must(context_.Gradient(parameter)));
  }
  Context& context() { return context_; }

 private:
  World& world_;
  Context context_;
  CallOptions options_;
};

inline Variable SumOfSquares(const Variable& x) {
  return Sum(Mul(x, x));
}

}  // namespace psd::testing
