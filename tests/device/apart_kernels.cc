#include "tests/device/apart_kernels.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/strided_copy.h"
#include "tests/device/apart_device.h"

namespace psd::testing {
namespace {

// Translates addresses for one kernel.
class Launch {
 public:
  explicit Launch(Device* device)
      : device_(static_cast<ApartDevice&>(*device)), running_(device_.BeginKernel()) {}
  const float* In(const void* address) const {
    return reinterpret_cast<const float*>(device_.Inside(address));
  }
  float* Out(void* address) const { return reinterpret_cast<float*>(device_.Inside(address)); }
  std::byte* Bytes(const void* address) const { return device_.Inside(address); }

 private:
  ApartDevice& device_;
  const std::unique_ptr<MutexLock> running_;
};

void CheckF32(DType dtype) {
  PSD_CHECK(dtype == DType::kF32, "the kernels of this device take f32");
}

void StridedCopy(Device* device, const std::byte* from, const int64_t* extents,
                 const int64_t* strides, int rank, size_t item_bytes, std::byte* to) {
  const Launch launch(device);
  size_t count = 1;
  for (int axis = 0; axis < rank; ++axis) count *= static_cast<size_t>(extents[axis]);
  std::vector<int64_t> index(static_cast<size_t>(rank), 0);
  for (size_t i = 0; i < count; ++i) {
    int64_t at = 0;
    for (int axis = 0; axis < rank; ++axis) at += index[axis] * strides[axis];
    std::memcpy(launch.Bytes(to) + i * item_bytes,
                launch.Bytes(from) + at * static_cast<int64_t>(item_bytes), item_bytes);
    for (int axis = rank - 1; axis >= 0 && ++index[axis] == extents[axis]; --axis) index[axis] = 0;
  }
}

template <typename Op>
void Binary(Device* device, const ops::BinaryRun& run) {
  CheckF32(run.dtype);
  const Launch launch(device);
  const float* const a = launch.In(run.a);
  const float* const b = launch.In(run.b);
  float* const out = launch.Out(run.out);
  const size_t rank = run.extents.size();
  size_t count = 1;
  for (int64_t extent : run.extents) count *= static_cast<size_t>(extent);
  for (size_t i = 0; i < count; ++i) {
    int64_t a_at = 0, b_at = 0;
    auto rest = static_cast<int64_t>(i);
    for (size_t axis = rank; axis-- > 0; rest /= run.extents[axis]) {
      a_at += rest % run.extents[axis] * run.a_steps[axis];
      b_at += rest % run.extents[axis] * run.b_steps[axis];
    }
    out[i] = Op()(a[a_at], b[b_at]);
  }
}

template <typename Op>
void Unary(Device* device, DType dtype, const std::byte* x, std::byte* out, size_t count) {
  CheckF32(dtype);
  const Launch launch(device);
  for (size_t i = 0; i < count; ++i) launch.Out(out)[i] = Op()(launch.In(x)[i]);
}

struct ReluOf {
  float operator()(float x) const { return x < 0 ? 0 : x; }
};

void ReluGradient(Device* device, DType dtype, const std::byte* y, const std::byte* g,
                  std::byte* out, size_t count) {
  CheckF32(dtype);
  const Launch launch(device);
  for (size_t i = 0; i < count; ++i)
    launch.Out(out)[i] = launch.In(y)[i] <= 0 ? 0 : launch.In(g)[i];
}

void Sum(Device* device, DType dtype, const std::byte* x, const ops::AroundAxis& around,
         std::byte* out) {
  CheckF32(dtype);
  const Launch launch(device);
  for (size_t i = 0; i < around.outer; ++i) {
    for (size_t j = 0; j < around.inner; ++j) {
      double sum = 0;
      for (size_t k = 0; k < around.length; ++k)
        sum += launch.In(x)[(i * around.length + k) * around.inner + j];
      launch.Out(out)[i * around.inner + j] = static_cast<float>(sum);
    }
  }
}

void Cast(Device* device, DType from, const std::byte* x, DType to, std::byte* out, size_t count) {
  CheckF32(from);
  PSD_CHECK(to == DType::kF64, "this device casts to f64");
  const Launch launch(device);
  auto* const doubles = reinterpret_cast<double*>(launch.Bytes(out));
  for (size_t i = 0; i < count; ++i) doubles[i] = launch.In(x)[i];
}

void GatherRows(Device* device, const std::byte* table, size_t row_bytes, const int64_t* ids,
                size_t count, std::byte* out) {
  const Launch launch(device);
  const auto* const id = reinterpret_cast<const int64_t*>(launch.Bytes(ids));
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(launch.Bytes(out) + i * row_bytes,
                launch.Bytes(table) + static_cast<size_t>(id[i]) * row_bytes, row_bytes);
  }
}

void ScatterRows(Device* device, std::byte* table, size_t row_bytes, const int64_t* ids,
                 size_t count, const std::byte* rows) {
  const Launch launch(device);
  const auto* const id = reinterpret_cast<const int64_t*>(launch.Bytes(ids));
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(launch.Bytes(table) + static_cast<size_t>(id[i]) * row_bytes,
                launch.Bytes(rows) + i * row_bytes, row_bytes);
  }
}

