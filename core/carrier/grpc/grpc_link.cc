#include "core/carrier/grpc/grpc_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/grpc/byte_buffer.h"
#include "core/carrier/grpc/grpc_status.h"

namespace psd::carrier {
namespace {

std::string PeerAddress(const GrpcStream& stream) {
  std::string peer = stream.Peer();  // "ipv4:127.0.0.1:41234"
  return peer.substr(peer.find(':') + 1);
}

}  // namespace

GrpcLink::GrpcLink(std::shared_ptr<GrpcCore> core, std::string address, const LinkToken& token,
                   bool dialled)
    : core_(std::move(core)),
      address_(std::move(address)),
      token_(token),
      dialled_(dialled),
      send_limits_(core_->options().limits),
      bulk_queue_(core_->options().piece_bytes),
      assembler_(core_->options().limits, core_->allocator()) {}

// Opening.

void GrpcLink::Dial(std::shared_ptr<GrpcCore> core, const std::string& address,
                    absl::Duration timeout, std::shared_ptr<LinkHandler> handler,
                    ConnectCallback done) {
  auto link = std::make_shared<GrpcLink>(core, address, NewLinkToken(), /*dialled=*/true);
  link->handler_ = std::move(handler);
  link->connected_ = std::move(done);
  if (!core->Register(link->token_, link)) {
    link->connected_(absl::UnavailableError("this carrier was shut down"));
    return;
  }
  link->StartDialling(timeout);
}

void GrpcLink::StartDialling(absl::Duration timeout) {
  if (absl::Status ready = core_->ReadyToDial(); !ready.ok()) return End(ready);
  StreamGone gone = core_->CountStream();
  if (gone == nullptr) return;  // shut down meanwhile, which told the caller
  auto channel = core_->NewChannel(address_, Window::kFixed);
  auto control = NewDialledStream(channel, shared_from_this(), std::move(gone));
  std::weak_ptr<GrpcLink> weak = shared_from_this();
  auto expired = [weak, timeout] {
    std::shared_ptr<GrpcLink> self = weak.lock();
    if (self == nullptr) return;
    self->End(absl::DeadlineExceededError(absl::StrCat("no answer from ", self->address_,
                                                       " within ", absl::FormatDuration(timeout))));
  };
  {
    MutexLock lock(send_mutex_);
    outlets_[kControl].stream = control;
    if (phase_ == Phase::kOpening) {
      connect_timer_ = core_->timers().RunAfter(timeout, std::move(expired));
    } else {
      control->Abort();
    }
  }
  control->Start(core_->dial_queue());
}

void GrpcLink::Accept(std::shared_ptr<GrpcCore> core, std::shared_ptr<GrpcStream> control,
                      const HelloFrame& hello, const AcceptCallback& accept) {
  auto link = std::make_shared<GrpcLink>(core, PeerAddress(*control), hello.token,
                                         /*dialled=*/false);
  {
    MutexLock lock(link->send_mutex_);
    link->phase_ = Phase::kOpen;
    link->outlets_[kControl].stream = control;
    link->SetPeerLimits(hello.limits);
  }
  if (!control->SetOwner(link)) return;  // it took too long to say hello
  // From its registration on, others may end the link: they tell its handler after this task.
  link->runner_.Run([link, control = std::move(control), &accept] {
    if (link->core_->Register(link->token_, link)) return link->OpenAccepted(control, accept);
    control->SetOwner(nullptr);
    control->Decline({grpc::StatusCode::UNAVAILABLE, "the worker is shutting down"});
  });
}

void GrpcLink::OpenAccepted(const std::shared_ptr<GrpcStream>& control,
                            const AcceptCallback& accept) {
  handler_ = accept(shared_from_this());
  if (handler_ == nullptr) {
    control->Decline({grpc::StatusCode::PERMISSION_DENIED, "the worker declined the link"});
    return End(absl::CancelledError("declined"));
  }
  {
    MutexLock lock(send_mutex_);
    Open(kControl);
  }
  Pump(kControl);
  control->Read();
}

void GrpcLink::SetPeerLimits(const Limits& peer) {
  Limits& limits = send_limits_;
  limits.max_header_bytes = std::min(limits.max_header_bytes, peer.max_header_bytes);
  limits.max_message_bytes = std::min(limits.max_message_bytes, peer.max_message_bytes);
  limits.max_buffers = std::min(limits.max_buffers, peer.max_buffers);
  limits.max_assembly_bytes = std::min(limits.max_assembly_bytes, peer.max_assembly_bytes);
  bulk_queue_.set_peer_assembly_bytes(limits.max_assembly_bytes);
}

void GrpcLink::TellOpened() {
  if (connected_ == nullptr) return;  // ended meanwhile
  std::exchange(connected_, nullptr)(std::static_pointer_cast<Link>(shared_from_this()));
}

void GrpcLink::OnStarted(const std::shared_ptr<GrpcStream>& stream) {
  size_t number = 0;
  {
    MutexLock lock(send_mutex_);
    number = NumberOf(stream.get());
    if (number == kOutlets) return;  // it has ended meanwhile
    Open(number);
  }
  stream->Read();
  Pump(number);
}

// Ending.

void GrpcLink::Close() {
  absl::Status reason = absl::CancelledError(absl::StrCat("this end closed ", Description()));
  if (!BeginEnd(Farewell::kGoodbye)) return;
  // The caller may hold locks that its handler takes: tell it on a thread of the carrier.
  core_->timers().RunAfter(absl::ZeroDuration(), [self = shared_from_this(), reason] {
    self->runner_.Run([self, reason] { self->TellEnd(reason); });
  });
}

void GrpcLink::End(const absl::Status& reason) {
  if (!BeginEnd(Farewell::kNone)) return;
  runner_.Run([self = shared_from_this(), reason] { self->TellEnd(reason); });
}

bool GrpcLink::BeginEnd(Farewell farewell) {
  std::vector<std::shared_ptr<GrpcStream>> broken;
  std::shared_ptr<GrpcStream> lingering;
  {
    MutexLock lock(send_mutex_);
    if (phase_ == Phase::kEnded) return false;
    bool orderly = farewell == Farewell::kGoodbye && phase_ == Phase::kOpen;
    phase_ = Phase::kEnded;
    core_->timers().Cancel(connect_timer_);
    if (orderly) AppendControl([](FrameEncoder& encoder) { encoder.Goodbye(); });
    for (size_t i = 0; i < kOutlets; ++i) {
      Outlet& outlet = outlets_[i];
      if (orderly && i == kControl) {
        lingering = outlet.stream;
        continue;
      }
      outlet.queue.clear();
      if (outlet.stream != nullptr) broken.push_back(outlet.stream);
    }
    bulk_queue_.Clear();
  }
  for (const auto& stream : broken) stream->Abort();
  if (lingering != nullptr) {
    Pump(kControl);
    core_->timers().RunAfter(core_->options().linger,
                             [weak = std::weak_ptr<GrpcStream>(lingering)] {
                               if (auto stream = weak.lock()) stream->Abort();
                             });
  }
  return true;
}

void GrpcLink::TellEnd(const absl::Status& reason) {
  if (connected_ != nullptr) {
    std::exchange(connected_, nullptr)(ConnectError(reason));
  } else if (handler_ != nullptr) {
    handler_->OnClosed(reason);
  }
  handler_.reset();
  {
    MutexLock lock(receive_mutex_);
    assembler_.Clear();
  }
  core_->Forget(token_);
}

void GrpcLink::OnEnded(const std::shared_ptr<GrpcStream>& stream, const grpc::Status& status) {
  bool opening = false;
  {
    MutexLock lock(send_mutex_);
    opening = phase_ == Phase::kOpening;
    outlets_[NumberOf(stream.get())].stream.reset();
  }
  End(opening ? DialError(address_, status) : LostError(address_, status));
}

bool GrpcLink::Ended() const {
  MutexLock lock(send_mutex_);
  return phase_ == Phase::kEnded;
}

// Receiving.

void GrpcLink::OnRead(const std::shared_ptr<GrpcStream>& stream, const grpc::ByteBuffer& bytes) {
  if (Ended()) return stream->Read();  // only to see the stream's end
  Received received;
  absl::Status status = HandleFrames(stream, bytes, &received);
  if (status.ok()) return Deliver(stream, std::move(received));
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    status = absl::UnavailableError(absl::StrCat("no memory to receive: ", status.message()));
  }
  End(Annotate(status, Description()));
}

