#include "core/carrier/shm/shm_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/system_refusal.h"
#include "core/carrier/link_rules.h"

namespace psd::carrier {
namespace {

// How long a thread that waits for an answer looks at the rings before it sleeps, if looking has
// paid off lately.
constexpr absl::Duration kHelperLook = absl::Microseconds(200);
// The most time for which a thread helps, however much it receives for others meanwhile.
constexpr absl::Duration kMostHelp = absl::Milliseconds(1);

// The most packets that are read from a socket at one wake-up, so that a peer that sends them all
// the time cannot keep the poller from other links. The poller is woken again for the others.
constexpr int kPacketsPerWake = 32;

size_t PieceBytes(const ShmCarrierOptions& options) {
  return std::clamp(options.rings.bulk_bytes / 4, kMinPieceBytes, kMaxPieceBytes);
}

// The longest frame that a peer may send by these limits.
size_t MaxFrameBytes(const Limits& limits) {
  const size_t table = limits.max_buffers * sizeof(uint64_t);
  return kPreambleBytes + 2 * sizeof(uint64_t) + std::max(table + kMaxInlineBytes, kMaxPieceBytes);
}

}  // namespace

ShmLink::ShmLink(std::shared_ptr<ShmCore> core, std::string address, UniqueFd socket, bool dialled)
    : core_(std::move(core)),
      address_(std::move(address)),
      socket_(std::move(socket)),
      dialled_(dialled),
      poller_(core_->NextPoller()),
      quotas_(core_->QuotasOf(socket_.get())),
      notes_(std::make_shared<NoteBox>(poller_.bell())),
      lender_(notes_, core_->bulk_memory().headers, address_,
              std::shared_ptr<Quota>(quotas_, &quotas_->lent), core_->unmapper()),
      borrower_(notes_, std::shared_ptr<Quota>(quotas_, &quotas_->mapped), core_->mappings(),
                core_->unmapper(), core_->small_memory()),
      assembler_(core_->options().limits, core_->bulk_memory(), core_->small_memory().headers,
                 core_->waiting()),
      poller_spin_(core_->may_spin()),
      helper_spin_(core_->may_spin()),
      send_limits_(core_->options().limits),
      bulk_queue_(PieceBytes(core_->options())) {}

// Opening.

void ShmLink::Dial(std::shared_ptr<ShmCore> core, const std::string& address,
                   absl::Duration timeout, std::shared_ptr<LinkHandler> handler,
                   ConnectCallback done) {
  absl::StatusOr<UniqueFd> socket = ConnectUnix(address);
  if (!socket.ok()) return done(ConnectError(socket.status()));
  auto link = std::make_shared<ShmLink>(core, address, *std::move(socket), /*dialled=*/true);
  // A stranger is left before he has sent much that the system would have to close.
  absl::Status begun = link->CheckPeerProcess();
  if (begun.ok()) begun = link->MakeSegment();
  if (!begun.ok()) return done(ConnectError(begun));
  link->handler_ = std::move(handler);
  link->connected_ = std::move(done);
  begun = link->SendHello();
  if (begun.ok()) begun = link->Start(timeout);
  if (!begun.ok()) std::exchange(link->connected_, nullptr)(ConnectError(begun));
}

std::shared_ptr<ShmLink> ShmLink::Accept(std::shared_ptr<ShmCore> core, UniqueFd socket,
                                         const PeerProcess& peer, AcceptCallback accept) {
  // The part before the colon is the "host" of the peer (see TableShares).
  const std::string name =
      absl::StrCat("user ", peer.uid, ": process ", peer.pid, ", connection ", core->NextNumber());
  const absl::Duration timeout = core->options().handshake_timeout;
  auto link = std::make_shared<ShmLink>(std::move(core), name, std::move(socket),
                                        /*dialled=*/false);
  link->accept_ = std::move(accept);
  link->peer_process_ = absl::StrCat("process ", peer.pid, " of user ", peer.uid);
  // A link that cannot be watched is closed by its destructor, which the peer notices.
  link->Start(timeout).IgnoreError();
  return link;
}

void ShmLink::EndSilent(size_t bound) {
  const std::string why =
      absl::StrCat("more than ", bound, " connections have not introduced themselves yet");
  const absl::Status reason = absl::ResourceExhaustedError(absl::StrCat(address_, ": ", why));
  if (!MarkEnded(Farewell::kNone, reason, /*only_opening=*/true)) return;
  RefusePeer(socket_.get(), why);  // before the poller closes the socket
  poller_.Kick(shared_from_this());
}

bool ShmLink::silent() const {
  MutexLock lock(send_mutex_);
  return phase_ == Phase::kOpening;
}

absl::Status ShmLink::CheckPeerProcess() const {
  PSD_ASSIGN_OR_RETURN(const PeerProcess peer, PeerOf(socket_.get()));
  if (core_->Trusts(peer.uid)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("process ", peer.pid, " at ", address_,
                                             " belongs to user ", peer.uid,
                                             ", whom this worker does not trust"));
}

absl::Status ShmLink::MakeSegment() {
  RingQuota& quota = core_->ring_quota();
  PSD_ASSIGN_OR_RETURN(ring_share_, dialled_ ? quota.ChargeOwn() : quota.ChargePeer(peer_process_));
  PSD_ASSIGN_OR_RETURN(
      own_, OwnSegment::Create(core_->options().rings, *core_->options().memory->transit()));
  return absl::OkStatus();
}

absl::Status ShmLink::Start(absl::Duration timeout) {
  PSD_RETURN_IF_ERROR(core_->Register(shared_from_this()));
  const absl::Status watched = poller_.Add(socket_.get(), shared_from_this());
  if (!watched.ok()) {
    core_->Forget(shared_from_this(), SharedTraffic());
    return watched;
  }
  auto expired = [weak = weak_from_this(), timeout] {
    std::shared_ptr<ShmLink> self = weak.lock();
    if (self == nullptr) return;
    self->End(absl::DeadlineExceededError(absl::StrCat("no answer from ", self->address_,
                                                       " within ", absl::FormatDuration(timeout))));
  };
  MutexLock lock(send_mutex_);
  if (phase_ == Phase::kOpening) {
    opening_timer_ = core_->timers().RunAfter(timeout, std::move(expired));
  }
  return absl::OkStatus();
}

absl::Status ShmLink::SendHello() {
  PassDescriptors();
  const std::string hello = EncodeIntroduction({own_->sizes(), core_->options().limits});
  const int error = SendPacket(socket_.get(), PacketKind::kHello, hello, own_->fd());
  // A peer that is gone is noticed by reading.
  if (error == 0 || error == EPIPE || error == ECONNRESET) return absl::OkStatus();
  return SystemRefusal(absl::StrCat("to pass the descriptor of a segment to ", address_), error);
}

absl::Status ShmLink::OnHello(Packet hello) {
  PSD_ASSIGN_OR_RETURN(const Introduction peer, DecodeIntroduction(hello.body));
  PSD_ASSIGN_OR_RETURN(peer_, PeerSegment::Map(peer.rings, std::move(hello.fd)));
  if (own_ == nullptr) PSD_RETURN_IF_ERROR(MakeSegment());
  PSD_RETURN_IF_ERROR(OpenRings(peer));
  TellOpened();
  return absl::OkStatus();
}

absl::Status ShmLink::OpenRings(const Introduction& peer) {
  const ShmCarrierOptions& options = core_->options();
  const RingSizes& mine = own_->sizes();
  for (size_t i = 0; i < mine.rings(); ++i) {
    writers_.push_back(std::make_unique<RingWriter>(own_->ring(i), mine.BytesOf(i),
                                                    &own_->header().rings[i].out,
                                                    &peer_->header().rings[i].in));
  }
  for (size_t i = 0; i < peer.rings.rings(); ++i) {
    readers_.push_back(std::make_unique<RingReader>(
        peer_->ring(i), peer.rings.BytesOf(i), &peer_->header().rings[i].out,
        &own_->header().rings[i].in, MaxFrameBytes(options.limits),
        *core_->small_memory().headers));
  }
  MutexLock lock(send_mutex_);
  if (phase_ != Phase::kOpening) return absl::UnavailableError("it ended while it was opened");
  send_limits_ = SmallerLimits(send_limits_, peer.limits);
  bulk_queue_.set_peer_assembly_bytes(send_limits_.max_assembly_bytes);
  core_->timers().Cancel(opening_timer_);
  phase_ = Phase::kOpen;
  return absl::OkStatus();
}

void ShmLink::TellOpened() {
  if (dialled_) {
    std::exchange(connected_, nullptr)(std::static_pointer_cast<Link>(shared_from_this()));
  } else {
    handler_ = std::exchange(accept_, nullptr)(shared_from_this());
    if (handler_ == nullptr) {
      RefusePeer(socket_.get(), "the worker declined the link");
      return End(absl::CancelledError("declined"));
    }
    const absl::Status sent = SendHello();
    if (!sent.ok()) {
      RefusePeer(socket_.get(), sent.message());
      return End(sent);
    }
  }
  own_->CloseFd();
  WatchForStalls();
  WatchPeer(core_->options().keepalive_time);
}

// Ending.

void ShmLink::Close() {
  const absl::Status reason = absl::CancelledError(absl::StrCat("this end closed ", Description()));
  if (!BeginEnd(Farewell::kGoodbye, reason) || !Lingers()) return;
  PumpControl();
  core_->timers().RunAfter(core_->options().linger, [weak = weak_from_this()] {
    if (std::shared_ptr<ShmLink> self = weak.lock()) self->StopLingering();
  });
}

void ShmLink::End(const absl::Status& reason) {
  BeginEnd(Farewell::kNone, reason);
}

bool ShmLink::BeginEnd(Farewell farewell, const absl::Status& reason) {
  if (!MarkEnded(farewell, reason, /*only_opening=*/false)) return false;
  // The caller may hold locks that its handler takes, so the handler is called by the poller.
  poller_.Kick(shared_from_this());
  return true;
}

bool ShmLink::MarkEnded(Farewell farewell, const absl::Status& reason, bool only_opening) {
  MutexLock lock(send_mutex_);
  if (phase_ == Phase::kEnded || (only_opening && phase_ != Phase::kOpening)) return false;
  lingering_ = farewell == Farewell::kGoodbye && phase_ == Phase::kOpen;
  phase_ = Phase::kEnded;
  reason_ = reason;
  core_->timers().Cancel(opening_timer_);
  for (size_t i = lingering_ ? 1 : 0; i < outlets_.size(); ++i) outlets_[i].queue.clear();
  if (lingering_) {
    FrameEncoder goodbye;
    goodbye.Goodbye();
    outlets_[kControl].queue.push_back(ToQueued(goodbye));
  }
  bulk_queue_.Clear();
  ended_.store(true);
  return true;
}

bool ShmLink::Lingers() const {
  MutexLock lock(send_mutex_);
  return lingering_;
}

void ShmLink::StopLingering() {
  {
    MutexLock lock(send_mutex_);
    if (!std::exchange(lingering_, false)) return;
    outlets_[kControl].queue.clear();
  }
  poller_.Kick(shared_from_this());
}

void ShmLink::FinishEnd() {
  absl::Status reason;
  bool lingering = false;
  {
    MutexLock lock(send_mutex_);
    reason = reason_;
    lingering = lingering_;
  }
  if (!std::exchange(told_, true)) TellEnd(reason);
  if (lingering || gone_.exchange(true)) return;
  poller_.Remove(socket_.get());
  DropUnread(socket_.get());
  shutdown(socket_.get(), SHUT_RDWR);
  core_->Forget(shared_from_this(), shared_traffic());
}

SharedTraffic ShmLink::shared_traffic() const {
  SharedTraffic traffic;
  traffic.copied_out = copied_out_.bytes();
  traffic.copied_in = copied_in_.bytes();
  traffic.lent = lender_.lent_bytes();
  traffic.lent_now = lender_.bytes_now();
  traffic.borrowed = borrowed_.bytes();
  return traffic;
}

void ShmLink::TellEnd(const absl::Status& reason) {
  if (connected_ != nullptr) {
    std::exchange(connected_, nullptr)(ConnectError(reason));
  } else if (handler_ != nullptr) {
    handler_->OnClosed(reason);
  }
  handler_.reset();
  accept_ = nullptr;
  assembler_.Clear();
  borrower_.End();
  lender_.End();
}

// The socket.

void ShmLink::ReadSocket() {
  for (int i = 0; i < kPacketsPerWake && !peer_gone_.load(); ++i) {
    absl::StatusOr<std::optional<Packet>> packet = ReceivePacket(socket_.get());
    if (absl::IsUnavailable(packet.status())) return OnPeerGone(packet.status());
    if (packet.ok() && !packet->has_value()) return;
    heard_.store(true);
    const absl::Status handled = packet.ok() ? OnPacket(**std::move(packet)) : packet.status();
    if (handled.ok()) continue;
    const bool opening = readers_.empty();
    if (opening && !absl::IsUnavailable(handled)) RefusePeer(socket_.get(), handled.message());
    return End(Annotate(handled, Description()));
  }
}

void ShmLink::OnPeerGone(const absl::Status& why) {
  // The socket would be readable for ever.
  poller_.Remove(socket_.get());
  if (!readers_.empty()) {
    peer_gone_.store(true);
    return StopLingering();
  }
  End(absl::UnavailableError(
      absl::StrCat("cannot open a link to ", address_, ": ", why.message())));
}

absl::Status ShmLink::OnPacket(Packet packet) {
  const bool open = !readers_.empty();
  switch (packet.kind) {
    case PacketKind::kHello: {
      if (open) return absl::InvalidArgumentError("a second hello");
      absl::Status opened;
      InTurn([&] { opened = OnHello(std::move(packet)); });
      return opened;
    }
    case PacketKind::kRefusal:
      return absl::UnavailableError(
          absl::StrCat("the peer declines: ", absl::CHexEscape(packet.body)));
    case PacketKind::kProbe:
      SendPacket(socket_.get(), PacketKind::kAlive);
      break;
    case PacketKind::kSegment:
      return OnSegment(packet);
    case PacketKind::kDescriptor:
      if (open) return absl::InvalidArgumentError("a descriptor after the hello");
      return OnDescriptor(std::move(packet));
    case PacketKind::kBell:
    case PacketKind::kAlive:
      break;
  }
  return absl::OkStatus();
}

void ShmLink::WatchPeer(absl::Duration after) {
  core_->timers().RunAfter(after, [weak = weak_from_this()] {
    std::shared_ptr<ShmLink> self = weak.lock();
    if (self != nullptr && !self->ended_.load()) self->LookForLife();
  });
}

void ShmLink::LookForLife() {
  const ShmCarrierOptions& options = core_->options();
  const bool unread = HasUnread();
  // The peer may have been stopped before it rang the bell. Then nobody would read it.
  if (unread) poller_.Kick(shared_from_this());
  if (heard_.exchange(false) || unread) {
    probed_ = false;
    return WatchPeer(options.keepalive_time);
  }
  if (std::exchange(probed_, true)) {
    return End(absl::UnavailableError(
        absl::StrCat("lost the link to ", address_, ": no sign of life within ",
                     absl::FormatDuration(options.keepalive_timeout))));
  }
  SendPacket(socket_.get(), PacketKind::kProbe);
  WatchPeer(options.keepalive_timeout);
}

bool ShmLink::HasUnread() const {
  pollfd socket = {socket_.get(), POLLIN, 0};
  return poll(&socket, 1, /*timeout=*/0) > 0 || RingsHaveMore();
}

bool ShmLink::RingsHaveMore() const {
  const uint32_t waiting = waiting_rings_.load();
  for (size_t i = 0; i < readers_.size(); ++i) {
    if ((waiting >> i & 1) == 0 && readers_[i]->HasMore()) return true;
  }
  return false;
}

// Watching.

void ShmLink::StartWatching() {
  if (watchers_.fetch_add(1) == 0) {
    own_->header().door.asleep.store(0, std::memory_order_seq_cst);
  }
}

bool ShmLink::StopWatching() {
  if (watchers_.fetch_sub(1) != 1) return true;
  DoorLine& door = own_->header().door;
  door.naps.fetch_add(1, std::memory_order_relaxed);
  door.asleep.store(1, std::memory_order_seq_cst);
  if (!HasWork()) return true;
  StartWatching();
  return false;
}

bool ShmLink::HasWork() const {
  if (gone_.load()) return false;
  if (!ended_.load()) {
    if (unread_.load() || RingsHaveMore()) return true;
  }
  const uint32_t pending = pending_outlets_.load();
  for (size_t i = 0; i < writers_.size(); ++i) {
    if ((pending >> i & 1) != 0 && writers_[i]->HasSpace()) return true;
  }
  return false;
}

void ShmLink::LookForAWhile() {
  poller_spins_ = poller_spin_.Worthwhile();
  look_until_ = Clock::Steady().Now() + (poller_spins_ ? pauses_.Look() : absl::ZeroDuration());
  looked_in_vain_ = false;
}

bool ShmLink::OnWake(bool readable) {
  if (readable) ReadSocket();
  if (readers_.empty() || gone_.load()) {
    Poll();
    return false;
  }
  if (!std::exchange(poller_watches_, true)) {
    StartWatching();
    LookForAWhile();
  }
  return true;
}

Watched::Look ShmLink::OnLook(bool crowded) {
  const absl::Time now = Clock::Steady().Now();
  if (Poll()) {
    if (looked_in_vain_) poller_spin_.Report(true);
    pauses_.Report(now - last_found_);
    last_found_ = Clock::Steady().Now();
    LookForAWhile();
    return Look::kFound;
  }
  looked_in_vain_ = true;
  const bool needless = ended_.load() || helpers_.load(std::memory_order_relaxed) > 0;
  if (!needless && !crowded && now < look_until_) return Look::kNothing;
  if (poller_spins_ && !needless) poller_spin_.Report(false);
  if (crowded) poller_spin_.ReportCrowded();
  poller_spins_ = false;
  if (!StopWatching()) return Look::kNothing;
  poller_watches_ = false;
  return Look::kAsleep;
}

void ShmLink::HelpUntil(absl::FunctionRef<bool()> done) {
  if (done() || !helper_spin_.Worthwhile()) return;
  helpers_.fetch_add(1);
  StartWatching();
  const absl::Time begun = Clock::Steady().Now();
  bool found = false;
  // Whether others used the processor for long. If they did so for the peer or for this thread,
  // something is there now.
  bool crowded = false;
  for (unsigned turn = 0; !ended_.load();) {
    const bool any = PollAsHelper();
    found = done();
    if (found) break;
    if (any) {
      turn = 0;
      crowded = false;
    } else if (crowded) {
      helper_spin_.ReportCrowded();
      break;
    } else {
      crowded = !SpinTurn(++turn);
    }
    const absl::Duration most = any ? kMostHelp : kHelperLook;
    if (!crowded && Clock::Steady().Now() - begun >= most) break;
  }
  helpers_.fetch_sub(1);
  helper_spin_.Report(found);
  if (StopWatching()) return;
  // Something is there, and this thread leaves it to the poller.
  watchers_.fetch_sub(1);
  poller_.Kick(shared_from_this());
}

}  // namespace psd::carrier
