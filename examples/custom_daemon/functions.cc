#include "examples/custom_daemon/functions.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/status.h"
#include "examples/custom_daemon/replay_buffer.h"

namespace psd::examples {
namespace {

constexpr int64_t kMaxCapacity = 1'000'000;

// A blocking function: it holds one of the daemon's threads until it returns.
absl::StatusOr<Tensor> Standardize(const Tensor& x) {
  if (x.dtype() != DType::kF32 || x.NumElements() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot standardize ", x.ToString()));
  }
  PSD_ASSIGN_OR_RETURN(const Tensor from, x.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor to, Tensor::Empty(x.shape(), DType::kF32));
  const auto elements = absl::MakeConstSpan(from.data<float>(), from.NumElements());
  const auto count = static_cast<double>(elements.size());
  double sum = 0, squares = 0;
  for (float element : elements) sum += element;
  const double mean = sum / count;
  for (float element : elements) squares += (element - mean) * (element - mean);
  const double deviation = std::sqrt(squares / count);
  float* next = to.mutable_data<float>();
  for (float element : elements)
    *next++ = deviation == 0 ? 0 : static_cast<float>((element - mean) / deviation);
  return to;
}

absl::StatusOr<std::shared_ptr<Object>> NewReplayBuffer(int64_t capacity) {
  if (capacity < 1 || capacity > kMaxCapacity) {
    return absl::InvalidArgumentError(
        absl::StrCat("a capacity of ", capacity, "; it is 1 to ", kMaxCapacity));
  }
  return std::make_shared<ReplayBuffer>(capacity);
}

// A function that uses its worker: it fetches a tensor from any owner, in the caller's context, and
// leaves the result here. The caller gets a reference to it.
absl::StatusOr<Values> StandardizeFrom(const FunctionCall& call, const Values& arguments) {
  PSD_ASSIGN_OR_RETURN(const auto source, ReadValues<RRef>(arguments));
  PSD_ASSIGN_OR_RETURN(const Values fetched, call.ToHere({std::get<0>(source)}));
  PSD_ASSIGN_OR_RETURN(const Tensor x, ReadValue<Tensor>(fetched[0]));
  PSD_ASSIGN_OR_RETURN(Tensor result, Standardize(x));
  PSD_ASSIGN_OR_RETURN(const RRef kept, call.Keep(std::move(result)));
  return Values{kept};
}

// An asynchronous method: it returns at once, and its answer is sent when the future is ready.
Future<Values> WhenFilled(const std::shared_ptr<ReplayBuffer>& buffer, const FunctionCall&,
                          const Values& arguments) {
  const auto count = ReadValues<int64_t>(arguments);
  if (!count.ok()) return Future<Values>::Ready(count.status());
  return buffer->WhenFilled(std::get<0>(*count));
}

}  // namespace

FunctionRegistry MakeFunctions() {
  FunctionRegistry functions;
  absl::Status all;
  all.Update(functions.Register("standardize", Typed(Standardize)));
  all.Update(functions.Register("standardize_from", StandardizeFrom));
  all.Update(functions.Register("replay_buffer.new", Typed(NewReplayBuffer)));
  all.Update(functions.RegisterMethod<ReplayBuffer>("replay_buffer.append",
                                                    TypedMethod(&ReplayBuffer::Append)));
  all.Update(functions.RegisterMethod<ReplayBuffer>("replay_buffer.sample",
                                                    TypedMethod(&ReplayBuffer::Sample)));
  all.Update(functions.RegisterAsyncMethod<ReplayBuffer>("replay_buffer.when_filled", WhenFilled));
  PSD_CHECK(all.ok(), "two functions have one name");
  return functions;
}

}  // namespace psd::examples
