// The receiving half of GrpcLink.

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/carrier/grpc/byte_buffer.h"
#include "core/carrier/grpc/grpc_link.h"

namespace psd::carrier {
namespace {

// The interval at which a message that waits for room tries again. Freed memory does not call it
// back, because memory may be freed under any lock.
constexpr absl::Duration kRoomTick = absl::Milliseconds(5);

}  // namespace

void GrpcLink::OnRead(const std::shared_ptr<GrpcStream>& stream, const grpc::ByteBuffer& bytes) {
  HandleInbound(stream, bytes, {});
}

void GrpcLink::HandleInbound(const std::shared_ptr<GrpcStream>& stream,
                             const grpc::ByteBuffer& bytes, Inbound inbound) {
  if (Ended()) return stream->Read();  // reads on only to notice the stream's end
  absl::StatusOr<bool> all = HandleFrames(stream, bytes, inbound);
  if (all.ok() && !*all && !AwaitRoom(stream, inbound)) all = HandleFrames(stream, bytes, inbound);
  if (!all.ok()) {
    const bool no_memory = absl::IsResourceExhausted(all.status());
    return End(Annotate(no_memory ? absl::UnavailableError(absl::StrCat("no memory to receive: ",
                                                                        all.status().message()))
                                  : all.status(),
                        Description()));
  }
  if (*all) return Deliver(stream, std::move(inbound.received), /*more=*/true);
  // The messages before the waiting frame may be what takes up the room, so they are delivered now.
  Deliver(stream, std::exchange(inbound.received, {}), /*more=*/false);
  core_->RunAfter(kRoomTick, [self = shared_from_this(), stream, bytes,
                              inbound = std::move(inbound)]() mutable {
    self->HandleInbound(stream, bytes, std::move(inbound));
  });
}

bool GrpcLink::AwaitRoom(const std::shared_ptr<GrpcStream>& stream, Inbound& inbound) {
  if (inbound.unread != nullptr || !inbound.may_wait) return true;
  Kind kind = kPieces;
  {
    MutexLock lock(send_mutex_);
    kind = KindOf(RoleOf(NumberOf(stream.get())));
  }
  // The peer may have sent all that it may send before this end reads.
  MutexLock lock(receive_mutex_);
  inbound.unread = unread_[kind].lock();
  if (inbound.unread == nullptr) {
    std::optional<GrpcCore::Unread> unread = core_->KeepUnread(UnreadBytesOfLink(core_->options()));
    if (unread.has_value()) {
      inbound.unread = std::make_shared<GrpcCore::Unread>(*std::move(unread));
      unread_[kind] = inbound.unread;
    }
  }
  return inbound.may_wait = inbound.unread != nullptr;
}

void GrpcLink::CountRead(StreamRole role, size_t bytes, const Inbound& inbound) {
  std::optional<uint64_t> told;
  {
    MutexLock lock(receive_mutex_);
    told = read_[KindOf(role)].Add(bytes, /*at_once=*/inbound.unread != nullptr);
  }
  if (!told.has_value()) return;
  Tell([&](FrameEncoder& encoder) { encoder.Read({role, *told}); });
}

void GrpcLink::Deliver(const std::shared_ptr<GrpcStream>& stream, Received received, bool more) {
  if (received.empty()) return more ? stream->Read() : void();
  const size_t bytes = received.Bytes();
  more = more && !received.goodbye;
  const bool ahead = unhandled_bytes_.fetch_add(bytes) < kReadAheadBytes;
  const bool more_later = more && !ahead;
  const bool drain = runner_.Add([self = shared_from_this(), stream, bytes, more_later,
                                  received = std::move(received)]() mutable {
    const bool goes_on = self->Handle(received);
    self->unhandled_bytes_.fetch_sub(bytes);
    if (goes_on && more_later) stream->Read();
  });
  // The next messages are added behind these, on whatever thread they come.
  if (more && ahead) stream->Read();
  if (drain) runner_.Drain();
}

bool GrpcLink::Handle(Received& received) {
  if (received.opened) TellOpened();
  if (connected_ != nullptr) {
    End(absl::InvalidArgumentError("the peer spoke before its hello"));
    return false;
  }
  for (Message& message : received.messages) {
    if (handler_ == nullptr) break;
    handler_->OnMessage(std::move(message));
  }
  for (RefusedMessage& message : received.refused) {
    if (handler_ == nullptr) break;
    handler_->OnRefused(std::move(message.header), std::move(message.why));
  }
  if (!received.goodbye) return true;
  End(absl::UnavailableError(absl::StrCat(address_, " closed the link")));
  return false;
}

size_t GrpcLink::Received::Bytes() const {
  size_t bytes = 0;
  for (const Message& message : messages) bytes += sizeof(Message) + message.TotalBytes();
  for (const RefusedMessage& message : refused) bytes += sizeof(message) + message.header.size();
  return bytes;
}

absl::StatusOr<bool> GrpcLink::HandleFrames(const std::shared_ptr<GrpcStream>& stream,
                                            const grpc::ByteBuffer& bytes, Inbound& inbound) {
  ReceivedBytes chunks;
  if (!chunks.Open(bytes)) return absl::InvalidArgumentError("an unreadable network message");
  ByteReader reader = chunks.reader();
  const size_t size = reader.remaining();
  if (inbound.handled_bytes > 0) reader.Take(inbound.handled_bytes);
  FrameDecoder decoder(reader, core_->options().limits);
  while (!inbound.received.goodbye) {
    PSD_ASSIGN_OR_RETURN(std::optional<Frame> frame, decoder.Next());
    if (!frame.has_value()) break;
    PSD_ASSIGN_OR_RETURN(const bool handled, HandleFrame(stream, *frame, inbound));
    if (!handled) return false;
    inbound.handled_bytes = size - decoder.remaining();
  }
  return true;
}

absl::StatusOr<bool> GrpcLink::HandleFrame(const std::shared_ptr<GrpcStream>& stream,
                                           const Frame& frame, Inbound& inbound) {
  if (const auto* message = std::get_if<MessageFrame>(&frame))
    return HandleMessage(stream, *message, inbound);
  if (const auto* piece = std::get_if<PieceFrame>(&frame)) {
    PSD_RETURN_IF_ERROR(CheckMayWait(stream.get()));
    return HandlePiece(*piece, inbound);
  }
  PSD_RETURN_IF_ERROR(HandleControl(stream, frame, &inbound.received));
  return true;
}

absl::StatusOr<bool> GrpcLink::HandleMessage(const std::shared_ptr<GrpcStream>& stream,
                                             const MessageFrame& frame, Inbound& inbound) {
  const size_t bytes = frame.payload.remaining();
  const bool small = bytes <= kMaxInlineBytes;
  if (!small) PSD_RETURN_IF_ERROR(CheckMayWait(stream.get()));
  const ReceiveMemory& memory = small ? core_->small_memory() : core_->bulk_memory();
  const auto take = [&]() -> absl::Status {
    PSD_ASSIGN_OR_RETURN(Message whole, AssembleWhole(frame, memory));
    inbound.received.messages.push_back(std::move(whole));
    return absl::OkStatus();
  };
  const MemoryAccount& account = *memory.headers;
  const size_t needed = small ? bytes : MessageAssembly::BytesFor(frame.shape);
  const bool never = small || account.limit_bytes() == 0 || needed > account.most_bytes();
  const Waits waits = never ? Waits::kNever : inbound.may_wait ? Waits::kYes : Waits::kNo;
  const absl::Time now = never ? absl::Time() : Clock::Steady().Now();
  const absl::StatusOr<bool> taken = inbound.place.Seek(core_->waiting(), now, waits, needed, take);
  if (taken.ok() && !*taken) return false;
  if (!taken.ok()) inbound.received.refused.push_back(RefuseWhole(frame, taken.status()));
  if (!small) CountRead(StreamRole::kWhole, bytes, inbound);
  return true;
}

absl::Status GrpcLink::HandleControl(const std::shared_ptr<GrpcStream>& stream, const Frame& frame,
                                     Received* received) {
  if (const auto* announce = std::get_if<AnnounceFrame>(&frame)) return HandleAnnounce(*announce);
  if (const auto* ack = std::get_if<AckFrame>(&frame)) return HandleAck(ack->transfer);
  if (const auto* room = std::get_if<RoomFrame>(&frame)) return HandleRoom(room->transfer);
  if (const auto* read = std::get_if<ReadFrame>(&frame)) return HandleRead(*read);
  if (const auto* hello = std::get_if<HelloFrame>(&frame)) {
    return HandleHello(stream, *hello, received);
  }
  if (std::holds_alternative<OpenBulkFrame>(frame)) {
    if (!dialled_) return absl::InvalidArgumentError("asked to dial by the end that dialled");
    WantBulk();
    return absl::OkStatus();
  }
  if (!std::holds_alternative<GoodbyeFrame>(frame)) {
    return absl::InvalidArgumentError("a frame that belongs into shared memory");
  }
  received->goodbye = true;
  return absl::OkStatus();
}

absl::Status GrpcLink::CheckMayWait(const GrpcStream* stream) const {
  MutexLock lock(send_mutex_);
  if (NumberOf(stream) != kControl) return absl::OkStatus();
  return absl::InvalidArgumentError("a large message on the stream for control");
}

absl::Status GrpcLink::HandleHello(const std::shared_ptr<GrpcStream>& stream,
                                   const HelloFrame& hello, Received* received) {
  MutexLock lock(send_mutex_);
  const size_t number = NumberOf(stream.get());
  if (number == kOutlets) return absl::UnavailableError("the stream has ended meanwhile");
  Outlet& outlet = outlets_[number];
  if (number != kControl && !dialled_ && !outlet.greeted) {
    outlet.greeted = true;
    return absl::OkStatus();
  }
  bool expected = number == kControl && dialled_ && phase_ == Phase::kOpening &&
                  hello.token == token_ && hello.role == StreamRole::kControl;
  if (!expected) return absl::InvalidArgumentError("a hello where none belongs");
  core_->timers().Cancel(connect_timer_);
  SetPeerLimits(hello);
  bulk_window_ = WindowForPieces(Clock::Steady().Now() - hello_sent_);
  phase_ = Phase::kOpen;
  received->opened = true;
  return absl::OkStatus();
}

absl::Status GrpcLink::HandleAnnounce(const AnnounceFrame& announce) {
  MutexLock lock(receive_mutex_);
  return assembler_.OnAnnounce(announce);
}

absl::StatusOr<bool> GrpcLink::HandlePiece(const PieceFrame& piece, Inbound& inbound) {
  Assembler::Room room = Assembler::Room::kNone;
  absl::StatusOr<Assembler::Slot> slot;
  {
    MutexLock lock(receive_mutex_);
    PSD_ASSIGN_OR_RETURN(
        room, assembler_.FindRoom(piece.transfer, Clock::Steady().Now(), inbound.may_wait));
    if (room == Assembler::Room::kNone) return false;
    slot = assembler_.BeginPiece(piece);
  }
  if (!slot.ok()) return slot.status();
  if (room == Assembler::Room::kFound) {
    Tell([&piece](FrameEncoder& encoder) { encoder.Room(piece.transfer); });
  }
  slot->Fill();
  std::optional<Assembler::Whole> whole;
  {
    MutexLock lock(receive_mutex_);
    whole = assembler_.EndPiece(*slot);
  }
  CountRead(StreamRole::kBulk, piece.payload.remaining(), inbound);
  if (!whole.has_value()) return true;
  if (whole->refused.ok()) {
    inbound.received.messages.push_back(std::move(whole->message));
  } else {
    inbound.received.refused.push_back(
        {std::move(whole->message.header), std::move(whole->refused)});
  }
  Tell([&piece](FrameEncoder& encoder) { encoder.Ack(piece.transfer); });
  return true;
}

absl::Status GrpcLink::HandleAck(uint64_t transfer) {
  {
    MutexLock lock(send_mutex_);
    if (phase_ == Phase::kEnded) return absl::OkStatus();
    PSD_RETURN_IF_ERROR(bulk_queue_.OnAck(transfer));
    bulk_moved_ = true;
    if (bulk_queue_.empty()) return absl::OkStatus();
  }
  PumpBulk();
  return absl::OkStatus();
}

absl::Status GrpcLink::HandleRoom(uint64_t transfer) {
  {
    MutexLock lock(send_mutex_);
    if (phase_ == Phase::kEnded) return absl::OkStatus();
    PSD_RETURN_IF_ERROR(bulk_queue_.OnRoom(transfer));
  }
  PumpBulk();
  return absl::OkStatus();
}

absl::Status GrpcLink::HandleRead(const ReadFrame& read) {
  {
    MutexLock lock(send_mutex_);
    if (phase_ == Phase::kEnded) return absl::OkStatus();
    UnreadWindow& window = windows_[KindOf(read.role)];
    const bool waited = !window.MaySend();
    PSD_RETURN_IF_ERROR(window.OnRead(read.bytes));
    if (!waited) return absl::OkStatus();
  }
  if (read.role == StreamRole::kWhole) {
    Pump(kWhole);
  } else {
    PumpBulk();
  }
  return absl::OkStatus();
}

}  // namespace psd::carrier
