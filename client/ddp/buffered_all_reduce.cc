#include "client/ddp/buffered_all_reduce.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/collectives/digest.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/services/collectives/collective_call.h"
#include "core/tensor/copy_to.h"
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
  digest.Add({static_cast<double>(options.buffer_elements), options.overlap ? 1.0 : 0.0});
  for (const ReplicatedParameter& parameter : parameters) {
    digest.Add(Description(parameter));
    digest.Add(parameter.requires_grad ? "in" : "out");
  }
  digest.Add(absl::StrJoin(DeviceNumbers(parameters), " "));
  std::vector<BufferGroup> groups = GroupForBuffers(parameters, options.buffer_elements);
  // The first parameter of a buffer is the last to get its gradient.
  if (options.overlap) {
    std::sort(groups.begin(), groups.end(), [](const BufferGroup& a, const BufferGroup& b) {
      return a.parameters.front() > b.parameters.front();
    });
  }
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
    if (gradient.shape() != parameter.shape || gradient.dtype() != parameter.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat(ParameterName(i, parameter), ", has a gradient ", gradient.ToString()));
    }
    if (gradient.device() == parameter.device) continue;
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          ParameterName(i, parameter), ", is on ", DeviceName(parameter.device),
                          " and has a gradient on ", DeviceName(gradient.device()))),
                      "copy the gradient to the parameter's device first");
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> BufferedAllReduce::PartOf(size_t parameter, const Tensor& gradient,
                                                 bool mean) const {
  if (!gradient.defined()) {
    // x + -0.0 is x for every x, whereas -0.0 + 0.0 is 0.0.
    return Tensor::Full(parameters_[parameter].shape, parameters_[parameter].dtype,
                        mean ? 0.0 : -0.0, MemoryOf(parameters_[parameter].device));
  }
  if (mean) return Divide(gradient, group_->size());
  return gradient.Contiguous();
}

absl::StatusOr<Tensor> BufferedAllReduce::Fill(const BufferGroup& group,
                                               const std::vector<Tensor>& gradients,
                                               bool mean) const {
  const bool alone = group.parameters.size() == 1;
  Tensor buffer;
  if (!alone) {
    PSD_ASSIGN_OR_RETURN(buffer,
                         Tensor::Empty({group.elements}, group.dtype, MemoryOf(group.device)));
  }
  size_t offset = 0;
  for (const size_t index : group.parameters) {
    PSD_ASSIGN_OR_RETURN(Tensor part, PartOf(index, gradients[index], mean));
    if (alone) return part;
    PSD_RETURN_IF_ERROR(CopyBytes(group.device, buffer.mutable_address() + offset, group.device,
                                  part.address(), part.NumBytes()));
    offset += part.NumBytes();
  }
  return buffer;
}

absl::StatusOr<std::vector<Tensor>> BufferedAllReduce::OwnResults(
    const std::vector<Tensor>& gradients) const {
  std::vector<Tensor> results(gradients.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const ReplicatedParameter& parameter = parameters_[i];
    if (group_->size() > 1 && !parameter.expert) continue;
    results[i] = gradients[i];
    if (results[i].defined() || !parameter.requires_grad) continue;
    PSD_ASSIGN_OR_RETURN(
        results[i], Tensor::Zeros(parameter.shape, parameter.dtype, MemoryOf(parameter.device)));
  }
  return results;
}

absl::StatusOr<std::vector<Tensor>> BufferedAllReduce::Mean(
    const std::vector<Tensor>& gradients, const CollectiveOptions& options) const {
  PSD_RETURN_IF_ERROR(Check(gradients));
  PSD_ASSIGN_OR_RETURN(Round round, Begin(options));
  return round.Finish(gradients);
}

absl::StatusOr<std::vector<Tensor>> BufferedAllReduce::Sum(const std::vector<Tensor>& gradients,
                                                           const CollectiveOptions& options) const {
  PSD_RETURN_IF_ERROR(Check(gradients));
  PSD_ASSIGN_OR_RETURN(Round round, Begin(options));
  round.mean_ = false;
  return round.Finish(gradients);
}

// ---- one averaging

absl::StatusOr<BufferedAllReduce::Round> BufferedAllReduce::Begin(
    const CollectiveOptions& options) const {
  const size_t label = LabelOf(groups_.size(), options).size();
  if (label <= services::kMaxLabelBytes) return Round(this, options);
  return WithRemedy(absl::InvalidArgumentError(
                        absl::StrCat("the labels of ", groups_.size(), " buffers have up to ",
                                     label, " bytes; at most ", services::kMaxLabelBytes)),
                    "give a shorter label");
}

absl::StatusOr<bool> BufferedAllReduce::Round::IsFull() {
  while (!sums_.empty() && sums_.front().IsReady()) PSD_RETURN_IF_ERROR(Take());
  return sums_.size() >= kMostBuffers;
}

absl::Status BufferedAllReduce::Round::StartNext(const std::vector<Tensor>& gradients) {
  const absl::StatusOr<Tensor> buffer =
      averaging_->Fill(averaging_->groups_[started_], gradients, mean_);
  absl::Status status = buffer.status();
  Future<Tensor> sum;
  if (status.ok()) {
    CollectiveOptions call = options_;
    call.label = averaging_->LabelOf(started_, options_);
    sum = averaging_->group_->AllReduceAsync(*buffer, Reduction::kSum, call);
    // A refused call does not count, so the other ranks would take the next call for this one.
    if (sum.IsReady()) status = sum.Wait().status();
  }
  // The other ranks wait for the buffers after the first.
  if (!status.ok()) return started_ == 0 ? status : averaging_->group_->Fail(status);
  sums_.push_back(std::move(sum));
  ++started_;
  return status;
}

absl::StatusOr<std::vector<Tensor>> BufferedAllReduce::Round::Finish(
    const std::vector<Tensor>& gradients) {
  PSD_RETURN_IF_ERROR(averaging_->Check(gradients));
  PSD_ASSIGN_OR_RETURN(std::vector<Tensor> results, averaging_->OwnResults(gradients));
  if (averaging_->group_->size() == 1) return results;
  while (started_ < averaging_->groups_.size()) {
    if (sums_.size() >= kMostBuffers) PSD_RETURN_IF_ERROR(Take());
    PSD_RETURN_IF_ERROR(StartNext(gradients));
  }
  while (!sums_.empty()) PSD_RETURN_IF_ERROR(Take());
  for (size_t i = 0; i < results.size(); ++i)
    if (results_[i].defined()) results[i] = std::move(results_[i]);
  return results;
}

absl::Status BufferedAllReduce::Round::Take() {
  const BufferGroup& group = averaging_->groups_[started_ - sums_.size()];
  const Future<Tensor> sum = std::move(sums_.front());
  sums_.pop_front();
  PSD_RETURN_IF_ERROR(sum.Wait().status());
  const Buffer bytes = (*sum.Wait()).AsBuffer();
  size_t offset = 0;
  for (const size_t index : group.parameters) {
    const Shape& shape = averaging_->parameters_[index].shape;
    const size_t size = static_cast<size_t>(shape.NumElements()) * ItemSize(group.dtype);
    PSD_ASSIGN_OR_RETURN(results_[index],
                         Tensor::FromBuffer(shape, group.dtype, bytes.Slice(offset, size)));
    offset += size;
  }
  return absl::OkStatus();
}

}  // namespace psd
