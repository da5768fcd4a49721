#include "core/store/rows.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/base/tsan.h"
#include "core/tensor/ops/gather.h"
#include "core/tensor/ops/kernels.h"

namespace psd::store {
namespace {

// The number of rows by which a lookup prefetches ahead.
constexpr size_t kReadAhead = 12;
constexpr size_t kLineBytes = 64;
// The bytes that one thread reads at a time. To find them takes longer than to wake another thread.
constexpr size_t kPieceBytes = size_t{1} << 20;

// Copy a row while another thread may write or read it. The counter of its stripe shows whether the
// copy is whole. The fences keep the accesses to the counter from moving past the copy.
#ifndef PSD_TSAN
void CopyOut(const std::byte* row, size_t bytes, std::byte* out) {
  std::memcpy(out, row, bytes);
  std::atomic_thread_fence(std::memory_order_acquire);
}

void CopyIn(const std::byte* in, size_t bytes, std::byte* row) {
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(row, in, bytes);
}
#else
// For ThreadSanitizer, which does not understand fences: every load acquires, every store releases.
using Word = uint32_t;

void CopyOut(const std::byte* row, size_t bytes, std::byte* out) {
  const Word* from = reinterpret_cast<const Word*>(row);
  for (size_t i = 0; i < bytes / sizeof(Word); ++i) {
    const Word word = __atomic_load_n(from + i, __ATOMIC_ACQUIRE);
    std::memcpy(out + i * sizeof(Word), &word, sizeof(Word));
  }
}

void CopyIn(const std::byte* in, size_t bytes, std::byte* row) {
  Word* to = reinterpret_cast<Word*>(row);
  for (size_t i = 0; i < bytes / sizeof(Word); ++i) {
    Word word;
    std::memcpy(&word, in + i * sizeof(Word), sizeof(Word));
    __atomic_store_n(to + i, word, __ATOMIC_RELEASE);
  }
}
#endif

}  // namespace

absl::StatusOr<std::shared_ptr<Rows>> Rows::Create(Tensor elements, bool requires_grad,
                                                   std::shared_ptr<Allocator> memory) {
  const bool floats = elements.dtype() == DType::kF32 || elements.dtype() == DType::kF64;
  if (elements.rank() != 2 || elements.NumElements() == 0 || !floats) {
    return absl::InvalidArgumentError(absl::StrCat("rows cannot be made of ", elements.ToString(),
                                                   ": they are [rows, width] of f32 or f64, and "
                                                   "both extents are at least 1"));
  }
  PSD_CHECK(elements.IsContiguous(), "rows take over fresh memory");
  if (const Device* const device = elements.device(); device != nullptr) {
    PSD_RETURN_IF_ERROR(KernelOf(ops::kGatherRows, *device).status());
    PSD_RETURN_IF_ERROR(KernelOf(ops::kScatterRows, *device).status());
  }
  return std::shared_ptr<Rows>(new Rows(std::move(elements), requires_grad, std::move(memory)));
}

std::string Rows::TypeName() const {
  const std::string kind = absl::StrCat("rows ", DTypeName(dtype()), shape().ToString());
  return device() == nullptr ? kind : absl::StrCat(kind, " on ", DeviceName(device()));
}

void Rows::ReadRow(int64_t id, std::byte* out) const {
  const size_t bytes = row_bytes();
  const std::byte* row = table_.raw_data() + static_cast<size_t>(id) * bytes;
  const Stripe& stripe = stripes_[static_cast<size_t>(id) % kStripes];
  while (true) {
    const uint32_t before = stripe.load(std::memory_order_acquire);
    if (before % 2 == 0) {
      CopyOut(row, bytes, out);
      if (stripe.load(std::memory_order_relaxed) == before) return;
    } else {
      std::this_thread::yield();
    }
  }
}

// Makes the counter odd, when no other thread of the writer writes a row of this stripe. Returns
// what it was before.
uint32_t Rows::BeginWrite(Stripe& stripe) {
  uint32_t before = stripe.load(std::memory_order_relaxed);
  while (true) {
    if (before % 2 != 0) {
      std::this_thread::yield();
      before = stripe.load(std::memory_order_relaxed);
    } else if (stripe.compare_exchange_weak(before, before + 1, std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
      return before;
    }
  }
}

void Rows::ReadRows(const int64_t* ids, size_t count, std::byte* to) const {
  const size_t bytes = row_bytes();
  const std::byte* const table = table_.raw_data();
  for (size_t i = 0; i < count; ++i) {
    if (i + kReadAhead < count) {
      const std::byte* ahead = table + static_cast<size_t>(ids[i + kReadAhead]) * bytes;
      for (size_t line = 0; line < bytes; line += kLineBytes) __builtin_prefetch(ahead + line);
    }
    ReadRow(ids[i], to + i * bytes);
  }
}

absl::StatusOr<Tensor> Rows::Read(const Tensor& ids, const Helpers& helpers) const {
  if (!table_.OnHost()) return ops::GatherRows(table_, ids);
  PSD_RETURN_IF_ERROR(ops::CheckRowIds(ids, NumRows()));
  PSD_ASSIGN_OR_RETURN(const Tensor here, ids.ToHost());
  PSD_ASSIGN_OR_RETURN(const Tensor dense, here.Contiguous());
  Strides extents(ids.shape().extents().begin(), ids.shape().extents().end());
  extents.push_back(shape()[1]);
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(extents));
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(shape, dtype()));
  const int64_t* id = dense.data<int64_t>();
  const auto count = static_cast<size_t>(dense.NumElements());
  std::byte* const to = out.mutable_raw_data();
  const size_t of_piece = std::max<size_t>(1, kPieceBytes / row_bytes());
  ParallelFor(helpers, (count + of_piece - 1) / of_piece, [&](size_t piece) {
    const size_t first = piece * of_piece;
    ReadRows(id + first, std::min(of_piece, count - first), to + first * row_bytes());
  });
  return out;
}

