#include "core/change/creation.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/attributes.h"
#include "core/autograd/creation_scope.h"
#include "core/autograd/variable.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/program/run_program.h"
#include "core/store/rows.h"
#include "core/tensor/dtype.h"
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

bool HasRemedy(const absl::Status& status) {
  const std::optional<ErrorDetail> detail = GetDetail(status);
  return detail.has_value() && !detail->remedy.empty();
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

// Runs the program and returns its only result, on the device of the thread's CreationScope.
absl::StatusOr<Tensor> Run(const program::CheckedProgram& program,
                           const program::ProgramLimits& limits) {
  PSD_ASSIGN_OR_RETURN(const std::vector<Variable> results,
                       program::RunProgram(program, limits, {}, [] { return false; }));
  if (results.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a creation program must have one result, this one has ", results.size()));
  }
  const Variable made = results.front().Detach();
  PSD_RETURN_IF_ERROR(made.status());
  return made.tensor();
}

// Runs the program of `change` on `device`, where null is the host. Errors name the value.
absl::StatusOr<Tensor> RunThere(const CreateValue& change, const program::ProgramLimits& limits,
                                Device* device) {
  const CreationScope there(device);
  absl::StatusOr<Tensor> made = Run(*change.program, limits);
  if (!made.ok()) return Annotate(made.status(), change.name);
  return made;
}

// Returns the result of the program, on `device` if the program only initialises it there, and
// otherwise on the host.
absl::StatusOr<Tensor> RunCreation(const CreateValue& change, const program::ProgramLimits& limits,
                                   Device* device, const MemoryBudget& memory) {
  const NoGradGuard no_grad;
  const program::ProgramLimits own = CreationLimits(limits, RoomOn(device, *memory.hosted()));
  absl::StatusOr<Tensor> made = absl::UnimplementedError("");
  if (device != nullptr && Initializes(change.program->program()))
    made = RunThere(change, own, device);
  // UNIMPLEMENTED: the device has no such kernel.
  if (absl::IsUnimplemented(made.status())) made = Run(*change.program, own);
  // Refusals by a device have a remedy already, and name its budget.
  const bool of_limits = device == nullptr || !HasRemedy(made.status());
  if (absl::IsResourceExhausted(made.status()) && of_limits)
    return WithBudget(made.status(), device, memory);
  return made;
}

}  // namespace

bool Initializes(const program::Program& program) {
  if (program.instructions.size() != 1 || program.num_inputs != 0) return false;
  const program::Instruction& only = program.instructions.front();
  const bool known =
      only.op == "zeros" || only.op == "full" || only.op == "uniform" || only.op == "normal";
  const auto dtype = only.attributes.find("dtype");
  const auto* const number =
      dtype == only.attributes.end() ? nullptr : std::get_if<int64_t>(&dtype->second);
  return known && (number == nullptr || IsFloating(static_cast<DType>(*number)));
}

absl::StatusOr<Value> MakeValue(const CreateValue& change, store::Store& store,
                                const program::ProgramLimits& limits, const MemoryBudget& memory) {
  absl::StatusOr<std::shared_ptr<Device>> device = store.FindDevice(change.device);
  if (!device.ok()) return Annotate(device.status(), change.name);
  // With kAutoDevice the result may turn out to be a value for the CPU.
  const MemoryAccount& hosted = *memory.hosted();
  const bool initializes = change.program != nullptr && Initializes(change.program->program());
  const bool certain = change.device != kAutoDevice || initializes;
  const bool cpu_is_larger = RoomOn(nullptr, hosted) > RoomOn(device->get(), hosted);
  Device* const bound = !certain && cpu_is_larger ? nullptr : device->get();
  Tensor elements = change.elements;
  if (change.program != nullptr) {
    PSD_ASSIGN_OR_RETURN(elements, RunCreation(change, limits, bound, memory));
  }
  if (!change.rows) return Value(std::move(elements));
  const bool made_there = initializes && elements.device() != nullptr;
  if (!made_there) {
    // With kAutoDevice another device may have more room by now.
    PSD_ASSIGN_OR_RETURN(device, store.FindDevice(change.device));
    PSD_ASSIGN_OR_RETURN(elements, elements.Clone(store.MemoryOn(*device).get()));
  }
  PSD_RETURN_IF_ERROR(AwaitCurrentWork(elements.device()));
  PSD_ASSIGN_OR_RETURN(auto rows, store::Rows::Create(std::move(elements), change.requires_grad,
                                                      store.MemoryOn(*device)));
  return Value(std::shared_ptr<store::Object>(std::move(rows)));
}

}  // namespace psd::change
