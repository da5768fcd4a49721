#include "core/change/creation.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/variable.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/program/run_program.h"
#include "core/store/rows.h"
#include "core/tensor/tensor.h"

namespace psd::change {
namespace {

using store::Value;

// Returns the free part of the budget of `device`, where null is the CPU.
int64_t RoomOn(const Device* device, const MemoryAccount& hosted) {
  if (device == nullptr && hosted.limit_bytes() == 0) return std::numeric_limits<int64_t>::max();
  const size_t limit = device != nullptr ? device->budget_bytes() : hosted.limit_bytes();
  const size_t used = device != nullptr ? device->used_bytes() : hosted.used_bytes();
  return static_cast<int64_t>(limit - std::min(limit, used));
}

// A created value stays, so the room for it bounds it instead of the limit for results.
program::ProgramLimits CreationLimits(program::ProgramLimits limits, int64_t room) {
  limits.max_result_bytes = room;
  limits.max_live_bytes = std::max(limits.max_live_bytes, room);
  return limits;
}

// Adds the budget of the device and its use to the error of a program that found no memory.
absl::Status WithBudget(const absl::Status& status, const Device* device,
                        const MemoryBudget& memory) {
  if (device != nullptr) {
    return WithRemedy(
        absl::ResourceExhaustedError(absl::StrCat(
            status.message(), "; the budget of ", device->name(), " is ", device->budget_bytes(),
            " bytes, of which ", device->used_bytes(), " are in use")),
        "drop values there, or raise the budget");
  }
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
                                   const program::ProgramLimits& limits, const Device* device,
                                   const MemoryBudget& memory) {
  NoGradGuard no_grad;
  const int64_t room = RoomOn(device, *memory.hosted());
  const auto results =
      program::RunProgram(program, CreationLimits(limits, room), {}, [] { return false; });
  if (absl::IsResourceExhausted(results.status()))
    return WithBudget(results.status(), device, memory);
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
  absl::StatusOr<std::shared_ptr<Device>> device = store.FindDevice(change.device);
  if (!device.ok()) return Annotate(device.status(), change.name);
  // With kAutoDevice the result may turn out to be a value for the CPU.
  const MemoryAccount& hosted = *memory.hosted();
  const bool cpu_is_larger = RoomOn(nullptr, hosted) > RoomOn(device->get(), hosted);
  const Device* const bound =
      change.device == kAutoDevice && cpu_is_larger ? nullptr : device->get();
  Tensor elements = change.elements;
  if (change.program != nullptr) {
    PSD_ASSIGN_OR_RETURN(elements, RunCreation(*change.program, limits, bound, memory));
  }
  if (!change.rows) return Value(std::move(elements));
  // With kAutoDevice another device may have more room by now.
  PSD_ASSIGN_OR_RETURN(device, store.FindDevice(change.device));
  const std::shared_ptr<Allocator> place = store.MemoryOn(*device);
  PSD_ASSIGN_OR_RETURN(elements, elements.Clone(place.get()));
  PSD_ASSIGN_OR_RETURN(auto rows,
                       store::Rows::Create(std::move(elements), change.requires_grad, place));
  return Value(std::shared_ptr<store::Object>(std::move(rows)));
}

}  // namespace psd::change
