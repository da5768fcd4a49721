#pragma once

// Large parameters on a device of an owner come to a trainer in pieces, through little pinned
// memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/psd.h"
#include "core/base/buffer.h"
#include "core/device_pieces/piece_methods.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/owner_with.h"

namespace psd {

// The device is an AnyDevice. The parameter is its seed.
template <typename AnyDevice>
class PullsInPieces : public ::testing::TestWithParam<uint64_t> {
 protected:
  static constexpr size_t kPieceBytes = device_pieces::kPieceBytes;
  // Each parameter has eight pieces and a short one.
  static constexpr size_t kPieces = 9;
  static constexpr auto kElements = static_cast<int64_t>(8 * kPieceBytes / sizeof(float) + 3);
  // The budgets of the device: its memory, and pinned memory of the host.
  static constexpr size_t kBudgetBytes = size_t{64} << 20;
  static constexpr size_t kPinnedBytes = 6 * kPieceBytes;

  explicit PullsInPieces(std::shared_ptr<AnyDevice> device) : host_("owner", std::move(device)) {}

  // Compares millions of elements without gmock, which would take seconds.
  static bool AllAre(float element, const std::vector<float>& elements) {
    return std::all_of(elements.begin(), elements.end(),
                       [element](float each) { return each == element; });
  }
  static std::vector<float> ElementsOf(const Value& value) {
    return Elements(value.As<Variable>()->tensor());
  }
  AnyDevice& device() { return host_.device(); }
  RRef Make(const std::string& name, const std::string& device, double element = 2) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    return Must(trainer_->GetOrCreate("owner", name, Full({kElements}, element), options));
  }
  // Waits until the device has so many bytes of pinned memory to give, and takes them.
  std::shared_ptr<Block> TakePinned(size_t bytes) {
    for (;;) {
      if (auto taken = device().pinned_memory().Allocate(bytes); taken.ok())
        return *std::move(taken);
      std::this_thread::yield();
    }
  }
  // Waits until nobody has pinned memory, and no version is pinned.
  void AwaitNothingHeld(const RRef& parameter) {
    const store::EntryPtr entry = Must(host_.owner().runtime().store().Get(parameter.value_id()));
    TakePinned(kPinnedBytes);
    // A pinned version becomes an old one, until it is released.
    Must(trainer_->Assign(parameter, Must(Tensor::Full({kElements}, DType::kF32, 5))));
    while (entry->parameter->stats().old_pinned > 0) std::this_thread::yield();
  }

  OwnerWith<AnyDevice> host_;
  const std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
};

}  // namespace psd
