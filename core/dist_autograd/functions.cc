#include "core/dist_autograd/functions.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/store/on_device.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"

namespace psd::dist_autograd {
namespace {

Edges GradientEdges(const std::vector<Variable>& variables) {
  Edges edges;
  edges.reserve(variables.size());
  for (const Variable& variable : variables) {
    if (variable.requires_grad()) edges.push_back(variable.gradient_edge());
  }
  return edges;
}

// Returns the device that all have in common; null if there is none.
Device* CommonDevice(const std::vector<Device*>& devices) {
  const bool common = !devices.empty() &&
                      std::all_of(devices.begin(), devices.end(),
                                  [&](const Device* device) { return device == devices.front(); });
  return common ? devices.front() : nullptr;
}

// Whether `node` takes gradients on any device.
bool TakesAnyDevice(const Node& node) {
  return node.next().empty() && node.hooks() == nullptr;
}

}  // namespace

SendFunction::SendFunction(GlobalId message, const std::vector<Variable>& variables)
    : ListNode(GradientEdges(variables)), message_(message), leaves_(false) {
  sent_.reserve(next().size());
  devices_.reserve(next().size());
  for (const Variable& variable : variables) {
    if (!variable.requires_grad()) continue;
    sent_.push_back({{}, variable.shape(), variable.dtype(), 0});
    devices_.push_back(variable.tensor().device());
  }
  const bool all_take_any = std::all_of(
      next().begin(), next().end(), [](const Edge& edge) { return TakesAnyDevice(*edge.node); });
  if (!all_take_any) device_ = CommonDevice(devices_);
}

SendFunction::SendFunction(GlobalId message, std::vector<LeafInfo> leaves, Device* device)
    : message_(message), leaves_(true), sent_(std::move(leaves)), device_(device) {}

size_t SendFunction::gradient_bytes() const {
  size_t bytes = 0;
  for (const LeafInfo& each : sent_)
    bytes += static_cast<size_t>(each.shape.NumElements()) * ItemSize(each.dtype);
  return bytes;
}

absl::Status SendFunction::Apply(const PassContext& /*pass*/, absl::Span<Tensor> gradients,
                                 absl::Span<Tensor> results) {
  PSD_CHECK(!leaves_, "gradients of leaves go to the context, not through a graph");
  if (gradients.size() != sent_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("message ", message_.ToString(), " has ",
                                                   sent_.size(), " gradients, not ",
                                                   gradients.size()));
  }
  if (std::none_of(gradients.begin(), gradients.end(),
                   [](const Tensor& gradient) { return gradient.defined(); })) {
    return absl::InvalidArgumentError(
        absl::StrCat("message ", message_.ToString(), " was given no gradient at all"));
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined() || TakesAnyDevice(*next()[i].node)) {
      results[i] = std::move(gradients[i]);
    } else {
      PSD_ASSIGN_OR_RETURN(results[i], store::OnDevice(gradients[i], devices_[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status SendFunction::CheckGradients(const Tensors& gradients) const {
  if (gradients.empty() || FaultOn("gradients_not_checked")) return absl::OkStatus();
  if (gradients.size() != sent_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(gradients.size(), " gradients for message ",
                                                   message_.ToString(), ", of which ", sent_.size(),
                                                   " tensors require grad"));
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& gradient = gradients[i];
    if (!gradient.defined()) continue;
    if (gradient.shape() == sent_[i].shape && gradient.dtype() == sent_[i].dtype) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "gradient ", i, " for message ", message_.ToString(), " is ", gradient.ToString(),
        "; its tensor is ", DTypeName(sent_[i].dtype), sent_[i].shape.ToString()));
  }
  return absl::OkStatus();
}

absl::Status SendFunction::FillZeros(Tensors& gradients) const {
  gradients.resize(sent_.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined() || FaultOn("zero_gradient_skipped")) continue;
    PSD_ASSIGN_OR_RETURN(gradients[i], Tensor::Zeros(sent_[i].shape, sent_[i].dtype));
  }
  return absl::OkStatus();
}

RecvFunction::RecvFunction(GlobalId context, GlobalId message, std::string peer, int tensors,
                           std::vector<GlobalId> upstream, bool foreign, bool takes_pieces)
    : context_(context),
      message_(message),
      peer_(std::move(peer)),
      tensors_(tensors),
      upstream_(std::move(upstream)),
      foreign_(foreign),
      takes_pieces_(takes_pieces) {}

absl::Status RecvFunction::Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                                 absl::Span<Tensor>) {
  auto* sink = dynamic_cast<DistributedSink*>(pass.sink);
  if (sink == nullptr) {
    return WithRemedy(absl::FailedPreconditionError(
                          absl::StrCat("a local backward has reached tensors that came from ",
                                       peer_, " in autograd context ", context_.ToString())),
                      "run the context's backward instead");
  }
  Tensors taken(std::make_move_iterator(gradients.begin()),
                std::make_move_iterator(gradients.end()));
  return sink->Deliver(*this, std::move(taken));
}

}  // namespace psd::dist_autograd
