#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace psd::dist_autograd {

// The tag of the attachments of this layer.
inline constexpr uint32_t kAutogradTag = 2;

enum class BackwardMode {
  kExact,  // waits only for send functions that will receive gradients
  kFast,   // waits for all send functions of the context, as PyTorch's FAST mode does
};

struct BackwardOptions {
  BackwardMode mode = BackwardMode::kExact;
  bool retain_graph = false;
  absl::Duration timeout = absl::Seconds(60);  // must be positive
};

}  // namespace psd::dist_autograd
