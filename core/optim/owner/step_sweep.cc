#include "core/optim/owner/step_sweep.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::optim {

void StepSweep::Work::Add(const Call& call, const kernels::OptimArrays& added) {
  const auto is_like = [&call](const Call& other) {
    return other.stream == call.stream && other.batch.type == call.batch.type &&
           other.batch.step == call.batch.step;
  };
  if (calls.empty() || !is_like(calls.back())) {
    calls.push_back(call);
    calls.back().batch.count = 0;
  }
  ++calls.back().batch.count;
  arrays.push_back(added);
  elements += added.size;
}

void StepSweep::Work::Run() const {
  const kernels::OptimArrays* next = arrays.data();
  for (const Call& call : calls) {
    kernels::OptimBatch batch = call.batch;
    batch.arrays = next;
    next += batch.count;
    function->Apply(call.stream, batch);
  }
}

StepSweep::StepSweep(absl::Span<const FunctionPtr> functions, const StepTerms& terms,
                     size_t parameters) {
  call_.batch.gradient_scale = terms.gradient_scale;
  call_.batch.gradient_limit = terms.gradient_limit;
  for (const FunctionPtr& function : functions) {
    groups_.emplace_back().function = function.get();
    groups_.back().arrays.reserve(parameters / functions.size());
  }
}

void StepSweep::Add(size_t group, Stream* stream, DType dtype, int64_t step,
                    const kernels::OptimArrays& arrays) {
  call_.stream = stream;
  call_.batch.type = OptimTypeOf(dtype);
  call_.batch.step = step;
  groups_[group].Add(call_, arrays);
  elements_ += arrays.size;
  if (stream != nullptr) streams_.insert(stream);
}

absl::StatusOr<std::vector<DeviceEvent>> StepSweep::Start(const Helpers& helpers) const {
  RunKernels(helpers);
  std::vector<DeviceEvent> events;
  for (Stream* stream : streams_) {
    absl::StatusOr<std::shared_ptr<Event>> event = stream->Record();
    if (!event.ok()) {
      // The state has changed, and nobody would see when and how the work ends.
      stream->device().Lose(
          absl::StrCat("the end of a step could not be seen: ", event.status().message()));
      return std::move(event).status();
    }
    events.push_back({&stream->device(), *std::move(event)});
  }
  return events;
}

void StepSweep::RunKernels(const Helpers& helpers) const {
  if (helpers.count <= 0 || elements_ < 2 * kPieceElements) {
    for (const Work& group : groups_) group.Run();
    return;
  }
  const std::vector<Work> pieces = Pieces();
  ParallelFor(helpers, pieces.size(), [&](size_t i) { pieces[i].Run(); });
}

std::vector<StepSweep::Work> StepSweep::Pieces() const {
  std::vector<Work> pieces;
  for (const Work& group : groups_) {
    const kernels::OptimArrays* arrays = group.arrays.data();
    for (const Call& call : group.calls) {
      for (size_t i = 0; i < call.batch.count; ++i)
        AddToPieces(*group.function, call, *arrays++, pieces);
    }
  }
  return pieces;
}

void StepSweep::AddToPieces(const FunctionalOptimizer& function, const Call& call,
                            const kernels::OptimArrays& arrays, std::vector<Work>& pieces) {
  constexpr size_t kPart = kernels::kOptimPartElements;
  size_t size = 0;
  for (size_t first = 0; first < arrays.size; first += size) {
    if (pieces.empty() || pieces.back().function != &function ||
        pieces.back().elements >= kPieceElements) {
      pieces.emplace_back().function = &function;
    }
    const size_t room = kPieceElements - pieces.back().elements;
    size = std::min((room + kPart - 1) / kPart * kPart, arrays.size - first);
    pieces.back().Add(call, PartOf(arrays, call.batch.type, first, size));
  }
}

}  // namespace psd::optim
