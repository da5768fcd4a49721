#pragma once

// Functional optimizers by name.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Types by name; users register their own. An object, not a global: each worker has one.
// Thread-compatible: register first, then share.
class OptimizerRegistry {
 public:
  using Factory =
      std::function<absl::StatusOr<std::unique_ptr<FunctionalOptimizer>>(const OptimizerSpec&)>;

  // With the built-in types: "sgd", "adagrad", "adam", "adamw", "adamax", "adadelta", "rmsprop",
  // "rprop".
  static OptimizerRegistry Builtin();

  // Errors: ALREADY_EXISTS (existing types are not replaced).
  absl::Status Register(const std::string& type, Factory factory);

  // Errors: NOT_FOUND for an unknown type with the nearest known one; INVALID_ARGUMENT for an
  // unknown option (nearest named) or one out of its range (range named).
  absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> Create(const OptimizerSpec& spec) const;

 private:
  std::map<std::string, Factory> factories_;
};

}  // namespace psd::optim
