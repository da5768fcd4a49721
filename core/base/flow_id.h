#pragma once

// Names the flows among which an executor divides its time.

#include <cstdint>
#include <tuple>
#include <utility>

namespace psd {

// Identifies the flow that an item belongs to. Items of one flow are served first in, first out.
struct FlowId {
  uint32_t space = 0;  // the kind of number that `id` is; 0 for the worker's own work, without id
  uint64_t id = 0;

  friend bool operator==(const FlowId& a, const FlowId& b) {
    return a.space == b.space && a.id == b.id;
  }
  friend bool operator<(const FlowId& a, const FlowId& b) {
    return std::tie(a.space, a.id) < std::tie(b.space, b.id);
  }
  template <typename H>
  friend H AbslHashValue(H h, const FlowId& flow) {
    return H::combine(std::move(h), flow.space, flow.id);
  }
};

}  // namespace psd
