// The sending half of GrpcLink.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/grpc/grpc_link.h"

namespace psd::carrier {

absl::Status GrpcLink::Send(Message message) {
  if (message.TotalBytes() > kMaxInlineBytes) {
    PSD_RETURN_IF_ERROR(EnqueueBulk(std::move(message)));
    WantBulk();
    PumpBulk();
  } else {
    PSD_RETURN_IF_ERROR(EnqueueInline(message));
    PumpControl();
  }
  return absl::OkStatus();
}

absl::Status GrpcLink::CheckRoom(const Message& message) const {
  if (phase_ == Phase::kEnded) {
    return absl::UnavailableError(absl::StrCat("the link to ", address_, " has ended"));
  }
  PSD_RETURN_IF_ERROR(CheckShape(ShapeOf(message), send_limits_));
  size_t bytes = message.TotalBytes();
  if (message.buffers.empty() || queued_bytes_ + bytes <= send_limits_.max_send_queue_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "a message of ", bytes, " bytes to ", address_, " with ", queued_bytes_,
      " bytes waiting exceeds max_send_queue_bytes = ", send_limits_.max_send_queue_bytes,
      "; wait for earlier ones or raise the limit"));
}

absl::Status GrpcLink::EnqueueInline(const Message& message) {
  MutexLock lock(send_mutex_);
  PSD_RETURN_IF_ERROR(CheckRoom(message));
  AppendControl([&message](FrameEncoder& encoder) { encoder.Inline(message); });
  return absl::OkStatus();
}

absl::Status GrpcLink::EnqueueBulk(Message message) {
  MutexLock lock(send_mutex_);
  PSD_RETURN_IF_ERROR(CheckRoom(message));
  queued_bytes_ += message.TotalBytes();
  bulk_queue_.Add(std::move(message));
  return absl::OkStatus();
}

void GrpcLink::PumpControl() {
  std::shared_ptr<GrpcStream> stream;
  FrameEncoder frames;
  {
    MutexLock lock(send_mutex_);
    if (control_ == nullptr || !control_started_ || control_writing_ || control_queue_.empty()) {
      return;
    }
    control_writing_ = true;
    frames = std::move(control_queue_.front());
    control_queue_.pop_front();
    control_writing_bytes_ = frames.bytes();
    stream = control_;
  }
  stream->Write(frames.Take());
}

void GrpcLink::PumpBulk() {
  for (size_t i = 0; i < BulkQueue::kMaxStreams; ++i) PumpBulkStream(i);
}

void GrpcLink::PumpBulkStream(size_t index) {
  std::shared_ptr<GrpcStream> stream;
  FrameEncoder frames;
  std::optional<BulkQueue::Piece> piece;
  {
    MutexLock lock(send_mutex_);
    BulkStream& bulk = bulk_[index];
    if (bulk.stream == nullptr || !bulk.started || bulk.writing || phase_ != Phase::kOpen) return;
    piece = bulk_queue_.Next(index);
    bool greet = dialled_ && !bulk.greeted;
    if (!piece.has_value() && !greet) return;
    if (greet) {
      frames.Hello(OurHello(StreamRole::kBulk, index));
      bulk.greeted = true;
    }
    bulk.writing = true;
    bulk.writing_bytes = piece.has_value() ? piece->bytes : 0;
    stream = bulk.stream;
  }
  if (piece.has_value()) piece->Encode(&frames);
  stream->Write(frames.Take());
}

void GrpcLink::OnWritten(const std::shared_ptr<GrpcStream>& stream) {
  size_t index = kNoBulk;
  {
    MutexLock lock(send_mutex_);
    if (BulkStream* bulk = FindBulk(stream.get())) {
      bulk->writing = false;
      queued_bytes_ -= bulk->writing_bytes;
      index = bulk - bulk_.data();
    } else {
      control_writing_ = false;
      queued_bytes_ -= control_writing_bytes_;
    }
  }
  if (index != kNoBulk) return PumpBulkStream(index);
  PumpControl();
}

HelloFrame GrpcLink::OurHello(StreamRole role, size_t index) const {
  return {token_, role, static_cast<uint32_t>(index), core_->options().limits};
}

GrpcLink::BulkStream* GrpcLink::FindBulk(const GrpcStream* stream) {
  for (BulkStream& bulk : bulk_) {
    if (bulk.stream.get() == stream) return &bulk;
  }
  return nullptr;
}

void GrpcLink::WantBulk() {
  {
    MutexLock lock(send_mutex_);
    if (bulk_wanted_ || phase_ != Phase::kOpen) return;
    bulk_wanted_ = true;
    if (!dialled_) AppendControl([](FrameEncoder& encoder) { encoder.OpenBulk(); });
  }
  if (dialled_) return DialBulk();
  PumpControl();
}

void GrpcLink::DialBulk() {
  for (int i = 0; i < core_->options().bulk_streams; ++i) {
    StreamGone gone = core_->CountStream();
    if (gone == nullptr) return;  // the carrier was shut down
    // gRPC works on one connection from one thread at a time and hands it from thread to thread
    // where two meet: streams that share one slow each other down.
    auto channel = core_->NewChannel(address_, GrpcCore::Connection::kBulk);
    auto stream = NewDialledStream(channel, shared_from_this(), std::move(gone));
    bool ended = false;
    {
      MutexLock lock(send_mutex_);
      bulk_[i].stream = stream;
      ended = phase_ == Phase::kEnded;
    }
    if (ended) stream->Abort();
    stream->Start(core_->dial_queue());
  }
}

bool GrpcLink::AdoptBulk(const std::shared_ptr<GrpcStream>& stream, const HelloFrame& hello) {
  {
    MutexLock lock(send_mutex_);
    if (dialled_ || phase_ != Phase::kOpen || hello.stream_index >= bulk_.size()) return false;
    BulkStream& bulk = bulk_[hello.stream_index];
    if (bulk.stream != nullptr) return false;
    bulk.stream = stream;
    bulk.started = true;
    bulk_wanted_ = true;
  }
  stream->SetOwner(shared_from_this());
  PumpBulkStream(hello.stream_index);
  return true;
}

}  // namespace psd::carrier
