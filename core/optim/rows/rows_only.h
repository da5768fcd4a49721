#pragma once

// A functional optimizer that steps rows and refuses dense parameters.

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/functional/row_optimizer.h"
#include "core/tensor/dtype.h"
#include "kernels/optim/arrays.h"

namespace psd::optim {

// Wraps a RowOptimizer. CheckDType refuses every dtype, so that Apply is never called.
class RowsOnlyOptimizer : public FunctionalOptimizer {
 public:
  RowsOnlyOptimizer(OptimizerSpec spec, std::unique_ptr<RowOptimizer> rows)
      : spec_(std::move(spec)), rows_(std::move(rows)) {}

  const OptimizerSpec& spec() const override { return spec_; }
  const RowOptimizer* rows() const override { return rows_.get(); }
  std::vector<StateSlot> Slots(DType) const override { return {}; }
  absl::Status CheckDType(DType) const override {
    return absl::InvalidArgumentError(
        absl::StrCat(spec_.type,
                     " steps rows, not dense parameters: create the value as rows, or "
                     "step it with another optimizer"));
  }
  void Apply(Stream*, const kernels::OptimBatch&) const override {
    PSD_CHECK(false, "a dense parameter was refused before");
  }

 private:
  const OptimizerSpec spec_;
  const std::unique_ptr<RowOptimizer> rows_;
};

}  // namespace psd::optim
