#include "client/ddp/uneven_inputs.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/tensor/tensor.h"

namespace psd {
namespace {

// A rank's message about its next iteration.
enum class Word : int32_t {
  kHasInput = 1,
  kHasNone = 2,
  kFailed = 3,
};

absl::Status Check(const std::vector<Joinable*>& joinables) {
  if (joinables.empty()) {
    return WithRemedy(absl::InvalidArgumentError("uneven inputs without any joinable"),
                      "give the objects whose calls the ranks make");
  }
  for (const Joinable* each : joinables) {
    if (each == nullptr) return absl::InvalidArgumentError("a joinable is null");
    if (&each->group() == &joinables[0]->group()) continue;
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat("joinables of the groups ",
                                                              joinables[0]->group().name(), " and ",
                                                              each->group().name())),
                      "give joinables of one group");
  }
  return absl::OkStatus();
}

// The messages of all ranks about one iteration.
struct Words {
  std::vector<std::string> without_input;  // "rank 1 (t1)"
  std::vector<std::string> failed;
  std::string first_failed;  // the name of the worker; empty if none has failed
  size_t with_input = 0;
};

absl::StatusOr<Words> Exchange(Group& group, Word own, const CollectiveOptions& call) {
  PSD_ASSIGN_OR_RETURN(const std::vector<Tensor> all,
                       group.AllGather(Tensor::Scalar<int32_t>(static_cast<int32_t>(own)), call));
  Words words;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string name = absl::StrCat("rank ", rank, " (", group.members()[rank], ")");
    switch (static_cast<Word>(*all[rank].data<int32_t>())) {
      case Word::kHasInput:
        ++words.with_input;
        break;
      case Word::kHasNone:
        words.without_input.push_back(name);
        break;
      case Word::kFailed:
        if (words.failed.empty()) words.first_failed = group.members()[rank];
        words.failed.push_back(name);
        break;
    }
  }
  return words;
}

// Makes the calls of one iteration. If this rank has run out of inputs, `context` is empty.
absl::Status Iterate(Worker& worker, const std::vector<Joinable*>& joinables,
                     std::optional<Context>& context) {
  const bool has_input = context.has_value();
  if (!has_input) {
    PSD_ASSIGN_OR_RETURN(context, worker.NewContext());
  }
  for (Joinable* each : joinables) PSD_RETURN_IF_ERROR(each->Iterate(*context, has_input));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunUneven(Worker& worker, const std::vector<Joinable*>& joinables,
                       const ComputeGradients& compute, const UnevenOptions& options) {
  PSD_RETURN_IF_ERROR(Check(joinables));
  Group& group = joinables[0]->group();
  bool ran_out = false;
  for (;;) {
    absl::StatusOr<std::optional<Context>> context = std::nullopt;
    if (!ran_out) context = compute();
    ran_out = context.ok() && !context->has_value();
    const Word own = !context.ok() ? Word::kFailed : ran_out ? Word::kHasNone : Word::kHasInput;
    absl::StatusOr<Words> words = Exchange(group, own, options.call);
    PSD_RETURN_IF_ERROR(context.status());
    PSD_RETURN_IF_ERROR(words.status());
    if (!words->failed.empty()) {
      ErrorDetail detail;
      detail.worker = words->first_failed;
      return WithDetail(absl::FailedPreconditionError(absl::StrCat(
                            absl::StrJoin(words->failed, ", "), " could not compute gradients")),
                        detail);
    }
    if (words->with_input == 0) return absl::OkStatus();
    if (options.stop_early && !words->without_input.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(absl::StrJoin(words->without_input, ", "), " of ", group.size(),
                       " ranks have run out of inputs", ran_out ? ", this one among them" : ""));
    }
    if (absl::Status made = Iterate(worker, joinables, *context); !made.ok()) {
      return group.Fail(made);  // the others wait for the calls that this rank does not make
    }
  }
}

}  // namespace psd
