// gpu_rows_lookup, gpu_rows_update: a million skewed ids of a table of four million rows of 64
// floats. The table, the ids and the gradients are on the device. gpu_rows_lookup copies the rows
// of the ids; gpu_rows_update groups the ids, sums the gradients of each id, and steps its row by
// Adagrad. Floor: a copy within the device that reads and writes as many bytes, if each row of the
// table is read, and in an update written, once.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "bench/gpu/cases.h"
#include "bench/gpu/device_case.h"
#include "bench/gpu/on_device.h"
#include "bench/rows_floors.h"
#include "core/base/buffer.h"
#include "core/base/kernel_table.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/optim/rows/row_kernels.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/kernels.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows_optim.h"

namespace psd::bench {
namespace {

constexpr size_t kWidth = static_cast<size_t>(kTableWidth);
constexpr size_t kRowBytes = kWidth * sizeof(float);
constexpr size_t kCheckedIds = 100;

// The common base of both cases: the table and the ids.
class RowsWorkload : public CopyBoundWorkload {
 protected:
  absl::Status Prepare() override {
    rows_ = SizeOn<int64_t>(device(), 4'000'000, 300);
    ids_ = SkewedIds(SizeOn<size_t>(device(), 1 << 20, 200), rows_);
    PSD_ASSIGN_OR_RETURN(table_, Pattern(&device(), {rows_, kTableWidth}));
    PSD_ASSIGN_OR_RETURN(ids_there_,
                         CopyTo(&device(), Tensor::Of({static_cast<int64_t>(ids_.size())},
                                                      absl::MakeConstSpan(ids_))));
    return absl::OkStatus();
  }

  Stream* stream() const { return &device().default_stream(); }
  const std::vector<int64_t>& ids() const { return ids_; }
  const int64_t* ids_there() const {
    return reinterpret_cast<const int64_t*>(ids_there_.address());
  }
  size_t DifferentIds() const {
    return absl::flat_hash_set<int64_t>(ids_.begin(), ids_.end()).size();
  }
  size_t rows() const { return static_cast<size_t>(rows_); }
  Tensor& table() { return table_; }
  const Tensor& table() const { return table_; }

 private:
  int64_t rows_ = 0;
  std::vector<int64_t> ids_;
  Tensor table_, ids_there_;
};

class LookupWorkload : public RowsWorkload {
 protected:
  absl::Status Prepare() override {
    PSD_RETURN_IF_ERROR(RowsWorkload::Prepare());
    PSD_ASSIGN_OR_RETURN(gather_, KernelOf(ops::kGatherRows, device()));
    const auto count = static_cast<int64_t>(ids().size());
    PSD_ASSIGN_OR_RETURN(out_, Pattern(&device(), {count, kTableWidth}, -1));
    return absl::OkStatus();
  }
  size_t TrafficBytes() const override {
    return (DifferentIds() + ids().size()) * kRowBytes + ids().size() * sizeof(int64_t);
  }
  absl::Status Add() override {
    gather_(stream(), table().address(), kRowBytes, ids_there(), ids().size(),
            out_.mutable_address());
    return absl::OkStatus();
  }
  absl::Status Check() const override {
    for (const size_t first : {size_t{0}, ids().size() - kCheckedIds}) {
      std::vector<float> want;
      for (size_t i = first; i < first + kCheckedIds; ++i) {
        for (size_t j = 0; j < kWidth; ++j)
          want.push_back(PatternAt(static_cast<size_t>(ids()[i]) * kWidth + j));
      }
      PSD_ASSIGN_OR_RETURN(const std::vector<float> got,
                           ReadFloats(out_, first * kWidth, want.size()));
      PSD_RETURN_IF_ERROR(CheckNear("the lookup", got, want));
    }
    return absl::OkStatus();
  }

