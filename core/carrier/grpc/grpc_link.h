#pragma once

// A link over gRPC streams. Each stream has its own connection: one for small messages, and several
// more that are opened at the first large message.

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/carrier/assembler.h"
#include "core/carrier/bulk_queue.h"
#include "core/carrier/carrier.h"
#include "core/carrier/frame.h"
#include "core/carrier/grpc/channel_settings.h"
#include "core/carrier/grpc/grpc_core.h"
#include "core/carrier/grpc/grpc_stream.h"
#include "core/carrier/grpc/unread_window.h"
#include "core/carrier/serial_runner.h"
#include "core/carrier/waiting_line.h"

namespace psd::carrier {

// Thread-safe. Created by Dial or Accept; registered with the core until OnClosed was called. No
// lock is held while the handler is called.
class GrpcLink : public Link, public StreamOwner, public std::enable_shared_from_this<GrpcLink> {
 public:
  static void Dial(std::shared_ptr<GrpcCore> core, const std::string& address,
                   absl::Duration timeout, std::shared_ptr<LinkHandler> handler,
                   ConnectCallback done);

  // Makes a link for an accepted stream whose first frame was `hello`. Answers the hello if
  // `accept` takes the link.
  static void Accept(std::shared_ptr<GrpcCore> core, std::shared_ptr<GrpcStream> control,
                     const HelloFrame& hello, const AcceptCallback& accept);

  // Adds another accepted stream, whose first frame was `hello`, to this link. Returns false if
  // there is no place for it.
  bool Adopt(const std::shared_ptr<GrpcStream>& stream, const HelloFrame& hello);

  absl::Status Send(Message message) override;
  void Close() override;
  std::string Description() const override { return "grpc " + address_; }

  void OnStarted(const std::shared_ptr<GrpcStream>& stream) override;
  void OnRead(const std::shared_ptr<GrpcStream>& stream, const grpc::ByteBuffer& bytes) override;
  void OnWritten(const std::shared_ptr<GrpcStream>& stream) override;
  void OnEnded(const std::shared_ptr<GrpcStream>& stream, const grpc::Status& status) override;

  GrpcLink(std::shared_ptr<GrpcCore> core, std::string address, const LinkToken& token,
           bool dialled);

 private:
  // Small frames that wait for the control stream are sent together, up to about this many bytes.
  static constexpr size_t kBatchBytes = size_t{256} << 10;
  // Streams are read ahead while fewer bytes than this, from all streams, wait for the handler.
  static constexpr size_t kReadAheadBytes = size_t{1} << 20;
  // Messages that wait for the control stream are charged in units of this size. Less than one unit
  // is not charged.
  static constexpr size_t kControlUnit = size_t{1} << 20;
  // The bytes of a frame that names a transfer.
  static constexpr size_t kSmallFrameBytes = kPreambleBytes + 8;

  // The numbers of the link's outlets. Outlets from kFirstBulk on carry pieces.
  static constexpr size_t kControl = 0;
  static constexpr size_t kWhole = 1;
  static constexpr size_t kFirstBulk = 2;
  static constexpr size_t kOutlets = kFirstBulk + BulkQueue::kMaxStreams;

  enum class Phase { kOpening, kOpen, kEnded };
  enum class Farewell { kNone, kGoodbye };

  // Frames that go out together.
  struct Queued {
    FrameEncoder frames;
    size_t message_bytes = 0;  // of a message that counts as unread until the peer has read it
    MemoryCharge charge;       // null on the control stream
  };

  // A stream and the frames that wait for it.
  struct Outlet {
    std::shared_ptr<GrpcStream> stream;  // null until it is opened; shared with its operations
    bool started = false;
    bool greeted = false;  // whether the peer's hello has come, or none is expected
    bool writing = false;
    bool moved = true;  // whether anything was written since the last look for stalls
    size_t writing_bytes = 0;
    MemoryCharge writing_charge;
    std::deque<Queued> queue;  // sent in order; on a bulk stream before any piece
  };

  // The contents of one network message that are for the handler.
  struct Received {
    std::vector<Message> messages;
    std::vector<RefusedMessage> refused;
    bool opened = false;  // whether the peer has answered this end's hello
    bool goodbye = false;

    bool empty() const { return messages.empty() && refused.empty() && !opened && !goodbye; }
    // Returns about how many bytes wait for the handler.
    size_t Bytes() const;
  };

  // A received network message, with the results of the frames that were handled.
  struct Inbound {
    Received received;
    size_t handled_bytes = 0;
    PlaceInLine place;  // for the next frame, if it is a whole message that found no room
    bool may_wait = true;
    std::shared_ptr<GrpcCore::Unread> unread;  // set while it waits
  };

  // The two kinds of streams that bring large messages, each of which waits for room on its own.
  enum Kind : size_t { kWholes, kPieces, kKinds };

