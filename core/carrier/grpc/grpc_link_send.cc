// The sending half of GrpcLink.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/grpc/grpc_link.h"
#include "core/carrier/link_rules.h"

namespace psd::carrier {
absl::Status GrpcLink::Send(Message message) {
  const size_t bytes = message.TotalBytes();
  if (bytes <= kMaxInlineBytes) {
    const absl::Status queued = EnqueueInline(message);
    if (queued.ok()) Pump(kControl);
    if (absl::IsResourceExhausted(queued) && message.buffers.empty()) EndUnread(queued);
    return queued;
  }
  if (bytes <= kMaxWholeBytes && message.header.size() <= kMaxInlineBytes) {
    PSD_RETURN_IF_ERROR(EnqueueWhole(message));
    WantBulk();
    Pump(kWhole);
    return absl::OkStatus();
  }
  PSD_RETURN_IF_ERROR(EnqueueBulk(std::move(message)));
  WantBulk();
  PumpBulk();
  return absl::OkStatus();
}

absl::Status GrpcLink::CheckRoom(const Message& message) const {
  if (phase_ == Phase::kEnded) {
    return absl::UnavailableError(absl::StrCat("the link to ", address_, " has ended"));
  }
  return CheckMaySend(message, queued_bytes_, send_limits_, address_);
}

absl::Status GrpcLink::EnqueueInline(const Message& message) {
  MutexLock lock(send_mutex_);
  PSD_RETURN_IF_ERROR(CheckRoom(message));
  PSD_RETURN_IF_ERROR(ChargeControl(message.TotalBytes()));
  AppendControl([&message](FrameEncoder& encoder) { encoder.Whole(message); });
  return absl::OkStatus();
}

absl::Status GrpcLink::ChargeControl(size_t more) {
  while (control_bytes_ + more > (control_charges_.size() + 1) * kControlUnit) {
    PSD_ASSIGN_OR_RETURN(MemoryCharge charge, core_->small_memory().headers->Charge(kControlUnit));
    control_charges_.push_back(std::move(charge));
  }
  return absl::OkStatus();
}

void GrpcLink::ControlWritten(size_t bytes) {
  control_bytes_ -= bytes;
  const size_t needed = control_bytes_ / kControlUnit;
  if (needed < control_charges_.size()) control_charges_.resize(needed);
}

void GrpcLink::EndUnread(const absl::Status& why) {
  const absl::Status reason = absl::DeadlineExceededError(
      absl::StrCat(address_, " does not read what it is sent: ", why.message()));
  // The caller may hold locks that its handler takes, so the handler is called on a carrier thread.
  core_->RunAfter(absl::ZeroDuration(), [self = shared_from_this(), reason] { self->End(reason); });
}

MemoryAccount& GrpcLink::QueueAccount(bool idle) const {
  // A peer that keeps up with what it is sent may use the memory reserved for small messages.
  return *(idle ? core_->small_memory() : core_->bulk_memory()).headers;
}

absl::Status GrpcLink::EnqueueWhole(const Message& message) {
  FrameEncoder frame;
  frame.Whole(message);
  MutexLock lock(send_mutex_);
  PSD_RETURN_IF_ERROR(CheckRoom(message));
  Outlet& outlet = outlets_[kWhole];
  const bool idle = outlet.queue.empty() && !outlet.writing;
  PSD_ASSIGN_OR_RETURN(MemoryCharge charge, ChargeQueued(message, QueueAccount(idle), address_));
  queued_bytes_ += frame.bytes();
  if (outlet.queue.empty()) outlet.moved = true;
  outlet.queue.push_back({std::move(frame), message.TotalBytes(), std::move(charge)});
  return absl::OkStatus();
}

absl::Status GrpcLink::EnqueueBulk(Message message) {
  MutexLock lock(send_mutex_);
  PSD_RETURN_IF_ERROR(CheckRoom(message));
  PSD_ASSIGN_OR_RETURN(message.charge,
                       ChargeQueued(message, QueueAccount(bulk_queue_.empty()), address_));
  queued_bytes_ += message.TotalBytes();
  if (bulk_queue_.empty()) bulk_moved_ = true;
  bulk_queue_.Add(std::move(message));
  return absl::OkStatus();
}

StreamRole GrpcLink::RoleOf(size_t number) {
  if (number == kControl) return StreamRole::kControl;
  return number == kWhole ? StreamRole::kWhole : StreamRole::kBulk;
}

void GrpcLink::Open(size_t number) {
  Outlet& outlet = outlets_[number];
  const size_t index = number < kFirstBulk ? 0 : number - kFirstBulk;
  FrameEncoder& first = outlet.queue.emplace_front().frames;
  first.Hello({token_, RoleOf(number), static_cast<uint32_t>(index), core_->options().limits,
               UnreadBytesOfLink(core_->options())});
  queued_bytes_ += first.bytes();
  if (number == kControl) control_bytes_ += first.bytes();
  outlet.started = true;
}

void GrpcLink::Pump(size_t number) {
  std::shared_ptr<GrpcStream> stream;
  FrameEncoder frames;
  std::optional<BulkQueue::Piece> piece;
  {
    MutexLock lock(send_mutex_);
    Outlet& outlet = outlets_[number];
    if (outlet.stream == nullptr || !outlet.started || outlet.writing) return;
    if (!outlet.queue.empty()) {
      if (outlet.queue.front().message_bytes > 0) {
        if (!windows_[kWholes].MaySend()) return;  // HandleRead goes on
        windows_[kWholes].OnSent(outlet.queue.front().message_bytes);
      }
      frames = std::move(outlet.queue.front().frames);
      outlet.writing_charge = std::move(outlet.queue.front().charge);
      outlet.queue.pop_front();
      outlet.writing_bytes = frames.bytes();
    } else {
      if (number < kFirstBulk || phase_ != Phase::kOpen) return;
      if (!windows_[kPieces].MaySend()) return;
      piece = bulk_queue_.Next(number - kFirstBulk);
      if (!piece.has_value()) return;
      windows_[kPieces].OnSent(piece->bytes);
      bulk_moved_ = true;
      outlet.writing_bytes = piece->bytes;
      outlet.writing_charge = piece->message->charge;
    }
    outlet.writing = true;
    outlet.moved = true;
    stream = outlet.stream;
  }
  if (piece.has_value()) piece->Encode(&frames);
  stream->Write(frames.Take());
  if (piece.has_value() && piece->frees.has_value()) Pump(kFirstBulk + *piece->frees);
}

void GrpcLink::PumpBulk() {
  for (size_t number = kFirstBulk; number < kOutlets; ++number) Pump(number);
}

void GrpcLink::OnWritten(const std::shared_ptr<GrpcStream>& stream) {
  size_t number = 0;
  {
    MutexLock lock(send_mutex_);
    number = NumberOf(stream.get());
    if (number == kOutlets) return;  // the stream has ended meanwhile
    Outlet& outlet = outlets_[number];
    outlet.writing = false;
    outlet.writing_charge.reset();
    outlet.moved = true;
    queued_bytes_ -= outlet.writing_bytes;
    if (number == kControl) ControlWritten(outlet.writing_bytes);
  }
  Pump(number);
}

size_t GrpcLink::NumberOf(const GrpcStream* stream) const {
  auto is_it = [stream](const Outlet& outlet) { return outlet.stream.get() == stream; };
  return std::find_if(outlets_.begin(), outlets_.end(), is_it) - outlets_.begin();
}

void GrpcLink::WantBulk() {
  {
    MutexLock lock(send_mutex_);
    if (bulk_wanted_ || phase_ != Phase::kOpen) return;
    bulk_wanted_ = true;
    if (!dialled_) AppendControl([](FrameEncoder& encoder) { encoder.OpenBulk(); });
  }
  if (dialled_) return DialBulk();
  Pump(kControl);
}

void GrpcLink::DialBulk() {
  const size_t end = kFirstBulk + static_cast<size_t>(core_->options().bulk_streams);
  Window pieces;
  {
    MutexLock lock(send_mutex_);
    pieces = bulk_window_;
  }
  for (size_t number = kWhole; number < end; ++number) {
    StreamGone gone = core_->CountStream();
    if (gone == nullptr) return;  // the carrier was shut down
    // Streams that share a connection slow each other down: gRPC lets one thread at a time work on
    // a connection, and hands the connection over when two threads want it.
    auto channel = core_->NewChannel(address_, number == kWhole ? Window::kProbed : pieces);
    auto stream = NewDialledStream(channel, shared_from_this(), std::move(gone));
    bool ended = false;
    {
      MutexLock lock(send_mutex_);
      outlets_[number].stream = stream;
      ended = phase_ == Phase::kEnded;
    }
    if (ended) stream->Abort();
    stream->Start(core_->dial_queue());
  }
}

bool GrpcLink::Adopt(const std::shared_ptr<GrpcStream>& stream, const HelloFrame& hello) {
  const size_t number = hello.role == StreamRole::kWhole ? kWhole : kFirstBulk + hello.stream_index;
  // The owner is set first: once the stream is in its outlet, other threads may write to it or
  // abort it at once.
  if (!stream->SetOwner(shared_from_this())) return false;
  if (!Place(stream, number)) {
    stream->SetOwner(nullptr);
    return false;
  }
  Pump(number);
  return true;
}

bool GrpcLink::Place(const std::shared_ptr<GrpcStream>& stream, size_t number) {
  MutexLock lock(send_mutex_);
  if (dialled_ || phase_ != Phase::kOpen || number >= kOutlets) return false;
  Outlet& outlet = outlets_[number];
  if (outlet.stream != nullptr) return false;
  outlet.stream = stream;
  outlet.started = true;
  bulk_wanted_ = true;
  return true;
}

}  // namespace psd::carrier
