#pragma once

// The types of functional optimizers, by name.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Creates functional optimizers from their specs. Users may register types of their own. Each
// worker has a registry; there is no global one. Thread-compatible: register all types before
// sharing it.
class OptimizerRegistry {
 public:
  using Factory =
      std::function<absl::StatusOr<std::unique_ptr<FunctionalOptimizer>>(const OptimizerSpec&)>;

  // Returns a registry of the built-in types: "sgd", "adagrad", "adam", "adamw", "adamax",
  // "adadelta", "rmsprop" and "rprop", and for rows only "sparse_adam" and "rowwise_adagrad".
  static OptimizerRegistry Builtin();

  // Errors: ALREADY_EXISTS (existing types are not replaced).
  absl::Status Register(const std::string& type, Factory factory);

  // Errors: NOT_FOUND for an unknown type, naming the nearest known one; INVALID_ARGUMENT for an
  // unknown option (naming the nearest known one), an option out of its range (naming the range),
  // and options that exclude each other.
  absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> Create(const OptimizerSpec& spec) const;

 private:
  std::map<std::string, Factory> factories_;
};

}  // namespace psd::optim
