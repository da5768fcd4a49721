#include "client/pieces.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/services/checkpoint/checkpoint_service.h"

namespace psd {
namespace {

using services::CheckpointService;
using services::PieceRange;

constexpr size_t kPiecesAhead = 3;

// Cuts arrays, given by their sizes in bytes, into pieces.
class PieceRanges {
 public:
  PieceRanges(std::vector<uint64_t> arrays, uint64_t piece_bytes)
      : arrays_(std::move(arrays)), piece_bytes_(piece_bytes) {}

  // Returns the next piece, or nullopt after the last one.
  std::optional<PieceRange> Next() {
    while (array_ < arrays_.size() && first_byte_ == arrays_[array_]) {
      ++array_;
      first_byte_ = 0;
    }
    if (array_ == arrays_.size()) return std::nullopt;
    const PieceRange range{array_, first_byte_,
                           std::min(piece_bytes_, arrays_[array_] - first_byte_)};
    first_byte_ += range.bytes;
    return range;
  }

 private:
  const std::vector<uint64_t> arrays_;
  const uint64_t piece_bytes_;
  size_t array_ = 0;
  uint64_t first_byte_ = 0;
};

// Keeps values, or room for values, reserved on an owner for as long as this object lives.
class Held {
 public:
  Held(CheckpointService& service, const std::string& owner, GlobalId id,
       const rpc::CallOptions& call)
      : service_(service), owner_(owner), id_(id), call_(call) {}
  // If this message is lost, the owner releases the memory when our session there ends.
  ~Held() { service_.Release(owner_, id_, call_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  GlobalId id() const { return id_; }

 private:
  CheckpointService& service_;
  const std::string owner_;
  const GlobalId id_;
  const rpc::CallOptions call_;
};

absl::Status SaveAll(const Held& held, size_t number, const std::vector<PieceTarget>& targets,
                     SaveFiles& files, SavePace& pace, const PieceOptions& options) {
  std::vector<uint64_t> sizes;
  for (const PieceTarget& target : targets) sizes.push_back(target.bytes);
  PieceRanges ranges(std::move(sizes), options.piece_bytes);
  std::deque<std::pair<PieceRange, Future<services::FetchedPiece>>> asked;
  for (bool more = true; more || !asked.empty();) {
    const absl::Time started = Clock::Steady().Now();
    while (more && asked.size() < (pace.Training(started) ? 1 : kPiecesAhead)) {
      const std::optional<PieceRange> range = ranges.Next();
      more = range.has_value();
      if (more)
        asked.emplace_back(*range, files.CopyPiece(held.id(), *range, targets[range->array].file));
    }
    if (asked.empty()) break;
    const auto [range, answer] = std::move(asked.front());
    asked.pop_front();
    const auto& piece = answer.Wait();
    if (!piece.ok()) return piece.status();
    PSD_RETURN_IF_ERROR(files.TakePiece(targets[range.array].file, *piece));
    PSD_RETURN_IF_ERROR(options.tell(range.bytes));
    const absl::Time now = Clock::Steady().Now();
    pace.Heard(number, piece->steps_accepted, now);
    if (more || !asked.empty()) absl::SleepFor(pace.PauseAfter(now - started, now));
  }
  return absl::OkStatus();
}

absl::Status FillAll(CheckpointService& service, const std::string& owner, GlobalId room,
                     const std::vector<PieceSource>& sources, const PieceOptions& options) {
  std::vector<uint64_t> sizes;
  for (const PieceSource& source : sources) sizes.push_back(source.spec.bytes());
  PieceRanges ranges(std::move(sizes), options.piece_bytes);
  std::deque<Future<Unit>> under_way;
  std::optional<PieceRange> next = ranges.Next();
  while (next.has_value() || !under_way.empty()) {
    if (!next.has_value() || under_way.size() == kPiecesAhead) {
      const absl::Status filled = under_way.front().Wait().status();
      under_way.pop_front();
      PSD_RETURN_IF_ERROR(filled);
      continue;
    }
    PSD_ASSIGN_OR_RETURN(Buffer bytes, sources[next->array].read(next->first_byte, next->bytes));
    under_way.push_back(service.Fill(owner, room, *next, std::move(bytes), options.call));
    PSD_RETURN_IF_ERROR(options.tell(next->bytes));
    next = ranges.Next();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<services::ExportedItem> SaveInPieces(worker::Runtime& runtime,
                                                    const std::string& owner, size_t number,
                                                    const services::ExportItem& item,
                                                    const std::vector<PieceTarget>& targets,
                                                    SaveFiles& files, SavePace& pace,
                                                    const PieceOptions& options) {
  const GlobalId id = runtime.ids().Next();
  const auto answer = runtime.checkpoints().Hold(owner, item, id, options.call);
  const auto& exported = answer.Wait();
  if (!exported.ok()) return exported.status();
  const Held held(runtime.checkpoints(), owner, id, options.call);
  PSD_RETURN_IF_ERROR(SaveAll(held, number, targets, files, pace, options));
  return exported->items[0];
}

absl::Status LoadInPieces(worker::Runtime& runtime, const std::string& owner,
                          services::ImportItem item, const std::vector<PieceSource>& sources,
                          const PieceOptions& options) {
  CheckpointService& service = runtime.checkpoints();
  item.room = runtime.ids().Next();
  std::vector<checkpoint::TensorSpec> arrays;
  for (const PieceSource& source : sources) arrays.push_back(source.spec);
  PSD_RETURN_IF_ERROR(service.MakeRoom(owner, item.room, arrays, options.call).Wait().status());
  // The import uses the room up; then releasing it does nothing.
  const Held room(service, owner, item.room, options.call);
  PSD_RETURN_IF_ERROR(FillAll(service, owner, item.room, sources, options));
  return service.Import(owner, {item}, {}, options.call).Wait().status();
}

}  // namespace psd
