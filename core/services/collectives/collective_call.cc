#include "core/services/collectives/collective_call.h"

#include "absl/strings/str_cat.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::services {
namespace {

absl::string_view ReductionName(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kMean:
      return "mean";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
  }
  return "?";
}

bool TakesWhatTheRootGives(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kScatter;
}

absl::Status CheckReduction(const CollectiveCall& call, int ranks) {
  const TensorForm& form = *call.form;
  const bool integer = form.dtype == DType::kI32 || form.dtype == DType::kI64;
  if (!IsFloating(form.dtype) && !integer) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(call.ToString(),
                                                              ": numbers of this dtype are not "
                                                              "reduced")),
                      "cast to i32, i64 or a floating dtype");
  }
  if (integer && call.reduction == Reduction::kMean) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(call.ToString(), ": integers have no exact mean")),
        "use a floating dtype, or the sum");
  }
  if (call.operation != Operation::kReduceScatter) return absl::OkStatus();
  if (form.shape.rank() > 0 && form.shape[0] % ranks == 0) return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(
                        absl::StrCat(call.ToString(), ": the first axis cannot be cut into ", ranks,
                                     " equal blocks, one for each rank")),
                    "pad it");
}

}  // namespace

std::string TensorForm::ToString() const {
  return absl::StrCat(DTypeName(dtype), shape.ToString());
}

absl::string_view OperationName(Operation operation) {
  switch (operation) {
    case Operation::kBarrier:
      return "barrier";
    case Operation::kAllReduce:
      return "all-reduce";
    case Operation::kReduceScatter:
      return "reduce-scatter";
    case Operation::kAllGather:
      return "all-gather";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
  }
  return "unknown operation";
}

bool HasRoot(Operation operation) {
  return operation == Operation::kGather || TakesWhatTheRootGives(operation);
}

bool Reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduceScatter;
}

std::string CollectiveCall::ToString() const {
  std::string text(OperationName(operation));
  if (reduction.has_value()) absl::StrAppend(&text, " (", ReductionName(*reduction), ")");
  if (form.has_value()) absl::StrAppend(&text, " of ", form->ToString());
  if (HasRoot(operation))
    absl::StrAppend(&text, operation == Operation::kGather ? " to rank " : " from rank ", root);
  if (!label.empty()) absl::StrAppend(&text, " labelled ", Quoted(label));
  return text;
}

absl::Status CheckCall(const CollectiveCall& call, int ranks) {
  if (call.operation < Operation::kBarrier || call.operation > Operation::kScatter) {
    return absl::InvalidArgumentError(absl::StrCat("operation ", static_cast<int>(call.operation),
                                                   " of a group is unknown here"));
  }
  if (call.root < 0 || call.root >= (HasRoot(call.operation) ? ranks : 1)) {
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat(OperationName(call.operation), ": no rank ", call.root)),
                      absl::StrCat("the ranks of the group are 0 to ", ranks - 1));
  }
  if (call.label.size() > kMaxLabelBytes) {
    return absl::InvalidArgumentError(absl::StrCat(OperationName(call.operation), ": a label of ",
                                                   call.label.size(), " bytes; at most ",
                                                   kMaxLabelBytes));
  }
  const bool takes_form = call.operation != Operation::kBarrier;
  if (call.form.has_value() ? !takes_form : takes_form && !TakesWhatTheRootGives(call.operation)) {
    return absl::InvalidArgumentError(absl::StrCat(
        OperationName(call.operation), takes_form ? ": there is no tensor" : " takes no tensor"));
  }
  if (call.reduction.has_value() != Reduces(call.operation) ||
      (call.reduction.has_value() &&
       (*call.reduction < Reduction::kSum || *call.reduction > Reduction::kMax))) {
    return absl::InvalidArgumentError(
        absl::StrCat(OperationName(call.operation), ": the reduction is unknown or missing"));
  }
  if (Reduces(call.operation)) return CheckReduction(call, ranks);
  return call.form.has_value() ? CheckWhole(OperationName(call.operation), *call.form)
                               : absl::OkStatus();
}

absl::Status CheckWhole(absl::string_view operation, const TensorForm& form) {
  if (form.NumBytes() <= kMostWholeBytes) return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(operation, " of ", form.ToString(),
                                                            ", ", form.NumBytes(),
                                                            " bytes; at most ", kMostWholeBytes)),
                    "cut it into several tensors");
}

bool Agree(const CollectiveCall& a, const CollectiveCall& b) {
  if (a.operation != b.operation || a.reduction != b.reduction || a.root != b.root ||
      a.label != b.label || a.shares_memory != b.shares_memory) {
    return false;
  }
  return !a.form.has_value() || !b.form.has_value() || *a.form == *b.form;
}

}  // namespace psd::services