absl::Status Rows::ReadElements(size_t offset, std::byte* to, size_t bytes) const {
  return CopyBytes(nullptr, to, device(), table_.address() + offset, bytes);
}

absl::Status Rows::WriteFromHost(absl::Span<const int64_t> ids, const std::byte* next) {
  if (ids.empty()) return absl::OkStatus();
  const auto count = static_cast<int64_t>(ids.size());
  PSD_ASSIGN_OR_RETURN(Tensor rows, Tensor::Empty(Shape{count, shape()[1]}, dtype()));
  std::memcpy(rows.mutable_raw_data(), next, rows.NumBytes());
  return ops::ScatterRows(table_, Tensor::Of<int64_t>(Shape{count}, ids), rows);
}

absl::Status Rows::Write(Changing, absl::Span<const int64_t> ids, const std::byte* next) {
  if (!table_.OnHost()) return WriteFromHost(ids, next);
  const size_t bytes = row_bytes();
  for (size_t i = 0; i < ids.size(); ++i) {
    Stripe& stripe = stripes_[static_cast<size_t>(ids[i]) % kStripes];
    const uint32_t before = BeginWrite(stripe);
    std::byte* row = table_.mutable_raw_data() + static_cast<size_t>(ids[i]) * bytes;
    CopyIn(next + i * bytes, bytes, row);
    stripe.store(before + 2, std::memory_order_release);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Rows::Assign(Changing changing, const Tensor& elements) {
  if (!elements.defined() || elements.shape() != shape() || elements.dtype() != dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it is ", TypeName(), ", and cannot become ",
        elements.defined() ? elements.ToString() : std::string("an undefined tensor")));
  }
  PSD_ASSIGN_OR_RETURN(const Tensor here, elements.ToHost());
  PSD_ASSIGN_OR_RETURN(const Tensor packed, here.Contiguous());
  if (!table_.OnHost()) {  // the device makes a single copy between the lookups
    PSD_RETURN_IF_ERROR(CopyBytes(device(), table_.mutable_address(), nullptr, packed.raw_data(),
                                  packed.NumBytes()));
    PSD_RETURN_IF_ERROR(device()->Synchronize());
    FinishUpdate(changing);
    return version();
  }
  std::array<int64_t, kStripes> ids;
  for (int64_t first = 0; first < NumRows();) {
    const int64_t count = std::min<int64_t>(NumRows() - first, ids.size());
    std::iota(ids.begin(), ids.begin() + count, first);
    const auto some = absl::MakeConstSpan(ids.data(), static_cast<size_t>(count));
    const std::byte* const next = packed.raw_data() + static_cast<size_t>(first) * row_bytes();
    PSD_RETURN_IF_ERROR(Write(changing, some, next));
    first += count;
  }
  FinishUpdate(changing);
  return version();
}

std::shared_ptr<Rows> AsRows(const Value& value) {
  const auto* object = value.As<std::shared_ptr<Object>>();
  return object == nullptr ? nullptr : std::dynamic_pointer_cast<Rows>(*object);
}

}  // namespace psd::store