void GrpcLink::Deliver(const std::shared_ptr<GrpcStream>& stream, Received received) {
  if (received.messages.empty() && !received.opened && !received.goodbye) return stream->Read();
  const size_t bytes = received.Bytes();
  const bool is_last = received.goodbye;
  const bool ahead = unhandled_bytes_.fetch_add(bytes) < kReadAheadBytes;
  const bool drain = runner_.Add(
      [self = shared_from_this(), stream, bytes, ahead, received = std::move(received)]() mutable {
        const bool goes_on = self->Handle(received);
        self->unhandled_bytes_.fetch_sub(bytes);
        if (goes_on && !ahead) stream->Read();
      });
  // What comes next has its place behind this, on whatever thread it comes.
  if (ahead && !is_last) stream->Read();
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
  if (!received.goodbye) return true;
  End(absl::UnavailableError(absl::StrCat(address_, " closed the link")));
  return false;
}

size_t GrpcLink::Received::Bytes() const {
  size_t bytes = 0;
  for (const Message& message : messages) bytes += sizeof(Message) + message.TotalBytes();
  return bytes;
}

absl::Status GrpcLink::HandleFrames(const std::shared_ptr<GrpcStream>& stream,
                                    const grpc::ByteBuffer& bytes, Received* received) {
  ReceivedBytes chunks;
  if (!chunks.Open(bytes)) return absl::InvalidArgumentError("an unreadable network message");
  FrameDecoder decoder(chunks.reader(), core_->options().limits);
  while (!received->goodbye) {
    PSD_ASSIGN_OR_RETURN(std::optional<Frame> frame, decoder.Next());
    if (!frame.has_value()) break;
    PSD_RETURN_IF_ERROR(HandleFrame(stream, *frame, received));
  }
  return absl::OkStatus();
}

