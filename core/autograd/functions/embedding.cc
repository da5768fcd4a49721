#include "core/autograd/functions/embedding.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/gather.h"
#include "core/tensor/ops/shape_ops.h"
#include "core/tensor/sparse_tensor.h"

namespace psd {
namespace {

// The gradients of equal ids are added up on the host, also for a weight on a device.
absl::Status WeightGradient(const GradientCall& call, const Shape& weight) {
  PSD_ASSIGN_OR_RETURN(const Tensor ids, CopyTo(nullptr, call.saved[0]));
  PSD_ASSIGN_OR_RETURN(const Tensor g, CopyTo(nullptr, call.g));
  const int64_t count = ids.NumElements();
  PSD_ASSIGN_OR_RETURN(Tensor indices, ops::Reshape(ids, {1, count}));
  PSD_ASSIGN_OR_RETURN(Tensor values, ops::Reshape(g, {count, weight[1]}));
  PSD_ASSIGN_OR_RETURN(SparseTensor sparse, SparseTensor::Create(weight, indices, values));
  PSD_ASSIGN_OR_RETURN(const Tensor dense, sparse.ToDense());
  return call.Give(0, CopyTo(call.g.device(), dense));
}

}  // namespace

Variable Embedding(const Variable& weight, const Variable& ids) {
  if (const Variable* invalid = FirstInvalid({&weight, &ids})) return *invalid;
  if (weight.shape().rank() != 2) {
    return Variable::Invalid(absl::InvalidArgumentError(
        absl::StrCat("Embedding was given the weight ", weight.tensor().ToString(),
                     "; it must be [rows, width]")));
  }
  return Record("Embedding", {&weight, &ids}, ops::GatherRows(weight.tensor(), ids.tensor()),
                Save(ids.tensor()), [shape = weight.shape()](const GradientCall& call) {
                  return WeightGradient(call, shape);
                });
}

}  // namespace psd
