#include "client/ddp/buffered_all_reduce.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/collectives/digest.h"
#include "core/base/future.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/services/collectives/collective_call.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/elementwise.h"

namespace psd {
namespace {

// Tensors of 16-bit dtypes are divided in f32, because the operators do not take these dtypes.
absl::StatusOr<Tensor> Divide(const Tensor& gradient, int ranks) {
  if (ItemSize(gradient.dtype()) > 2) return ops::Div(gradient, static_cast<double>(ranks));
  PSD_ASSIGN_OR_RETURN(const Tensor wide, ops::Cast(gradient, DType::kF32));
  PSD_ASSIGN_OR_RETURN(const Tensor divided, ops::Div(wide, static_cast<double>(ranks)));
  return ops::Cast(divided, gradient.dtype());
}

// The most buffers that are on their way at once. More would hold the gradients twice.
constexpr size_t kMostBuffers = 8;

std::string ParameterName(size_t index, const ReplicatedParameter& parameter) {
  return absl::StrCat("parameter ", index, ", ", Description(parameter));
}

}  // namespace

BufferedAllReduce::BufferedAllReduce(std::shared_ptr<Group> group,
                                     std::vector<ReplicatedParameter> parameters,
                                     std::vector<BufferGroup> groups, std::string digest)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      groups_(std::move(groups)),
      digest_(std::move(digest)) {}

std::string BufferedAllReduce::LabelOf(size_t buffer, const CollectiveOptions& options) const {
  return absl::StrCat(options.label, options.label.empty() ? "" : ", ", "buffer ", buffer,
                      ", parameters ", digest_);
}

absl::StatusOr<BufferedAllReduce> BufferedAllReduce::Create(
    std::shared_ptr<Group> group, std::vector<ReplicatedParameter> parameters,
    const BufferedOptions& options) {
  if (options.buffer_elements < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a buffer of ", options.buffer_elements, " elements; it must have some"));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (IsFloating(parameters[i].dtype)) continue;
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat(ParameterName(i, parameters[i]), ", has no gradients")),
                      "leave it out");
  }
  Digest digest;
  digest.Add({static_cast<double>(options.buffer_elements)});
  for (const ReplicatedParameter& parameter : parameters) {
    digest.Add(Description(parameter));
    digest.Add(parameter.requires_grad ? "in" : "out");
  }
  std::vector<BufferGroup> groups = GroupForBuffers(parameters, options.buffer_elements);
  return BufferedAllReduce(std::move(group), std::move(parameters), std::move(groups),
                           digest.Short());
}

absl::Status BufferedAllReduce::Check(const std::vector<Tensor>& gradients) const {
  if (gradients.size() != parameters_.size()) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(gradients.size(), " gradients for ",
                                                              parameters_.size(), " parameters")),
                      "give one entry for each");
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& gradient = gradients[i];
    const ReplicatedParameter& parameter = parameters_[i];
    if (!gradient.defined()) continue;
    if (!parameter.requires_grad) {
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat(ParameterName(i, parameter),
                                                                ", is frozen and has a gradient")),
                        "let its entry be undefined");
    }
    if (gradient.shape() == parameter.shape && gradient.dtype() == parameter.dtype) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(ParameterName(i, parameter), ", has a gradient ", gradient.ToString()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> BufferedAllReduce::Fill(const BufferGroup& group,
                                               const std::vector<Tensor>& gradients) const {
  const bool alone = group.parameters.size() == 1;
  Tensor buffer;
  if (!alone) {
    PSD_ASSIGN_OR_RETURN(buffer, Tensor::Empty({group.elements}, group.dtype));
  }
  size_t offset = 0;
  for (const size_t index : group.parameters) {
    const Shape& shape = parameters_[index].shape;
    const size_t bytes = static_cast<size_t>(shape.NumElements()) * ItemSize(group.dtype);
    if (!gradients[index].defined()) {
      if (alone) return Tensor::Zeros(shape, group.dtype);
      std::memset(buffer.mutable_raw_data() + offset, 0, bytes);
    } else {
      PSD_ASSIGN_OR_RETURN(Tensor divided, Divide(gradients[index], group_->size()));
      if (alone) return divided;
      std::memcpy(buffer.mutable_raw_data() + offset, divided.raw_data(), bytes);
    }
    offset += bytes;
  }
  return buffer;
}

absl::StatusOr<std::vector<Tensor>> BufferedAllReduce::Mean(
    const std::vector<Tensor>& gradients, const CollectiveOptions& options) const {
  PSD_RETURN_IF_ERROR(Check(gradients));
  const size_t label = LabelOf(groups_.size(), options).size();
  if (label > services::kMaxLabelBytes) {
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat("the labels of ", groups_.size(), " buffers have up to ",
                                       label, " bytes; at most ", services::kMaxLabelBytes)),
                      "give a shorter label");
  }
  std::vector<Tensor> means = gradients;
  for (size_t i = 0; i < means.size(); ++i) {
    if (means[i].defined() || !parameters_[i].requires_grad) continue;
    PSD_ASSIGN_OR_RETURN(means[i], Tensor::Zeros(parameters_[i].shape, parameters_[i].dtype));
  }
  if (group_->size() == 1) return means;
  std::deque<Future<Tensor>> sums;  // of groups from `next` on
  size_t next = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (sums.size() == kMostBuffers) PSD_RETURN_IF_ERROR(Take(next++, sums, means));
    const absl::StatusOr<Tensor> buffer = Fill(groups_[i], gradients);
    if (!buffer.ok()) {
      // The other ranks wait for the buffers after the first.
      return i == 0 ? buffer.status() : group_->Fail(buffer.status());
    }
    CollectiveOptions call = options;
    call.label = LabelOf(i, options);
    sums.push_back(group_->AllReduceAsync(*buffer, Reduction::kSum, call));
    // A refused call does not count, so the other ranks would take the next call for this one.
    if (sums.back().IsReady() && !sums.back().Wait().ok()) {
      const absl::Status refused = sums.back().Wait().status();
      return i == 0 ? refused : group_->Fail(refused);
    }
  }
  while (next < groups_.size()) PSD_RETURN_IF_ERROR(Take(next++, sums, means));
  return means;
}

absl::Status BufferedAllReduce::Take(size_t group, std::deque<Future<Tensor>>& sums,
                                     std::vector<Tensor>& means) const {
  const Future<Tensor> sum = sums.front();
  sums.pop_front();
  PSD_RETURN_IF_ERROR(sum.Wait().status());
  const Buffer bytes = (*sum.Wait()).AsBuffer();
  size_t offset = 0;
  for (const size_t index : groups_[group].parameters) {
    const size_t size = means[index].NumBytes();
    PSD_ASSIGN_OR_RETURN(means[index],
                         Tensor::FromBuffer(parameters_[index].shape, groups_[group].dtype,
                                            bytes.Slice(offset, size)));
    offset += size;
  }
  return absl::OkStatus();
}

}  // namespace psd
