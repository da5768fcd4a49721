#pragma once

// Describes one call that a rank of a group makes. All ranks of a group must make the same calls in
// the same order. They compare these descriptions to find calls that differ.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd::services {

// The numbers of both lists are part of the wire format.
enum class Operation : uint8_t {
  kBarrier = 1,
  kAllReduce = 2,      // every rank gets the reduction of all inputs
  kReduceScatter = 3,  // rank r gets the r-th block, along the first axis, of that reduction
  kAllGather = 4,      // every rank gets all inputs
  kBroadcast = 5,      // every rank gets the input of the root
  kGather = 6,         // the root gets all inputs
  kScatter = 7,        // rank r gets the r-th input of the root
};

// How the elements of the ranks are combined: one after the other, in the order of the ranks. f16
// and bf16 are computed as floats, and rounded once.
enum class Reduction : uint8_t {
  kSum = 1,
  kMean = 2,  // the sum, divided by the number of ranks; floating dtypes only
  kMin = 3,   // NaN where one rank has NaN, as for kMax
  kMax = 4,
};

// The dtype and shape of a tensor.
struct TensorForm {
  DType dtype = DType::kF32;
  Shape shape;

  size_t NumBytes() const { return static_cast<size_t>(shape.NumElements()) * ItemSize(dtype); }
  std::string ToString() const;  // "f32[128, 784]"
  friend bool operator==(const TensorForm& a, const TensorForm& b) {
    return a.dtype == b.dtype && a.shape == b.shape;
  }
  friend bool operator!=(const TensorForm& a, const TensorForm& b) { return !(a == b); }
};

struct CollectiveCall {
  Operation operation = Operation::kBarrier;
  std::optional<Reduction> reduction;  // of kAllReduce and kReduceScatter
  // The form of every rank's input; for kBroadcast and kScatter that of the result. Not set for
  // kBarrier, and for a rank that takes whatever the root of a broadcast or scatter gives.
  std::optional<TensorForm> form;
  int root = 0;       // of kBroadcast, kGather and kScatter; otherwise 0
  std::string label;  // the user's own name for the call; may be empty
  // Whether all ranks reach each other through shared memory. The same on all ranks of a group.
  bool shares_memory = false;

  // For example "all-reduce (sum) of f32[10] labelled 'bucket 3'", "broadcast from rank 0".
  std::string ToString() const;
};

// The most bytes of a tensor that is not reduced: it travels in one message.
inline constexpr size_t kMostWholeBytes = (size_t{4} << 30) - (size_t{1} << 20);

// The longest label in bytes.
inline constexpr size_t kMaxLabelBytes = 128;

absl::string_view OperationName(Operation operation);  // "all-reduce"

// Whether the operation has a root.
bool HasRoot(Operation operation);
// Whether the operation combines numbers.
bool Reduces(Operation operation);

// Errors: INVALID_ARGUMENT unless a group of `ranks` ranks can make the call.
absl::Status CheckCall(const CollectiveCall& call, int ranks);

// Checks that a tensor can travel in one message. Errors: INVALID_ARGUMENT naming both sizes.
absl::Status CheckWhole(absl::string_view operation, const TensorForm& form);

// Whether two ranks make the same call.
bool Agree(const CollectiveCall& a, const CollectiveCall& b);

}  // namespace psd::services