  // Opening.
  void StartDialling(absl::Duration timeout) PSD_EXCLUDES(send_mutex_);
  void OpenAccepted(const std::shared_ptr<GrpcStream>& control, const AcceptCallback& accept)
      PSD_EXCLUDES(send_mutex_);
  void SetPeerLimits(const HelloFrame& peer) PSD_REQUIRES(send_mutex_);
  void TellOpened();

  // Ending. BeginEnd returns true the first time; then TellEnd must follow, as a task of runner_ on
  // one of the carrier's threads. End does both.
  void End(const absl::Status& reason);
  bool BeginEnd(Farewell farewell) PSD_EXCLUDES(send_mutex_);
  void TellEnd(const absl::Status& reason);

  // Sending.
  static StreamRole RoleOf(size_t number);
  static Kind KindOf(StreamRole role) { return role == StreamRole::kWhole ? kWholes : kPieces; }
  // Must be called when the outlet's stream can be written to. Queues this end's hello as the first
  // frame.
  void Open(size_t number) PSD_REQUIRES(send_mutex_);
  absl::Status EnqueueInline(const Message& message) PSD_EXCLUDES(send_mutex_);
  absl::Status EnqueueWhole(const Message& message) PSD_EXCLUDES(send_mutex_);
  absl::Status EnqueueBulk(Message message) PSD_EXCLUDES(send_mutex_);
  absl::Status CheckRoom(const Message& message) const PSD_REQUIRES(send_mutex_);
  // Adds the frames that `append(FrameEncoder&)` writes to those that wait for the control stream.
  template <typename F>
  void AppendControl(F append) PSD_REQUIRES(send_mutex_) {
    std::deque<Queued>& queue = outlets_[kControl].queue;
    if (queue.empty()) outlets_[kControl].moved = true;
    if (queue.empty() || queue.back().frames.bytes() >= kBatchBytes) queue.emplace_back();
    FrameEncoder& encoder = queue.back().frames;
    size_t before = encoder.bytes();
    append(encoder);
    queued_bytes_ += encoder.bytes() - before;
    control_bytes_ += encoder.bytes() - before;
  }
  // Writes the next frames, unless a write is under way.
  void Pump(size_t number) PSD_EXCLUDES(send_mutex_);
  void PumpBulk() PSD_EXCLUDES(send_mutex_);
  // Dials all streams but the control stream, or asks the peer to, unless that was done before.
  void WantBulk() PSD_EXCLUDES(send_mutex_);
  void DialBulk() PSD_EXCLUDES(send_mutex_);
  // Puts an accepted stream into its outlet. Returns false if there is no place for it.
  bool Place(const std::shared_ptr<GrpcStream>& stream, size_t number) PSD_EXCLUDES(send_mutex_);
  // Returns the number of the outlet with this stream; kOutlets if the stream has ended.
  size_t NumberOf(const GrpcStream* stream) const PSD_REQUIRES(send_mutex_);
  bool Ended() const PSD_EXCLUDES(send_mutex_);

  // Charges the memory of messages that wait for the control stream, in large units. Errors:
  // RESOURCE_EXHAUSTED.
  absl::Status ChargeControl(size_t more) PSD_REQUIRES(send_mutex_);
  // Returns the account to charge for a queue, depending on whether it is `idle`.
  MemoryAccount& QueueAccount(bool idle) const;
  // Adds a frame of a few bytes for the control stream, and sends it.
  template <typename F>
  void Tell(F append) PSD_EXCLUDES(send_mutex_) {
    absl::Status charged;
    {
      MutexLock lock(send_mutex_);
      if (phase_ != Phase::kOpen) return;
      charged = ChargeControl(kSmallFrameBytes);
      if (charged.ok()) AppendControl(append);
    }
    if (!charged.ok()) return EndUnread(charged);
    Pump(kControl);
  }
  void ControlWritten(size_t bytes) PSD_REQUIRES(send_mutex_);
  // Ends the link because its peer reads nothing, and control messages cannot be dropped.
  void EndUnread(const absl::Status& why);

  // Stalls. Checks at even intervals, and ends the link if nothing has moved since the last check.
  void WatchForStalls();
  absl::Status LookForStalls() PSD_EXCLUDES(send_mutex_, receive_mutex_);
  absl::Status LookForUnread() PSD_EXCLUDES(send_mutex_);

