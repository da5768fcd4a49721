#pragma once

// Rows: an embedding table, the second kind of parameter. It is updated in place, row by row, and
// is never pinned.
//
// Every row is read and written whole. A device does its work in order, so a lookup there sees an
// update of rows either entirely or not at all. On the host readers take no lock (a seqlock): each
// row belongs to one of a fixed number of stripes, whose counter is odd while one of its rows is
// being written. A reader that saw the counter change reads the row again. Two rows of one lookup
// may be from before and after the same step.

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
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/parallel_for.h"
#include "core/store/changing.h"
#include "core/store/value.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd::store {

// Thread-safe: any number of readers, one writer at a time (see WriteClaims).
class Rows : public Object {
 public:
  // Takes over `elements`, [rows, width]. Requires: it is the only handle to its memory, which is
  // charged to the store's budget. On a device, `memory` is where it came from; arrays that are
  // stepped with the table come from there too. For a table on the host it may be null.
  // Errors: INVALID_ARGUMENT for another rank, no rows, no width, or a dtype other than f32, f64;
  // UNIMPLEMENTED naming a device that cannot copy rows.
  static absl::StatusOr<std::shared_ptr<Rows>> Create(Tensor elements, bool requires_grad,
                                                      std::shared_ptr<Allocator> memory = nullptr);

  // For example "rows f32[1000000, 64]", or "rows f32[1000000, 64] on cuda:0".
  std::string TypeName() const override;
  const Shape& shape() const { return table_.shape(); }
  DType dtype() const { return table_.dtype(); }
  bool requires_grad() const { return requires_grad_; }
  int64_t NumRows() const { return shape()[0]; }
  size_t width() const { return static_cast<size_t>(shape()[1]); }
  size_t bytes() const { return table_.NumBytes(); }
  // The device that has the table; null for the host.
  Device* device() const { return table_.device(); }
  // Null for a table on the host.
  const std::shared_ptr<Allocator>& memory() const { return memory_; }
  // The version starts at 1, and grows by one after each update. A reader that has read this
  // version, and then reads rows, sees everything that the version has changed.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  // Returns the rows of `ids`: a tensor of the shape of `ids` with the width as a further axis.
  // The result is on the table's device. The host divides many rows among this thread and
  // `helpers`. Errors: those of ops::CheckRowIds; RESOURCE_EXHAUSTED.
  absl::StatusOr<Tensor> Read(const Tensor& ids, const Helpers& helpers = {}) const;

  // ---- To be called only by the one writer.

  // Returns all rows, packed. Requires: the table is on the host.
  const std::byte* elements() const { return table_.raw_data(); }
  // Copies `bytes` bytes of the packed rows from `offset` on to the host. Errors: those of the
  // device.
  absl::Status ReadElements(size_t offset, std::byte* to, size_t bytes) const;
  // Replaces the rows `ids`, each whole. `next` has as many packed rows, on the host. If the table
  // is on the host, several threads of the writer may call this at the same time. Requires: all ids
  // are in range and no two, also of these threads, are equal.
  // Errors: those of the device, and RESOURCE_EXHAUSTED there; on the host none.
  absl::Status Write(Changing, absl::Span<const int64_t> ids, const std::byte* next);
  // Returns the address of all rows, packed, for a kernel of the table's device that changes rows
  // in place. Requires: the table is on a device.
  std::byte* AddressThere(Changing) { return table_.mutable_address(); }
  // Replaces all rows as one update. Returns the new version.
  // Errors: INVALID_ARGUMENT for another shape or dtype; RESOURCE_EXHAUSTED.
  absl::StatusOr<uint64_t> Assign(Changing, const Tensor& elements);
  // To be called when an update is complete.
  void FinishUpdate(Changing) { version_.fetch_add(1, std::memory_order_release); }

 private:
  static constexpr size_t kStripes = 1024;
  using Stripe = std::atomic<uint32_t>;

  Rows(Tensor elements, bool requires_grad, std::shared_ptr<Allocator> memory)
      : table_(std::move(elements)), requires_grad_(requires_grad), memory_(std::move(memory)) {}
  // Replaces rows of a table on a device by rows on the host.
  absl::Status WriteFromHost(absl::Span<const int64_t> ids, const std::byte* next);
  size_t row_bytes() const { return width() * ItemSize(dtype()); }
  void ReadRow(int64_t id, std::byte* out) const;
  // Reads the rows of `count` ids, one after the other.
  void ReadRows(const int64_t* ids, size_t count, std::byte* to) const;
  static uint32_t BeginWrite(Stripe& stripe);

  Tensor table_;  // this is the only handle
  const bool requires_grad_;
  const std::shared_ptr<Allocator> memory_;  // shared with the store; null on the host
  std::atomic<uint64_t> version_{1};
  std::array<Stripe, kStripes> stripes_{};
};

// Returns the table if `value` is one, otherwise null.
std::shared_ptr<Rows> AsRows(const Value& value);

}  // namespace psd::store
