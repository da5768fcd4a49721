#include "tests/device/test_device.h"

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/device/emulated/device_array.h"
#include "core/device/emulated/emulated_stream.h"
#include "core/device_kernels/emulated/optim_kernels.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/strided_copy.h"

namespace psd::testing {
namespace {

// Adds a kernel to the stream. The kernels of a table cannot return an error, so a device that
// refuses one is lost, which the stream's next event reports.
template <typename Body, typename... Arguments>
void Launch(Stream* stream, const char* kernel, size_t count, Body body, Arguments... arguments) {
  const absl::Status added =
      static_cast<EmulatedStream*>(stream)->Launch(kernel, count, body, std::move(arguments)...);
  PSD_CHECK(!absl::IsInvalidArgument(added), added.message());
  if (!added.ok()) static_cast<EmulatedDevice&>(stream->device()).Lose(added.message());
}

template <typename T>
DeviceArray<const T> In(const void* address, size_t size) {
  return {static_cast<const T*>(address), size};
}
template <typename T>
DeviceArray<T> Out(void* address, size_t size) {
  return {static_cast<T*>(address), size};
}

// The bytes from `address` to the end of its block, for kernels that are not told how many they
// may use.
DeviceArray<std::byte> Rest(Stream* stream, const void* address) {
  return {static_cast<std::byte*>(const_cast<void*>(address)),
          static_cast<EmulatedDevice&>(stream->device()).BytesToEnd(address)};
}

void CheckF32(DType dtype) {
  PSD_CHECK(dtype == DType::kF32, "the kernels of this device take f32");
}

// ---- operators

// A loop over the elements of strided arrays.
struct Loop {
  std::vector<int64_t> extents;

