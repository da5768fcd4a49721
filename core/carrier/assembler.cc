#include "core/carrier/assembler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::carrier {
namespace {

constexpr size_t kSharedBlockBytes = size_t{256} << 10;
constexpr size_t kSmallBufferBytes = size_t{64} << 10;
// Headers and tables of buffers of up to this size are not charged: the readers that use them are
// bounded in number.
constexpr size_t kSmallHeaderBytes = 128;
constexpr size_t kSmallTableBytes = size_t{4} << 10;
// A charged header is charged this many bytes for each of its bytes. A header is parsed into
// columns, and these into values, both of which may be larger: an empty list has two bytes in a
// header, and takes 100 in memory.
constexpr size_t kMemoryPerHeaderByte = 64;
// The charge for the bookkeeping of a transfer, without its shape.
constexpr size_t kTransferBytes = 512;

size_t Padded(size_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// The buffers [first, end) that share one block, which has `bytes` bytes.
struct Group {
  size_t end = 0;
  size_t bytes = 0;
};

Group NextGroup(const std::vector<size_t>& buffer_bytes, size_t first) {
  Group group{first + 1, buffer_bytes[first]};
  if (buffer_bytes[first] >= kSmallBufferBytes) return group;
  while (group.end < buffer_bytes.size()) {
    size_t next = buffer_bytes[group.end];
    if (next >= kSmallBufferBytes || Padded(group.bytes) + next > kSharedBlockBytes) break;
    group.bytes = Padded(group.bytes) + next;
    ++group.end;
  }
  return group;
}

// Returns how many bytes of a message are charged besides its buffers.
size_t ChargedHeaderBytes(const MessageShape& shape) {
  const size_t header = shape.header_bytes <= kSmallHeaderBytes ? 0 : shape.header_bytes;
  const size_t table = shape.buffer_bytes.size() * sizeof(Buffer);
  return header * kMemoryPerHeaderByte + (table <= kSmallTableBytes ? 0 : table);
}

absl::StatusOr<MemoryCharge> ChargeHeader(const MessageShape& shape, const ReceiveMemory& memory) {
  const size_t bytes = ChargedHeaderBytes(shape);
  return bytes == 0 ? MemoryCharge() : memory.headers->Charge(bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MessageAssembly>> MessageAssembly::Create(
    const MessageShape& shape, const ReceiveMemory& memory) {
  auto assembly = std::make_unique<MessageAssembly>();
  PSD_ASSIGN_OR_RETURN(assembly->header_charge_, ChargeHeader(shape, memory));
  assembly->targets_.reserve(shape.buffer_bytes.size());
  PSD_RETURN_IF_ERROR(assembly->AllocateBlocks(shape, *memory.buffers));
  assembly->header_.resize(shape.header_bytes);
  return assembly;
}

std::unique_ptr<MessageAssembly> MessageAssembly::KeepHeader(const MessageShape& shape) {
  auto assembly = std::make_unique<MessageAssembly>();
  assembly->header_.resize(std::min(shape.header_bytes, kKeptHeaderBytes));
  return assembly;
}

size_t MessageAssembly::BytesFor(const MessageShape& shape) {
  size_t bytes = ChargedHeaderBytes(shape);
  for (size_t first = 0; first < shape.buffer_bytes.size();) {
    const Group group = NextGroup(shape.buffer_bytes, first);
    bytes += group.bytes;
    first = group.end;
  }
  return bytes;
}

absl::Status MessageAssembly::AllocateBlocks(const MessageShape& shape, Allocator& allocator) {
  size_t end = shape.header_bytes;
  for (size_t first = 0; first < shape.buffer_bytes.size();) {
    Group group = NextGroup(shape.buffer_bytes, first);
    PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block, allocator.Allocate(group.bytes));
    std::byte* data = block->data();
    for (; first < group.end; ++first) {
      size_t size = shape.buffer_bytes[first];
      end += size;
      targets_.push_back({data, size, end, block});
      data += Padded(size);
    }
  }
  return absl::OkStatus();
}

void MessageAssembly::Fill(size_t offset, ByteReader bytes) {
  if (offset < header_.size()) {
    size_t part = std::min(bytes.remaining(), header_.size() - offset);
    bytes.Read(&header_[offset], part);
    offset += part;
  }
  auto target = std::upper_bound(targets_.begin(), targets_.end(), offset,
                                 [](size_t at, const Target& t) { return at < t.end; });
  for (; bytes.remaining() > 0 && target != targets_.end(); ++target) {
    size_t skip = offset - (target->end - target->size);
    size_t part = std::min(bytes.remaining(), target->size - skip);
    if (part > 0) bytes.Read(target->data + skip, part);
    offset += part;
  }
}

Message MessageAssembly::Take() {
  Message message;
  message.header = std::move(header_);
  message.charge = std::move(header_charge_);
  message.buffers.reserve(targets_.size());
  for (Target& target : targets_) {
    message.buffers.emplace_back(std::move(target.block), target.data, target.size);
  }
  targets_.clear();
  return message;
}

absl::StatusOr<Message> AssembleWhole(const MessageFrame& frame, const ReceiveMemory& memory) {
  if (frame.shape.buffer_bytes.empty()) {
    Message message;
    PSD_ASSIGN_OR_RETURN(message.charge, ChargeHeader(frame.shape, memory));
    message.header.resize(frame.shape.header_bytes);
    ByteReader payload = frame.payload;
    payload.Read(message.header.data(), message.header.size());
    return message;
  }
  PSD_ASSIGN_OR_RETURN(auto assembly, MessageAssembly::Create(frame.shape, memory));
  assembly->Fill(0, frame.payload);
  return assembly->Take();
}

RefusedMessage RefuseWhole(const MessageFrame& frame, absl::Status why) {
  const auto assembly = MessageAssembly::KeepHeader(frame.shape);
  assembly->Fill(0, frame.payload);
  return {assembly->Take().header, std::move(why)};
}

struct Assembler::Transfer {
  MessageShape shape;
  MemoryCharge charge;       // for `shape` and the rest of this struct
  MemoryCharge kept_charge;  // for the beginning of the header, once it is refused
  size_t piece_bytes = 0;
  size_t total_bytes = 0;
  size_t cost_bytes = 0;
  size_t needed_bytes = 0;  // from the accounts
  size_t held_bytes = 0;    // `needed_bytes` if it holds memory
  std::vector<bool> begun;  // one per piece
  size_t unfinished = 0;    // pieces not yet filled
  // Whether it has made progress since the last look for stalls.
  bool moved = true;
  // `unfinished` at the last look; 0: it held no memory then.
  size_t unfinished_before = 0;
  PlaceInLine place;                          // while it has no assembly
  std::shared_ptr<MessageAssembly> assembly;  // shared with the slots of its pieces; null: no room
  absl::Status refused;                       // not OK: the assembly keeps only the header
};

Assembler::Assembler(const Limits& limits, ReceiveMemory memory,
                     std::shared_ptr<MemoryAccount> bookkeeping, WaitingRules waiting)
    : limits_(limits),
      memory_(std::move(memory)),
      bookkeeping_(std::move(bookkeeping)),
      waiting_(std::move(waiting)) {}

Assembler::~Assembler() = default;

absl::Status Assembler::OnAnnounce(const AnnounceFrame& announce) {
  auto known = transfers_.find(announce.transfer);
  if (known != transfers_.end()) {
    const Transfer& transfer = *known->second;
    if (transfer.shape == announce.shape && transfer.piece_bytes == announce.piece_bytes) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("transfer ", announce.transfer, " was announced twice, differently"));
  }
  if (announce.transfer < next_room_) {
    return absl::InvalidArgumentError(
        absl::StrCat("transfer ", announce.transfer, " was announced when it was over"));
  }
  if (transfers_.size() >= kMaxTransfers) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMaxTransfers, " messages in pieces at once"));
  }
  auto transfer = std::make_unique<Transfer>();
  transfer->cost_bytes = AssemblyBytes(announce.shape);
  if (transfer->cost_bytes > limits_.max_assembly_bytes - assembly_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transfer ", announce.transfer, " of ", transfer->cost_bytes, " bytes on top of ",
        assembly_bytes_,
        " partly received ones exceeds max_assembly_bytes = ", limits_.max_assembly_bytes));
  }
  PSD_ASSIGN_OR_RETURN(
      transfer->charge,
      bookkeeping_->Charge(kTransferBytes + announce.shape.buffer_bytes.size() * sizeof(size_t)));
  transfer->needed_bytes = MessageAssembly::BytesFor(announce.shape);
  transfer->shape = announce.shape;
  transfer->piece_bytes = announce.piece_bytes;
  transfer->total_bytes = announce.shape.TotalBytes();
  size_t pieces = (transfer->total_bytes + announce.piece_bytes - 1) / announce.piece_bytes;
  transfer->begun.resize(pieces);
  transfer->unfinished = pieces;
  assembly_bytes_ += transfer->cost_bytes;
  transfers_.emplace(announce.transfer, std::move(transfer));
  return absl::OkStatus();
}