float GradientAt(const Launch& launch, const kernels::OptimBatch& batch,
                 const kernels::OptimArrays& arrays, size_t i) {
  const auto limit = static_cast<float>(batch.gradient_limit);
  const float scaled = launch.In(arrays.gradient)[i] * static_cast<float>(batch.gradient_scale);
  return scaled > limit ? limit : scaled < -limit ? -limit : scaled;
}

void Sgd(Device* device, const kernels::SgdOptions& options, const kernels::OptimBatch& batch) {
  PSD_CHECK(batch.type == kernels::OptimType::kF32 && options.momentum == 0,
            "this device steps f32 without momentum");
  const Launch launch(device);
  for (size_t k = 0; k < batch.count; ++k) {
    const kernels::OptimArrays& arrays = batch.arrays[k];
    const float* const old = launch.In(arrays.parameter);
    for (size_t i = 0; i < arrays.size; ++i) {
      const float gradient = GradientAt(launch, batch, arrays, i) * (options.maximize ? -1 : 1) +
                             static_cast<float>(options.weight_decay) * old[i];
      launch.Out(arrays.next)[i] = old[i] - static_cast<float>(options.lr) * gradient;
    }
  }
}

void Adam(Device* device, const kernels::AdamOptions& options, const kernels::OptimBatch& batch) {
  PSD_CHECK(batch.type == kernels::OptimType::kF32 && !options.amsgrad &&
                options.weight_decay == 0 && !options.maximize,
            "this device steps f32 with the plain formula");
  const Launch launch(device);
  const double first_bias = 1 - std::pow(options.beta1, static_cast<double>(batch.step));
  const double second_bias = 1 - std::pow(options.beta2, static_cast<double>(batch.step));
  for (size_t k = 0; k < batch.count; ++k) {
    const kernels::OptimArrays& arrays = batch.arrays[k];
    float* const first = launch.Out(arrays.state[0]);
    float* const second = launch.Out(arrays.state[1]);
    for (size_t i = 0; i < arrays.size; ++i) {
      const double gradient = GradientAt(launch, batch, arrays, i);
      first[i] = static_cast<float>(options.beta1 * first[i] + (1 - options.beta1) * gradient);
      second[i] =
          static_cast<float>(options.beta2 * second[i] + (1 - options.beta2) * gradient * gradient);
      const double step =
          options.lr * (first[i] / first_bias) / (std::sqrt(second[i] / second_bias) + options.eps);
      launch.Out(arrays.next)[i] = static_cast<float>(launch.In(arrays.parameter)[i] - step);
    }
  }
}

}  // namespace

KernelTable ApartKernels() {
  KernelTable table;
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
  table.Add(optim::kSgd, Sgd);
  table.Add(optim::kAdam, Adam);
  return table;
}

}  // namespace psd::testing
