#include "core/change/creation.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/variable.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/program/run_program.h"
#include "core/store/rows.h"
#include "core/tensor/tensor.h"

namespace psd::change {
namespace {

using store::Value;

// A created value stays, so the free part of the memory budget bounds it instead of the limit for
// results.
program::ProgramLimits CreationLimits(program::ProgramLimits limits, const MemoryAccount& memory) {
  const size_t limit = memory.limit_bytes();
  const size_t left = limit - std::min(limit, memory.used_bytes());
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  limits.max_result_bytes = limit == 0 ? kNoLimit : static_cast<int64_t>(left);
  limits.max_live_bytes = std::max(limits.max_live_bytes, limits.max_result_bytes);
  return limits;
}

// Adds the budget and its use to the error of a program that found no memory.
absl::Status WithBudget(const absl::Status& status, const MemoryBudget& memory) {
  if (memory.limit_bytes() == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(status.message(), "; no memory budget is set, and the system has no more"));
  }
  const MemoryAccount& hosted = *memory.hosted();
  return WithRemedy(
      absl::ResourceExhaustedError(absl::StrCat(
          status.message(), "; the memory budget is ", memory.limit_bytes(), " bytes, ",
          hosted.limit_bytes(), " for values, of which ", hosted.used_bytes(), " are in use")),
      "drop values or raise the budget");
}

absl::StatusOr<Tensor> RunCreation(const program::CheckedProgram& program,
                                   const program::ProgramLimits& limits,
                                   const MemoryBudget& memory) {
  NoGradGuard no_grad;
  const auto results = program::RunProgram(program, limits, {}, [] { return false; });
  if (absl::IsResourceExhausted(results.status())) return WithBudget(results.status(), memory);
  PSD_RETURN_IF_ERROR(results.status());
  if (results->size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a creation program must have one result, this one has ", results->size()));
  }
  const Variable made = results->front().Detach();
  PSD_RETURN_IF_ERROR(made.status());
  return made.tensor();
}

}  // namespace

absl::StatusOr<Value> MakeValue(const CreateValue& change, store::Store& store,
                                const program::ProgramLimits& limits, const MemoryBudget& memory) {
  absl::StatusOr<std::shared_ptr<MemoryAccount>> place = store.MemoryOn(change.device);
  if (!place.ok()) return Annotate(place.status(), change.name);
  Tensor elements = change.elements;
  if (change.program != nullptr) {
    PSD_ASSIGN_OR_RETURN(elements,
                         RunCreation(*change.program, CreationLimits(limits, **place), memory));
  }
  if (!change.rows) return Value(std::move(elements));
  PSD_ASSIGN_OR_RETURN(elements, elements.Clone(place->get()));
  PSD_ASSIGN_OR_RETURN(
      auto rows, store::Rows::Create(std::move(elements), change.requires_grad, *std::move(place)));
  return Value(std::shared_ptr<store::Object>(std::move(rows)));
}

}  // namespace psd::change
