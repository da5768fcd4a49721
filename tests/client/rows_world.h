#pragma once

// Owners with embedding tables, and a trainer of them.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "client/psd.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {

inline CreateOptions AsRows(bool requires_grad = true) {
  CreateOptions options;
  options.requires_grad = requires_grad;
  options.rows = true;
  return options;
}

inline Tensor Ids(std::initializer_list<int64_t> ids) {
  return Tensor::Of<int64_t>({static_cast<int64_t>(ids.size())}, ids);
}

class RowsTest : public ::testing::Test {
 protected:
  // A table of `rows` rows of `width` ones.
  RRef Table(int64_t rows, int64_t width, const std::string& name = "emb",
             const std::string& owner = "owner0") {
    return Must(trainer_->GetOrCreate(owner, name, Full({rows, width}, 1), AsRows()));
  }
  std::vector<float> Rows(const RRef& table, std::initializer_list<int64_t> ids) {
    return Elements(Must(trainer_->LookUpRows({{table, Ids(ids)}}))[0].tensor());
  }
  // Makes a step with the gradient `scale` for each occurrence of an id.
  absl::Status StepBy(DistributedOptimizer& optimizer, const RRef& table,
                      std::initializer_list<int64_t> ids, double scale) {
    Context context = Must(trainer_->NewContext());
    auto rows = Must(trainer_->LookUpRows({{table, Ids(ids)}}, context));
    PSD_RETURN_IF_ERROR(context.Backward({Sum(rows[0] * scale)}));
    return optimizer.Step(context);
  }

  TestOwner owner0_{"owner0"};
  TestOwner owner1_{"owner1"};
  std::unique_ptr<Worker> trainer_ =
      StartTrainer("trainer0", {owner0_.address(), owner1_.address()});
};

// Parameters that are no tables, but whose rows are looked up.
class DenseTableTest : public RowsTest {
 protected:
  RRef Dense(int64_t rows, int64_t width) {
    CreateOptions options;
    options.requires_grad = true;
    return Must(trainer_->GetOrCreate("owner0", "dense", Full({rows, width}, 1), options));
  }
};

}  // namespace psd