  // Receiving. A frame for which there is no room is tried again later. Its stream is not read
  // meanwhile, because the waiting message may be long.
  void HandleInbound(const std::shared_ptr<GrpcStream>& stream, const grpc::ByteBuffer& bytes,
                     Inbound inbound);
  // Lets the next frame, which found no room, wait for it. Returns false if it may not wait.
  bool AwaitRoom(const std::shared_ptr<GrpcStream>& stream, Inbound& inbound)
      PSD_EXCLUDES(send_mutex_, receive_mutex_);
  // Counts bytes of a large message that were read. If they had waited for room, the peer is told
  // at once, so that it does not take a link with little room for one that is not read.
  void CountRead(StreamRole role, size_t bytes, const Inbound& inbound)
      PSD_EXCLUDES(receive_mutex_);
  // Returns false if the next frame finds no room yet.
  absl::StatusOr<bool> HandleFrames(const std::shared_ptr<GrpcStream>& stream,
                                    const grpc::ByteBuffer& bytes, Inbound& inbound);
  absl::StatusOr<bool> HandleFrame(const std::shared_ptr<GrpcStream>& stream, const Frame& frame,
                                   Inbound& inbound);
  absl::StatusOr<bool> HandleMessage(const std::shared_ptr<GrpcStream>& stream,
                                     const MessageFrame& frame, Inbound& inbound);
  absl::Status HandleControl(const std::shared_ptr<GrpcStream>& stream, const Frame& frame,
                             Received* received);
  // Errors: INVALID_ARGUMENT if `stream` is the control stream, which never waits for room.
  absl::Status CheckMayWait(const GrpcStream* stream) const PSD_EXCLUDES(send_mutex_);
  // If `more`, asks the stream for its next message before it passes `received` to the handler, so
  // that acknowledgements and the peer's end are noticed while the handler works. If many bytes
  // already wait for the handler, the stream is asked afterwards.
  void Deliver(const std::shared_ptr<GrpcStream>& stream, Received received, bool more);
  // Calls the handler, as a task of runner_. Returns false if the link has ended.
  bool Handle(Received& received);
  absl::Status HandleHello(const std::shared_ptr<GrpcStream>& stream, const HelloFrame& hello,
                           Received* received) PSD_EXCLUDES(send_mutex_);
  absl::Status HandleAnnounce(const AnnounceFrame& announce) PSD_EXCLUDES(receive_mutex_);
  absl::StatusOr<bool> HandlePiece(const PieceFrame& piece, Inbound& inbound)
      PSD_EXCLUDES(receive_mutex_);
  absl::Status HandleAck(uint64_t transfer) PSD_EXCLUDES(send_mutex_);
  absl::Status HandleRoom(uint64_t transfer) PSD_EXCLUDES(send_mutex_);
  absl::Status HandleRead(const ReadFrame& read) PSD_EXCLUDES(send_mutex_);

  const std::shared_ptr<GrpcCore> core_;  // shared by all links of the carrier
  const std::string address_;             // the peer's, for logs
  const LinkToken token_;
  const bool dialled_;

  SerialRunner runner_;
  std::atomic<size_t> unhandled_bytes_{0};  // received and not handled yet
  // Used only by runner_'s tasks. Shared with the user until OnClosed has returned.
  std::shared_ptr<LinkHandler> handler_;
  ConnectCallback connected_;  // for a dialled link; null after it was called

  mutable Mutex send_mutex_;  // before: GrpcStream, TimerQueue
  Phase phase_ PSD_GUARDED_BY(send_mutex_) = Phase::kOpening;
  // For each bound the smaller of the two ends' values.
  Limits send_limits_ PSD_GUARDED_BY(send_mutex_);
  TimerQueue::Id connect_timer_ PSD_GUARDED_BY(send_mutex_) = 0;
  std::array<Outlet, kOutlets> outlets_ PSD_GUARDED_BY(send_mutex_);
  absl::Time hello_sent_ PSD_GUARDED_BY(send_mutex_);
  // The window of the bulk streams of a dialled link. Known once the peer has answered the hello.
  Window bulk_window_ PSD_GUARDED_BY(send_mutex_) = Window::kFixed;
  bool bulk_wanted_ PSD_GUARDED_BY(send_mutex_) = false;
  BulkQueue bulk_queue_ PSD_GUARDED_BY(send_mutex_);
  bool bulk_moved_ PSD_GUARDED_BY(send_mutex_) = true;  // as Outlet::moved
  std::array<UnreadWindow, kKinds> windows_ PSD_GUARDED_BY(send_mutex_);
  size_t queued_bytes_ PSD_GUARDED_BY(send_mutex_) = 0;
  // The part of these that is for the control stream.
  size_t control_bytes_ PSD_GUARDED_BY(send_mutex_) = 0;
  std::vector<MemoryCharge> control_charges_ PSD_GUARDED_BY(send_mutex_);  // each of kControlUnit

  Mutex receive_mutex_;  // before: WaitingLine
  Assembler assembler_ PSD_GUARDED_BY(receive_mutex_);
  std::array<ReadCount, kKinds> read_ PSD_GUARDED_BY(receive_mutex_);
  // The core's count of unread bytes for each kind of stream. The streams that wait share it, and
  // it ends with the last of them.
  std::array<std::weak_ptr<GrpcCore::Unread>, kKinds> unread_ PSD_GUARDED_BY(receive_mutex_);
};

}  // namespace psd::carrier