absl::StatusOr<Assembler::Room> Assembler::FindRoom(uint64_t id, absl::Time now, bool may_wait) {
  auto found = transfers_.find(id);
  if (found == transfers_.end()) return Room::kThere;  // BeginPiece says what is wrong
  Transfer& transfer = *found->second;
  if (transfer.assembly != nullptr) {
    transfer.moved = true;
    return Room::kThere;
  }
  // A transfer may wait as long as the first transfer without memory is known and makes progress.
  if (transfers_.contains(next_room_)) transfer.moved = true;
  if (id != next_room_) return Room::kNone;
  PSD_ASSIGN_OR_RETURN(const bool room, Seek(transfer, now, may_wait));
  if (!room) return Room::kNone;
  ++next_room_;
  const bool awaited = transfers_.size() > 1 || transfer.begun.size() > kUntoldPieces;
  return awaited ? Room::kFound : Room::kThere;
}

absl::StatusOr<bool> Assembler::Seek(Transfer& transfer, absl::Time now, bool may_wait) {
  const MemoryAccount& account = *memory_.headers;
  const size_t most = account.most_bytes();
  const bool greedy = held_bytes_ > 0 && held_bytes_ + transfer.needed_bytes > most / 2;
  if (may_wait && greedy && transfer.place.OthersWait(waiting_)) {
    transfer.place.Leave();
    return false;
  }
  const bool fits = account.limit_bytes() != 0 && transfer.needed_bytes <= most;
  const Waits waits = !fits ? Waits::kNever : may_wait ? Waits::kYes : Waits::kNo;
  absl::StatusOr<bool> room =
      transfer.place.Seek(waiting_, now, waits, transfer.needed_bytes, [&]() -> absl::Status {
        PSD_ASSIGN_OR_RETURN(transfer.assembly, MessageAssembly::Create(transfer.shape, memory_));
        transfer.held_bytes = transfer.needed_bytes;
        held_bytes_ += transfer.held_bytes;
        return absl::OkStatus();
      });
  if (room.ok()) return room;
  PSD_RETURN_IF_ERROR(Refuse(transfer, room.status()));
  return true;
}

