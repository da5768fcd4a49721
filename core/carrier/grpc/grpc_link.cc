#include "core/carrier/grpc/grpc_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/carrier/grpc/grpc_status.h"
#include "core/carrier/link_rules.h"

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
      assembler_(core_->options().limits, core_->bulk_memory(), core_->small_memory().headers,
                 core_->waiting()),
      read_{ReadCount(UnreadBytesOfLink(core_->options())),
            ReadCount(UnreadBytesOfLink(core_->options()))} {}

// Opening.

void GrpcLink::Dial(std::shared_ptr<GrpcCore> core, const std::string& address,
                    absl::Duration timeout, std::shared_ptr<LinkHandler> handler,
                    ConnectCallback done) {
  auto link = std::make_shared<GrpcLink>(core, address, NewLinkToken(), /*dialled=*/true);
  link->handler_ = std::move(handler);
  link->connected_ = std::move(done);
  if (absl::Status registered = core->Register(link->token_, link, ""); !registered.ok()) {
    link->connected_(registered);
    return;
  }
  link->StartDialling(timeout);
}

void GrpcLink::StartDialling(absl::Duration timeout) {
  if (absl::Status ready = core_->ReadyToDial(); !ready.ok()) return End(ready);
  StreamGone gone = core_->CountStream();
  if (gone == nullptr) return;  // the carrier was shut down, and has told the caller
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
    link->SetPeerLimits(hello);
  }
  if (!control->SetOwner(link)) return;  // the stream has ended; its hello came too late
  // Once the link is registered, other threads may end it. They call the handler after this task.
  link->runner_.Run([link, control = std::move(control), &accept] {
    const absl::Status registered = link->core_->Register(link->token_, link, link->address_);
    if (registered.ok()) return link->OpenAccepted(control, accept);
    control->SetOwner(nullptr);
    control->Decline({grpc::StatusCode::UNAVAILABLE, std::string(registered.message())});
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
  WatchForStalls();
}

void GrpcLink::SetPeerLimits(const HelloFrame& peer) {
  send_limits_ = SmallerLimits(send_limits_, peer.limits);
  for (UnreadWindow& window : windows_) window.set_bound(peer.max_unread_bytes);
  bulk_queue_.set_peer_assembly_bytes(send_limits_.max_assembly_bytes);
}

void GrpcLink::TellOpened() {
  if (connected_ == nullptr) return;  // the link has ended meanwhile
  WatchForStalls();
  std::exchange(connected_, nullptr)(std::static_pointer_cast<Link>(shared_from_this()));
}

void GrpcLink::OnStarted(const std::shared_ptr<GrpcStream>& stream) {
  size_t number = 0;
  {
    MutexLock lock(send_mutex_);
    number = NumberOf(stream.get());
    if (number == kOutlets) return;  // the stream has ended meanwhile
    if (number == kControl) hello_sent_ = Clock::Steady().Now();
    Open(number);
  }
  stream->Read();
  Pump(number);
}

// Ending.

void GrpcLink::Close() {
  absl::Status reason = absl::CancelledError(absl::StrCat("this end closed ", Description()));
  if (!BeginEnd(Farewell::kGoodbye)) return;
  // The caller may hold locks that its handler takes, so the handler is called on a carrier thread.
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
    if (!orderly) control_charges_.clear();
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
    const size_t number = NumberOf(stream.get());
    // A stream that ends while it is being adopted may have no outlet yet.
    if (number != kOutlets) outlets_[number].stream.reset();
  }
  End(opening ? DialError(address_, status) : LostError(address_, status));
}

bool GrpcLink::Ended() const {
  MutexLock lock(send_mutex_);
  return phase_ == Phase::kEnded;
}

// Stalls.

void GrpcLink::WatchForStalls() {
  core_->timers().RunAfter(
      core_->options().stall_timeout, [weak = std::weak_ptr<GrpcLink>(shared_from_this())] {
        std::shared_ptr<GrpcLink> self = weak.lock();
        if (self == nullptr || self->Ended()) return;
        const absl::Status stalled = self->LookForStalls();
        if (stalled.ok()) return self->WatchForStalls();
        self->core_->RunAfter(absl::ZeroDuration(), [self, stalled] { self->End(stalled); });
      });
}

absl::Status GrpcLink::LookForStalls() {
  PSD_RETURN_IF_ERROR(LookForUnread());
  MutexLock lock(receive_mutex_);
  return Annotate(assembler_.LookForStall(), Description());
}

absl::Status GrpcLink::LookForUnread() {
  MutexLock lock(send_mutex_);
  bool moves = std::exchange(bulk_moved_, false) || bulk_queue_.empty();
  for (Outlet& outlet : outlets_) {
    const bool idle = !outlet.writing && outlet.queue.empty();
    moves = (std::exchange(outlet.moved, false) || idle) && moves;
  }
  if (moves) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(address_, " reads nothing of the ", queued_bytes_, " bytes that wait for it"));
}

}  // namespace psd::carrier
