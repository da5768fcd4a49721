#include "core/autograd/sparse_leaf.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/shape_ops.h"
#include "core/tensor/shape.h"
#include "core/tensor/sparse_tensor.h"

namespace psd {
namespace {

class AccumulateSparseGrad : public Node {
 public:
  AccumulateSparseGrad(LeafInfo leaf, Tensor ids) : leaf_(std::move(leaf)), ids_(std::move(ids)) {}

  absl::string_view Name() const override { return "AccumulateSparseGrad"; }

  absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                     absl::Span<Tensor>) override {
    if (gradients.empty() || !gradients[0].defined()) return absl::OkStatus();
    if (pass.sink == nullptr) {
      return WithRemedy(absl::FailedPreconditionError("nobody collects the gradient of rows"),
                        "give a sink");
    }
    // Sparse tensors are on the host, wherever the rows are.
    PSD_ASSIGN_OR_RETURN(const Tensor g, CopyTo(nullptr, gradients[0]));
    const int64_t count = ids_.NumElements();
    PSD_ASSIGN_OR_RETURN(Tensor indices, ops::Reshape(ids_, {1, count}));
    PSD_ASSIGN_OR_RETURN(Tensor values, ops::Reshape(g, {count, leaf_.shape[1]}));
    PSD_ASSIGN_OR_RETURN(SparseTensor sparse, SparseTensor::Create(leaf_.shape, indices, values));
    return pass.sink->AccumulateSparse(leaf_, std::move(sparse));
  }

  const LeafInfo& rows_of() const { return leaf_; }

 private:
  const LeafInfo leaf_;
  const Tensor ids_;
};

}  // namespace

Variable SparseLeaf(const LeafInfo& leaf, Tensor ids, Tensor rows) {
  return Variable::OfNode(std::move(rows),
                          std::make_shared<AccumulateSparseGrad>(leaf, std::move(ids)), 0);
}

const LeafInfo* LeafOfRows(const Node& node) {
  const auto* rows = dynamic_cast<const AccumulateSparseGrad*>(&node);
  return rows == nullptr ? nullptr : &rows->rows_of();
}

}  // namespace psd