absl::Status Assembler::Refuse(Transfer& transfer, const absl::Status& why) {
  const size_t kept = std::min(transfer.shape.header_bytes, kKeptHeaderBytes);
  if (kept > kTransferBytes) {
    PSD_ASSIGN_OR_RETURN(transfer.kept_charge, bookkeeping_->Charge(kept));
  }
  transfer.refused = why;
  transfer.assembly = MessageAssembly::KeepHeader(transfer.shape);
  return absl::OkStatus();
}

absl::StatusOr<Assembler::Slot> Assembler::BeginPiece(const PieceFrame& piece) {
  auto found = transfers_.find(piece.transfer);
  if (found == transfers_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of transfer ", piece.transfer, ", which is not under way"));
  }
  Transfer& transfer = *found->second;
  size_t bytes = piece.payload.remaining();
  size_t index = piece.offset / transfer.piece_bytes;
  if (piece.offset >= transfer.total_bytes || piece.offset % transfer.piece_bytes != 0 ||
      bytes != std::min(transfer.piece_bytes, transfer.total_bytes - piece.offset)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a piece of ", bytes, " bytes at ", piece.offset, " does not fit transfer ", piece.transfer,
        " of ", transfer.total_bytes, " bytes in pieces of ", transfer.piece_bytes));
  }
  if (transfer.begun[index]) {
    return absl::InvalidArgumentError(absl::StrCat("the piece at ", piece.offset, " of transfer ",
                                                   piece.transfer, " came twice"));
  }
  transfer.begun[index] = true;
  Slot slot;
  slot.transfer_ = piece.transfer;
  slot.offset_ = piece.offset;
  slot.payload_ = piece.payload;
  slot.assembly_ = transfer.assembly;
  return slot;
}

std::optional<Assembler::Whole> Assembler::EndPiece(const Slot& slot) {
  auto found = transfers_.find(slot.transfer_);
  if (found == transfers_.end()) return std::nullopt;  // given up meanwhile
  Transfer& transfer = *found->second;
  if (--transfer.unfinished > 0) return std::nullopt;
  Whole whole{transfer.assembly->Take(), std::move(transfer.refused)};
  assembly_bytes_ -= transfer.cost_bytes;
  held_bytes_ -= transfer.held_bytes;
  transfers_.erase(found);
  return whole;
}

absl::Status Assembler::LookForStall() {
  const uint64_t joined = waiting_.line->joined();
  const bool needed = joined != std::exchange(joined_before_, joined);
  for (auto& [id, transfer] : transfers_) {
    const size_t pieces = transfer->begun.size();
    const size_t unfinished = transfer->unfinished;
    const size_t before =
        std::exchange(transfer->unfinished_before, transfer->held_bytes > 0 ? unfinished : 0);
    if (!std::exchange(transfer->moved, false)) {
      return absl::DeadlineExceededError(
          absl::StrCat("the peer stopped in the middle of a message: of its ", pieces, " pieces, ",
                       unfinished, " never came"));
    }
    const size_t least = (pieces + kMostLooks - 1) / kMostLooks;
    if (needed && before != 0 && before - unfinished < least) {
      return WithRemedy(absl::DeadlineExceededError(absl::StrCat(
                            "the peer sends too slowly for the ", transfer->held_bytes,
                            " bytes of memory that its message holds and others wait for: of its ",
                            pieces, " pieces, ", before - unfinished,
                            " came since the last look, and ", least, " must come")),
                        "send less in one message");
    }
  }
  return absl::OkStatus();
}

void Assembler::Clear() {
  transfers_.clear();
  assembly_bytes_ = 0;
  held_bytes_ = 0;
}

}  // namespace psd::carrier
