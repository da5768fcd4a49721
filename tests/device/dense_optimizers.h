#pragma once

// The dense optimizers, and parameters, for tests that step each optimizer on a device.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/psd.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/tensor.h"
#include "tests/client/test_world.h"

namespace psd::testing {

// Returns all of them, with many of their options.
inline std::vector<OptimizerSpec> DenseOptimizers() {
  return {
      Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
      Adagrad{.lr = 0.1, .lr_decay = 0.1, .initial_accumulator_value = 0.1},
      Adam{.lr = 0.1, .weight_decay = 0.01, .amsgrad = true},
      AdamW{.lr = 0.1},
      Adamax{.lr = 0.1},
      Adadelta{.lr = 0.5},
      RmsProp{.lr = 0.1, .momentum = 0.5, .centered = true},
      Rprop{.lr = 0.1},
  };
}

// Creates a parameter of `size` elements in [-1, 1) on this device of the owner "owner".
inline RRef MakeOn(Worker& trainer, const std::string& device, const std::string& name,
                   int64_t size, DType dtype) {
  CreateOptions options;
  options.requires_grad = true;
  options.device = device;
  const RRef made = Must(trainer.GetOrCreate("owner", name, Zeros({size}, dtype), options));
  std::vector<float> start(static_cast<size_t>(size));
  for (size_t k = 0; k < start.size(); ++k) start[k] = static_cast<float>(k * 37 % 101) / 50.5f - 1;
  const Tensor elements = Tensor::Of<float>({size}, absl::MakeConstSpan(start));
  Must(trainer.Assign(made, Must(ops::Cast(elements, dtype))));
  return made;
}

// Returns the elements of the parameters, one after the other.
inline std::vector<float> ReadAsFloats(Worker& trainer, const std::vector<RRef>& parameters) {
  std::vector<float> all;
  for (const Value& value : Must(trainer.ToHere(parameters))) {
    for (const float x : Elements(Must(ops::Cast(value.As<Variable>()->tensor(), DType::kF32))))
      all.push_back(x);
  }
  return all;
}

// Makes a step for the loss sum(w * w * c) of every parameter, which is computed in f32.
inline absl::Status StepSquares(Worker& trainer, const std::vector<RRef>& parameters,
                                DistributedOptimizer& optimizer, double c) {
  Context context = Must(trainer.NewContext());
  std::vector<Variable> losses;
  for (const Variable& w : Must(trainer.ToHere(parameters, context))) {
    const Variable x = Cast(w, DType::kF32);
    losses.push_back(Sum(x * x * c));
  }
  const absl::Status back = context.Backward(losses);
  return back.ok() ? optimizer.Step(context) : back;
}

}  // namespace psd::testing
