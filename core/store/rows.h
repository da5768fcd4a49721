#pragma once

// Rows: an embedding table, the second kind of parameter. It is updated in place, row by row, and
// is never pinned.
//
// Every row is read and written whole. Readers take no lock (a seqlock): each row belongs to one of
// a fixed number of stripes, whose counter is odd while one of its rows is being written. A reader
// that saw the counter change reads the row again. Two rows of one lookup may be from before and
// after the same step.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/store/value.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd::store {

// Thread-safe: any number of readers, one writer at a time (see WriteClaims).
class Rows : public Object {
 public:
  // Takes over `elements`, [rows, width]. Requires: it is the only handle to its memory, which is
  // charged to the store's budget.
  // Errors: INVALID_ARGUMENT for another rank, no rows, no width, or a dtype other than f32, f64.
  static absl::StatusOr<std::shared_ptr<Rows>> Create(Tensor elements, bool requires_grad);

  // "rows f32[1000000, 64]".
  std::string TypeName() const override;
  const Shape& shape() const { return table_.shape(); }
  DType dtype() const { return table_.dtype(); }
  bool requires_grad() const { return requires_grad_; }
  int64_t NumRows() const { return shape()[0]; }
  size_t width() const { return static_cast<size_t>(shape()[1]); }
  size_t bytes() const { return table_.NumBytes(); }
  // Starts at 1, and grows by one after each update. A reader that has read this version, and reads
  // rows after that, sees everything that the version has changed.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  // Returns the rows of `ids`: a tensor of the shape of `ids` with the width as a further axis.
  // Errors: those of ops::CheckRowIds; RESOURCE_EXHAUSTED.
  absl::StatusOr<Tensor> Read(const Tensor& ids) const;

  // ---- For the one writer only.

  // All rows, packed.
  const std::byte* elements() const { return table_.raw_data(); }
  // Replaces the rows `ids`, each whole. `next` has as many packed rows. Requires: all ids are in
  // range.
  void Write(absl::Span<const int64_t> ids, const std::byte* next);
  // Replaces all rows as one update. Returns the new version.
  // Errors: INVALID_ARGUMENT for another shape or dtype; RESOURCE_EXHAUSTED.
  absl::StatusOr<uint64_t> Assign(const Tensor& elements);
  // An update is complete.
  void FinishUpdate() { version_.fetch_add(1, std::memory_order_release); }

 private:
  static constexpr size_t kStripes = 1024;
  using Stripe = std::atomic<uint32_t>;

  Rows(Tensor elements, bool requires_grad)
      : table_(std::move(elements)), requires_grad_(requires_grad) {}
  size_t row_bytes() const { return width() * ItemSize(dtype()); }
  void ReadRow(int64_t id, std::byte* out) const;

  Tensor table_;  // the only handle
  const bool requires_grad_;
  std::atomic<uint64_t> version_{1};
  std::array<Stripe, kStripes> stripes_{};
};

// Returns the table if `value` is one, else null.
std::shared_ptr<Rows> AsRows(const Value& value);

}  // namespace psd::store
