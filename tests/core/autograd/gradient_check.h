#pragma once

// Gradients against finite differences, in f64.

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

  // Of that leaf; undefined if none came.
  Tensor Of(const Variable& leaf) const;
  // How often Accumulate was called.
  int calls() const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<GlobalId, Tensor> gradients_ PSD_GUARDED_BY(mutex_);
  int calls_ PSD_GUARDED_BY(mutex_) = 0;
};

// f64 numbers, no two alike, none within 0.05 of zero, all in [-2, 2].
Tensor Numbers(const Shape& shape, uint64_t seed);
// The same, all in [0.5, 2.5].
Tensor PositiveNumbers(const Shape& shape, uint64_t seed);

using Function = std::function<Variable(absl::Span<const Variable> inputs)>;

// Fails the running test unless the gradients of sum(weights * function(inputs)), the weights
// being fixed and all different, agree with central differences in every element of every input,
// with the inputs both contiguous and as strided views.
void CheckGradients(const Function& function, const std::vector<Tensor>& inputs);

}  // namespace psd::testing
