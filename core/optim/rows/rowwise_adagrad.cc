#include "core/optim/rows/rowwise_adagrad.h"

#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/optim/functional/option_table.h"
#include "core/optim/rows/row_adagrad.h"
#include "core/optim/rows/rows_only.h"

namespace psd::optim {

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewRowwiseAdagrad(const OptimizerSpec& spec) {
  using Range = OptionRule::Range;
  const std::vector<OptionRule> rules = {{"lr", 0.01, Range::kNotNegative},
                                         {"lr_decay", 0, Range::kNotNegative},
                                         {"weight_decay", 0, Range::kNotNegative},
                                         {"initial_accumulator_value", 0, Range::kNotNegative},
                                         {"eps", 1e-10, Range::kNotNegative},
                                         {"maximize", 0, Range::kFlag}};
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, rules));
  auto rows = NewRowAdagrad(complete, AdagradState::kPerRow);
  PSD_RETURN_IF_ERROR(rows->CheckOptions());
  return std::make_unique<RowsOnlyOptimizer>(std::move(complete), std::move(rows));
}

}  // namespace psd::optim