absl::Status GrpcLink::HandleFrame(const std::shared_ptr<GrpcStream>& stream, const Frame& frame,
                                   Received* received) {
  if (const auto* message = std::get_if<MessageFrame>(&frame)) {
    PSD_ASSIGN_OR_RETURN(Message whole, AssembleWhole(*message, *core_->allocator()));
    received->messages.push_back(std::move(whole));
    return absl::OkStatus();
  }
  if (const auto* announce = std::get_if<AnnounceFrame>(&frame)) {
    MutexLock lock(receive_mutex_);
    return assembler_.OnAnnounce(*announce);
  }
  if (const auto* piece = std::get_if<PieceFrame>(&frame)) return HandlePiece(*piece, received);
  if (const auto* ack = std::get_if<AckFrame>(&frame)) return HandleAck(ack->transfer);
  if (const auto* hello = std::get_if<HelloFrame>(&frame)) {
    return HandleHello(stream, *hello, received);
  }
  if (std::holds_alternative<OpenBulkFrame>(frame)) {
    if (!dialled_) return absl::InvalidArgumentError("asked to dial by the end that dialled");
    WantBulk();
    return absl::OkStatus();
  }
  received->goodbye = true;
  return absl::OkStatus();
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
  SetPeerLimits(hello.limits);
  phase_ = Phase::kOpen;
  received->opened = true;
  return absl::OkStatus();
}

absl::Status GrpcLink::HandlePiece(const PieceFrame& piece, Received* received) {
  absl::StatusOr<Assembler::Slot> slot;
  {
    MutexLock lock(receive_mutex_);
    slot = assembler_.BeginPiece(piece);
  }
  if (!slot.ok()) return slot.status();
  slot->Fill();
  std::optional<Message> message;
  {
    MutexLock lock(receive_mutex_);
    message = assembler_.EndPiece(*slot);
  }
  if (!message.has_value()) return absl::OkStatus();
  received->messages.push_back(*std::move(message));
  {
    MutexLock lock(send_mutex_);
    if (phase_ != Phase::kOpen) return absl::OkStatus();
    AppendControl([&piece](FrameEncoder& encoder) { encoder.Ack(piece.transfer); });
  }
  Pump(kControl);
  return absl::OkStatus();
}

absl::Status GrpcLink::HandleAck(uint64_t transfer) {
  {
    MutexLock lock(send_mutex_);
    if (phase_ == Phase::kEnded) return absl::OkStatus();
    PSD_RETURN_IF_ERROR(bulk_queue_.OnAck(transfer));
    if (bulk_queue_.empty()) return absl::OkStatus();
  }
  PumpBulk();
  return absl::OkStatus();
}

}  // namespace psd::carrier