 private:
  ops::GatherRowsKernel* gather_ = nullptr;
  Tensor out_;
};

class UpdateWorkload : public RowsWorkload {
 protected:
  absl::Status Prepare() override {
    PSD_RETURN_IF_ERROR(RowsWorkload::Prepare());
    PSD_ASSIGN_OR_RETURN(group_, KernelOf(optim::kGroupRows, device()));
    PSD_ASSIGN_OR_RETURN(step_rows_, KernelOf(optim::kAdagradRows, device()));
    PSD_ASSIGN_OR_RETURN(auto* const scratch_of, KernelOf(optim::kGroupRowsScratch, device()));
    const size_t count = ids().size();
    PSD_ASSIGN_OR_RETURN(const size_t scratch_bytes, scratch_of(stream(), count, rows()));
    PSD_ASSIGN_OR_RETURN(scratch_, Take(scratch_bytes));
    PSD_ASSIGN_OR_RETURN(
        gradients_, Pattern(&device(), {static_cast<int64_t>(count), kTableWidth}, kGradientScale));
    PSD_ASSIGN_OR_RETURN(sums_,
                         Tensor::Full(table().shape(), DType::kF32, kFirstSum, &device().memory()));
    kernels::DeviceRowGroups& groups = batch_.groups;
    groups.room = groups.size = count;
    PSD_RETURN_IF_ERROR(TakeArray(count, groups.ids));
    PSD_RETURN_IF_ERROR(TakeArray(count + 1, groups.begins));
    PSD_RETURN_IF_ERROR(TakeArray(count, groups.positions));
    PSD_RETURN_IF_ERROR(TakeArray(1, groups.count));
    batch_.table = MutableFloatAt(table());
    batch_.rows = rows();
    batch_.width = kWidth;
    batch_.gradients = gradients_.address();
    batch_.state[0] = MutableFloatAt(sums_);
    return absl::OkStatus();
  }
  size_t TrafficBytes() const override {
    return ids().size() * (kRowBytes + sizeof(int64_t)) + DifferentIds() * 4 * kRowBytes;
  }
  absl::Status Add() override {
    group_(stream(), ids_there(), rows(), batch_.groups, scratch_->data());
    step_rows_(stream(), options_, ++step_, batch_);
    return absl::OkStatus();
  }
  absl::Status Check() const override {
    for (const size_t first : {size_t{0}, ids().size() - kCheckedIds}) {
      for (size_t i = first; i < first + kCheckedIds; i += 10)
        PSD_RETURN_IF_ERROR(CheckRow(ids()[i]));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr float kGradientScale = 1e-3f;
  static constexpr double kFirstSum = 1e-4;

  absl::StatusOr<std::shared_ptr<Block>> Take(size_t bytes) {
    return device().memory().Allocate(bytes);
  }
  template <typename T>
  absl::Status TakeArray(size_t size, T*& array) {
    PSD_ASSIGN_OR_RETURN(blocks_.emplace_back(), Take(size * sizeof(T)));
    array = reinterpret_cast<T*>(blocks_.back()->data());
    return absl::OkStatus();
  }
  absl::Status CheckRow(int64_t id) const {
    std::vector<double> gradient(kWidth, 0);
    for (size_t i = 0; i < ids().size(); ++i) {
      if (ids()[i] != id) continue;
      for (size_t j = 0; j < kWidth; ++j) gradient[j] += kGradientScale * PatternAt(i * kWidth + j);
    }
    const size_t first = static_cast<size_t>(id) * kWidth;
    std::vector<float> want;
    for (size_t j = 0; j < kWidth; ++j) {
      const double g = gradient[j], sum = kFirstSum + g * g;
      const double step = options_.lr * g / (std::sqrt(sum) + options_.eps);
      want.push_back(static_cast<float>(PatternAt(first + j) - step));
    }
    PSD_ASSIGN_OR_RETURN(const std::vector<float> got, ReadFloats(table(), first, kWidth));
    return CheckNear("the update", got, want);
  }

  const kernels::RowAdagradOptions options_ = {};
  optim::GroupRowsKernel* group_ = nullptr;
  optim::StepRowsKernel<kernels::RowAdagradOptions>* step_rows_ = nullptr;
  Tensor gradients_, sums_;
  std::shared_ptr<Block> scratch_;
  std::vector<std::shared_ptr<Block>> blocks_;  // of the groups
  kernels::DeviceRowBatch batch_;
  int64_t step_ = 0;
};

template <typename T>
Case RowsCase(const std::string& name) {
  return DeviceCase(name, [] { return std::make_unique<T>(); });
}

}  // namespace

std::vector<Case> GpuRowsCases() {
  return {RowsCase<LookupWorkload>("gpu_rows_lookup"), RowsCase<UpdateWorkload>("gpu_rows_update")};
}

}  // namespace psd::bench
