#pragma once

// Compares gradients with finite differences, in f64.

#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/autograd/engine.h"
#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/tensor/tensor.h"

namespace psd::testing {

// Keeps the gradients of one pass by leaf.
class FakeSink : public GradientSink {
 public:
  absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) override;

  // Returns the gradient of `leaf`; it is undefined if there is none.
  Tensor Of(const Variable& leaf) const;
  // Returns how often Accumulate was called.
  int calls() const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<GlobalId, Tensor> gradients_ PSD_GUARDED_BY(mutex_);
  int calls_ PSD_GUARDED_BY(mutex_) = 0;
};

// Returns distinct f64 numbers in [-2, 2], none of them within 0.05 of zero.
Tensor Numbers(const Shape& shape, uint64_t seed);
// Returns distinct f64 numbers in [0.5, 2.5].
Tensor PositiveNumbers(const Shape& shape, uint64_t seed);

using Function = std::function<Variable(absl::Span<const Variable> inputs)>;

// Fails the running test unless the gradients of sum(weights * function(inputs)) agree with central
// differences in every element of every input. The weights are fixed and all different. The inputs
// are tried both contiguous and as strided views.
void CheckGradients(const Function& function, const std::vector<Tensor>& inputs);

}  // namespace psd::testing