  size_t count() const {
    size_t count = 1;
    for (int64_t extent : extents) count *= static_cast<size_t>(extent);
    return count;
  }
  // Returns the place of element `i` in an array with these strides.
  int64_t PlaceOf(size_t i, const std::vector<int64_t>& strides) const {
    int64_t place = 0;
    auto rest = static_cast<int64_t>(i);
    for (size_t axis = extents.size(); axis-- > 0; rest /= extents[axis])
      place += rest % extents[axis] * strides[axis];
    return place;
  }
  // Returns the lowest and the highest place. Requires: count() > 0.
  std::pair<int64_t, int64_t> Range(const std::vector<int64_t>& strides) const {
    std::pair<int64_t, int64_t> range{0, 0};
    for (size_t axis = 0; axis < extents.size(); ++axis) {
      const int64_t farthest = (extents[axis] - 1) * strides[axis];
      (farthest < 0 ? range.first : range.second) += farthest;
    }
    return range;
  }
};

struct StridedCopyBody {
  void operator()(size_t i, const DeviceArray<const std::byte>& from, int64_t lowest,
                  const Loop& loop, const std::vector<int64_t>& strides, size_t item_bytes,
                  const DeviceArray<std::byte>& to) const {
    const auto place = static_cast<size_t>(loop.PlaceOf(i, strides) - lowest);
    for (size_t k = 0; k < item_bytes; ++k) to[i * item_bytes + k] = from[place * item_bytes + k];
  }
};

void StridedCopy(Stream* stream, const std::byte* from, const int64_t* extents,
                 const int64_t* strides, int rank, size_t item_bytes, std::byte* to) {
  const Loop loop{{extents, extents + rank}};
  const size_t count = loop.count();
  if (count == 0) return;
  const std::vector<int64_t> steps(strides, strides + rank);
  const auto [lowest, highest] = loop.Range(steps);
  const std::byte* const begin = from + lowest * static_cast<int64_t>(item_bytes);
  const size_t bytes = static_cast<size_t>(highest - lowest + 1) * item_bytes;
  Launch(stream, "StridedCopy", count, StridedCopyBody(), In<std::byte>(begin, bytes), lowest, loop,
         steps, item_bytes, Out<std::byte>(to, count * item_bytes));
}

template <typename Op>
struct BinaryBody {
  void operator()(size_t i, const DeviceArray<const float>& a, const std::vector<int64_t>& a_steps,
                  const DeviceArray<const float>& b, const std::vector<int64_t>& b_steps,
                  const Loop& loop, const DeviceArray<float>& out) const {
    out[i] = Op()(a[static_cast<size_t>(loop.PlaceOf(i, a_steps))],
                  b[static_cast<size_t>(loop.PlaceOf(i, b_steps))]);
  }
};

std::vector<int64_t> ListOf(absl::Span<const int64_t> numbers) {
  return {numbers.begin(), numbers.end()};
}

template <typename Op>
void Binary(Stream* stream, const ops::BinaryRun& run) {
  CheckF32(run.dtype);
  const Loop loop{ListOf(run.extents)};
  const std::vector<int64_t> a_steps = ListOf(run.a_steps), b_steps = ListOf(run.b_steps);
  const auto array = [&](const std::byte* address, const std::vector<int64_t>& steps) {
    return In<float>(address, static_cast<size_t>(loop.Range(steps).second) + 1);
  };
  Launch(stream, "Binary", loop.count(), BinaryBody<Op>(), array(run.a, a_steps), a_steps,
         array(run.b, b_steps), b_steps, loop, Out<float>(run.out, loop.count()));
}

template <typename Op>
struct UnaryBody {
  void operator()(size_t i, const DeviceArray<const float>& x,
                  const DeviceArray<float>& out) const {
    out[i] = Op()(x[i]);
  }
};

template <typename Op>
void Unary(Stream* stream, DType dtype, const std::byte* x, std::byte* out, size_t count) {
  CheckF32(dtype);
  Launch(stream, "Unary", count, UnaryBody<Op>(), In<float>(x, count), Out<float>(out, count));
}

struct ReluOf {
  float operator()(float x) const { return x < 0 ? 0 : x; }
};

struct ReluGradientBody {
  void operator()(size_t i, const DeviceArray<const float>& y, const DeviceArray<const float>& g,
                  const DeviceArray<float>& out) const {
    out[i] = y[i] <= 0 ? 0 : g[i];
  }
};

void ReluGradient(Stream* stream, DType dtype, const std::byte* y, const std::byte* g,
                  std::byte* out, size_t count) {
  CheckF32(dtype);
  Launch(stream, "ReluGradient", count, ReluGradientBody(), In<float>(y, count),
         In<float>(g, count), Out<float>(out, count));
}

struct SumBody {
  void operator()(size_t i, const DeviceArray<const float>& x, const ops::AroundAxis& around,
                  const DeviceArray<float>& out) const {
    double sum = 0;
    const size_t outer = i / around.inner, inner = i % around.inner;
    for (size_t k = 0; k < around.length; ++k)
      sum += x[(outer * around.length + k) * around.inner + inner];
    out[i] = static_cast<float>(sum);
  }
};

void Sum(Stream* stream, DType dtype, const std::byte* x, const ops::AroundAxis& around,
         std::byte* out) {
  CheckF32(dtype);
  const size_t count = around.outer * around.inner;
  Launch(stream, "Sum", count, SumBody(), In<float>(x, count * around.length), around,
         Out<float>(out, count));
}

struct CastBody {
  void operator()(size_t i, const DeviceArray<const float>& x,
                  const DeviceArray<double>& out) const {
    out[i] = x[i];
  }
};

void Cast(Stream* stream, DType from, const std::byte* x, DType to, std::byte* out, size_t count) {
  CheckF32(from);
  PSD_CHECK(to == DType::kF64, "this device casts to f64");
  Launch(stream, "Cast", count, CastBody(), In<float>(x, count), Out<double>(out, count));
}

struct GatherRowsBody {
  void operator()(size_t i, const DeviceArray<std::byte>& table, size_t row_bytes,
                  const DeviceArray<const int64_t>& ids, const DeviceArray<std::byte>& out) const {
    const size_t row = static_cast<size_t>(ids[i]) * row_bytes;
    for (size_t k = 0; k < row_bytes; ++k) out[i * row_bytes + k] = table[row + k];
  }
};

void GatherRows(Stream* stream, const std::byte* table, size_t row_bytes, const int64_t* ids,
                size_t count, std::byte* out) {
  Launch(stream, "GatherRows", count, GatherRowsBody(), Rest(stream, table), row_bytes,
         In<int64_t>(ids, count), Out<std::byte>(out, count * row_bytes));
}

struct ScatterRowsBody {
  void operator()(size_t i, const DeviceArray<std::byte>& table, size_t row_bytes,
                  const DeviceArray<const int64_t>& ids,
                  const DeviceArray<const std::byte>& rows) const {
    const size_t row = static_cast<size_t>(ids[i]) * row_bytes;
    for (size_t k = 0; k < row_bytes; ++k) table[row + k] = rows[i * row_bytes + k];
  }
};

void ScatterRows(Stream* stream, std::byte* table, size_t row_bytes, const int64_t* ids,
                 size_t count, const std::byte* rows) {
  Launch(stream, "ScatterRows", count, ScatterRowsBody(), Rest(stream, table), row_bytes,
         In<int64_t>(ids, count), In<std::byte>(rows, count * row_bytes));
}

KernelTable TestKernels() {
  KernelTable table = emulated::OptimKernels();
  table.Add(kStridedCopy, StridedCopy);
  table.Add(ops::kAdd, Binary<std::plus<float>>);
  table.Add(ops::kMul, Binary<std::multiplies<float>>);
  table.Add(ops::kNeg, Unary<std::negate<float>>);
  table.Add(ops::kRelu, Unary<ReluOf>);
  table.Add(ops::kReluGradient, ReluGradient);
  table.Add(ops::kSum, Sum);
  table.Add(ops::kCast, Cast);
  table.Add(ops::kGatherRows, GatherRows);
  table.Add(ops::kScatterRows, ScatterRows);
  return table;
}

}  // namespace

std::vector<std::shared_ptr<EmulatedDevice>> NewTestDevices(int count, uint64_t seed) {
  EmulatedDeviceOptions options;
  options.budget_bytes = size_t{16} << 20;
  options.seed = seed;
  options.kernels = TestKernels();
  auto devices = EmulatedDevice::Create(count, options);
  PSD_CHECK(devices.ok(), devices.status().message());
  return *std::move(devices);
}

std::shared_ptr<EmulatedDevice> NewTestDevice(uint64_t seed) {
  return NewTestDevices(1, seed)[0];
}

}  // namespace psd::testing
