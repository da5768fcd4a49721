#pragma once

// A link through shared memory: two segments with rings, and a Unix socket for the introduction,
// for wake-ups, and to notice the peer's end.

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/stepwise_charge.h"
#include "core/carrier/assembler.h"
#include "core/carrier/bulk_queue.h"
#include "core/carrier/carrier.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/introduction.h"
#include "core/carrier/shm/lending/borrower.h"
#include "core/carrier/shm/lending/lender.h"
#include "core/carrier/shm/lending/note_box.h"
#include "core/carrier/shm/poller.h"
#include "core/carrier/shm/ring_reader.h"
#include "core/carrier/shm/ring_writer.h"
#include "core/carrier/shm/segment.h"
#include "core/carrier/shm/shm_core.h"
#include "core/carrier/shm/spin_policy.h"
#include "core/carrier/shm/traffic_sum.h"
#include "core/carrier/shm/turn_taking.h"
#include "core/carrier/shm/unix_socket.h"

namespace psd::carrier {

// Thread-safe. Created by Dial or Accept; registered with the core until OnClosed was called and
// nothing is left to send. No lock is held while the handler is called.
//
// The rings are read by whichever thread has the turn: the poller, or a thread that waits for an
// answer (HelpUntil). While some thread looks at them the peer rings no bell.
//
// Before the hello, each end passes the descriptors of the carrier's user (passed_descriptors.h).
//
// Large messages whose buffers lie in segments are not copied into rings: they are lent (lending/).
class ShmLink : public Link, public Watched, public std::enable_shared_from_this<ShmLink> {
 public:
  static void Dial(std::shared_ptr<ShmCore> core, const std::string& address,
                   absl::Duration timeout, std::shared_ptr<LinkHandler> handler,
                   ConnectCallback done);

  // Waits for the introduction of the peer at the other end of `socket`, then asks `accept`.
  static std::shared_ptr<ShmLink> Accept(std::shared_ptr<ShmCore> core, UniqueFd socket,
                                         const PeerProcess& peer, AcceptCallback accept);
  // Whether it is not open yet, and has not ended.
  bool silent() const PSD_EXCLUDES(send_mutex_);
  // Ends a link that is silent, because more than `bound` are, and tells the peer.
  void EndSilent(size_t bound);

  absl::Status Send(Message message) override;
  void Close() override;
  std::string Description() const override { return "shm " + address_; }
  SharedTraffic shared_traffic() const override;

  void HelpUntil(absl::FunctionRef<bool()> done) override;

  bool OnWake(bool readable) override;
  Look OnLook(bool crowded) override;
  bool IsCalled() const override { return !notes_->empty(); }
  void OnCall() override { TellNotes(); }

  ShmLink(std::shared_ptr<ShmCore> core, std::string address, UniqueFd socket, bool dialled);

 private:
  enum class Phase { kOpening, kOpen, kEnded };
  enum class Farewell { kNone, kGoodbye };

  static constexpr size_t kControl = 0;
  // The rounds over the rings in one turn of the poller, and in one of a thread that helps and
  // looks after each turn whether its answer has come.
  static constexpr int kRoundsOfTurn = 16;
  static constexpr int kRoundsOfHelper = 2;
  // The unit in which messages that wait for the control ring are charged. The first unit is not.
  static constexpr size_t kControlUnit = size_t{1} << 20;

  // A frame that waits for space in its ring.
  struct Queued {
    OutgoingFrame frame;
    size_t message_bytes = 0;  // counted in queued_bytes_ until the frame is written
    MemoryCharge charge;       // null on the control ring
  };

  // A ring of this end's and the frames that wait for it.
  struct Outlet {
    bool writing = false;  // a thread writes into the ring
    bool starved = false;  // the peer was told that this end waits for space
    bool moved = true;     // something was written since the last look for stalls
    std::deque<Queued> queue;
  };

  // A received frame's part that is for the handler.
  struct Received {
    std::optional<Message> message;
    std::optional<RefusedMessage> refused;
    bool goodbye = false;
  };

  // Opening.
  // Registers the link, watches its socket, and gives up after `timeout`.
  absl::Status Start(absl::Duration timeout) PSD_EXCLUDES(send_mutex_);
  absl::Status OnHello(Packet hello) PSD_EXCLUDES(send_mutex_);
  absl::Status OpenRings(const Introduction& peer) PSD_EXCLUDES(send_mutex_);
  void TellOpened();
  absl::Status MakeSegment();
  absl::Status CheckPeerProcess() const;
  // Passes the descriptors of the carrier's user, then introduces this end.
  absl::Status SendHello();
  void PassDescriptors();

  // Ending. BeginEnd returns true the first time; the poller tells the handler then.
  void End(const absl::Status& reason) PSD_EXCLUDES(send_mutex_);
  bool BeginEnd(Farewell farewell, const absl::Status& reason) PSD_EXCLUDES(send_mutex_);
  // The first part of BeginEnd: the caller wakes the poller. With `only_opening`, does nothing if
  // the link is open.
  bool MarkEnded(Farewell farewell, const absl::Status& reason, bool only_opening)
      PSD_EXCLUDES(send_mutex_);
  bool Lingers() const PSD_EXCLUDES(send_mutex_);
  void StopLingering() PSD_EXCLUDES(send_mutex_);
  // By the thread that has the turn.
  void FinishEnd() PSD_EXCLUDES(send_mutex_);
  void TellEnd(const absl::Status& reason);

  // The socket, on the poller's thread.
  void ReadSocket();
  absl::Status OnPacket(Packet packet);
  absl::Status OnSegment(const Packet& packet);
  absl::Status OnDescriptor(Packet packet);
  // Returns the process at the other end; null if the carrier has no user for descriptors, or the
  // process cannot be watched.
  std::shared_ptr<HostProcess> FindProcess();
  void OnPeerGone(const absl::Status& why);
  void WatchPeer(absl::Duration after);
  void LookForLife();
  // Whether the peer has sent something that the poller has not read yet. That is a sign of life,
  // too: the poller may be busy, or get no processor.
  bool HasUnread() const;
  // Whether the peer has written into a ring that does not wait for room, since it was last read.
  bool RingsHaveMore() const;

  // Receiving, by the thread that has the turn. Poll takes the turn if it is free, else the thread
  // that has it works once more. Returns whether this thread received or sent something. An
  // exception of the handler ends the process, because the turn would never be free again.
  bool Poll() noexcept;
  // As Poll, but does little at a time, and nothing if another thread has the turn.
  bool PollAsHelper() noexcept;
  // Runs `first` in a turn. Requires: no other thread can have the turn.
  template <typename F>
  void InTurn(F first) {
    PSD_CHECK(turn_.Enter(), "another thread uses a link that is not open");
    first();
    while (!turn_.Leave()) Work();
  }
  // `rounds` is the most rounds over the rings that are read; at least 2, because a round in which
  // nothing comes shows that nothing is left.
  bool Work(int rounds = kRoundsOfTurn);
  bool ReceiveAll(int rounds);
  // Returns whether a frame was taken from the ring.
  absl::StatusOr<bool> ReceiveOne(size_t ring);
  // False: the frame finds no room yet and stays where it is.
  absl::StatusOr<bool> HandleFrame(size_t ring, const Frame& frame, Received& received);
  void HandleMessage(const MessageFrame& frame, Received& received);
  absl::StatusOr<bool> HandlePiece(const PieceFrame& piece, Received& received);
  absl::Status HandleAck(uint64_t transfer) PSD_EXCLUDES(send_mutex_);
  absl::Status HandleRoom(uint64_t transfer) PSD_EXCLUDES(send_mutex_);
  void Deliver(Received received);
  void TryAgainLater(size_t ring);
  void EndReceiving(const absl::Status& why);
  absl::Status LookForStalls() PSD_EXCLUDES(send_mutex_);
  absl::Status LookForUnread() PSD_EXCLUDES(send_mutex_);
  void WatchForStalls();

  // Lending. SendLent returns false, and leaves the message as it is, if it cannot be lent.
  absl::StatusOr<bool> SendLent(Message& message) PSD_EXCLUDES(send_mutex_);
  absl::StatusOr<bool> HandleLending(const Frame& frame, Received& received)
      PSD_EXCLUDES(send_mutex_);
  void TakeOutcome(Borrower::Outcome outcome, Received& received) PSD_EXCLUDES(send_mutex_);
  absl::Status HandleDeclined(const DeclinedFrame& declined) PSD_EXCLUDES(send_mutex_);
  // Delivers parked messages whose segments have come.
  absl::Status DeliverParked();
  // Tells the peer which of its messages nobody reads any more, and which segments are gone.
  void TellNotes() PSD_EXCLUDES(send_mutex_);

  // Watching. The peer rings no bell while a thread watches. StopWatching returns false if there is
  // something to do and this thread watches still.
  void StartWatching();
  bool StopWatching();
  bool HasWork() const;
  // Sets until when the poller looks.
  void LookForAWhile();

  // Sending.
  absl::Status CheckRoom(const Message& message) const PSD_REQUIRES(send_mutex_);
  absl::Status EnqueueInline(const Message& message) PSD_EXCLUDES(send_mutex_);
  // Sends a large message through the rings for pieces.
  absl::Status SendBulk(Message message) PSD_EXCLUDES(send_mutex_);
  // Requires: the message may be sent, and is charged.
  void EnqueueBulk(Message message) PSD_REQUIRES(send_mutex_);
  static Queued ToQueued(FrameEncoder& encoder);
  absl::Status AppendControl(Queued queued) PSD_REQUIRES(send_mutex_);
  // Adds a frame of a few bytes to the control ring, and sends it.
  template <typename F>
  void Tell(F append) PSD_EXCLUDES(send_mutex_) {
    FrameEncoder encoder;
    append(encoder);
    const absl::Status queued = EnqueueControl(encoder);
    if (absl::IsResourceExhausted(queued)) EndUnread(queued);
    if (queued.ok()) PumpControl();
  }
  absl::Status EnqueueControl(FrameEncoder& encoder) PSD_EXCLUDES(send_mutex_);
  // Ends the link of a peer that reads nothing, because control messages cannot be left out.
  void EndUnread(const absl::Status& why);
  // Writes frames into the ring until it is full, nothing is left, or about `most` bytes are
  // written. Returns the number of bytes. If it is `most` or more, the ring is marked as pending.
  size_t Pump(size_t number, size_t most) PSD_EXCLUDES(send_mutex_);
  // Returns whether anything was written.
  bool PumpAll() PSD_EXCLUDES(send_mutex_);
  // Write a bounded number of bytes, and have the poller write the rest.
  void PumpControl() PSD_EXCLUDES(send_mutex_);
  void PumpBulk() PSD_EXCLUDES(send_mutex_);
  // The number of frames that are taken from the queue at once.
  static ptrdiff_t CountAtOnce(const Outlet& outlet);
  // Takes some frames that go into the ring next, and sets `writing`. Empty: there are none, or
  // another thread writes. `frees` is set as in BulkQueue::Piece.
  std::vector<Queued> TakeNext(size_t number, std::optional<size_t>& frees)
      PSD_EXCLUDES(send_mutex_);
  std::optional<BulkQueue::Piece> NextPiece(size_t number) PSD_REQUIRES(send_mutex_);
  static std::vector<Queued> EncodePiece(BulkQueue::Piece piece);
  // Ends `writing`. `frames` are those of TakeNext, of which the first `written` are in the ring;
  // the others did not fit. Returns true if there is space again.
  bool PutBack(size_t number, std::vector<Queued> frames, size_t written, bool moved)
      PSD_EXCLUDES(send_mutex_);
  // Notes whether frames of the outlet are left to write.
  void SetPending(size_t number, bool pending);
  void RingBell();

  const std::shared_ptr<ShmCore> core_;  // shared by all links of the carrier
  const std::string address_;            // of the peer, for logs
  const UniqueFd socket_;
  const bool dialled_;
  std::string peer_process_;  // of an accepted link; set before it is watched
  ShmPoller& poller_;

  const std::shared_ptr<PeerQuotas> quotas_;  // see PeerQuotas
  const std::shared_ptr<NoteBox> notes_;      // shared with segments and received messages
  Lender lender_;
  Borrower borrower_;

  TurnTaking turn_;
  // Used only by the thread that has the turn, and before it is open by the poller's thread.
  std::shared_ptr<LinkHandler> handler_;  // shared with the user until OnClosed has returned
  ConnectCallback connected_;             // of a dialled link; null after it was called
  AcceptCallback accept_;                 // of an accepted link; null after it was called
  std::vector<std::unique_ptr<RingReader>> readers_;
  Assembler assembler_;
  bool told_ = false;
  TrafficSum copied_in_;
  TrafficSum borrowed_;
  std::atomic<bool> gone_{false};  // told, and the core has forgotten this link

  // Set before the link is open, and fixed then.
  MemoryCharge ring_share_;
  std::unique_ptr<OwnSegment> own_;
  std::unique_ptr<PeerSegment> peer_;
  std::vector<std::unique_ptr<RingWriter>> writers_;  // each used by the thread that set `writing`

  std::atomic<bool> ended_{false};
  std::atomic<bool> peer_gone_{false};  // its socket ended; its rings may hold last words
  std::atomic<bool> look_for_stalls_{false};
  std::atomic<bool> room_timer_set_{false};
  std::atomic<uint32_t> waiting_rings_{0};    // their next frame waits for room; one bit each
  std::atomic<uint32_t> pending_outlets_{0};  // with frames left to write; one bit each
  std::atomic<bool> unread_{false};           // the last turn left something in the rings
  std::atomic<int> watchers_{0};
  std::atomic<int> helpers_{0};
  std::atomic<uint32_t> rung_{0};  // the peer's nap for which the bell was rung
  std::atomic<bool> heard_{true};  // since the last look for life
  size_t passed_here_ = 0;         // descriptors; used only on the poller's thread
  SpinPolicy poller_spin_;
  SpinPolicy helper_spin_;
  // Used only on the poller's thread.
  bool poller_watches_ = false;
  bool poller_spins_ = false;  // it looks for longer than once
  bool looked_in_vain_ = false;
  absl::Time look_until_;
  absl::Time last_found_ = absl::InfinitePast();
  PauseLengths pauses_;
  // Used only by the timer.
  bool probed_ = false;

  mutable Mutex send_mutex_;  // before: TimerQueue
  Phase phase_ PSD_GUARDED_BY(send_mutex_) = Phase::kOpening;
  absl::Status reason_ PSD_GUARDED_BY(send_mutex_);     // why it has ended
  bool lingering_ PSD_GUARDED_BY(send_mutex_) = false;  // it has ended, and control goes out still
  Limits send_limits_ PSD_GUARDED_BY(send_mutex_);  // for each bound the smaller of the two ends'
  TimerQueue::Id opening_timer_ PSD_GUARDED_BY(send_mutex_) = 0;
  std::array<Outlet, kMaxRings> outlets_ PSD_GUARDED_BY(send_mutex_);
  BulkQueue bulk_queue_ PSD_GUARDED_BY(send_mutex_);
  bool bulk_moved_ PSD_GUARDED_BY(send_mutex_) = true;  // as Outlet::moved
  size_t queued_bytes_ PSD_GUARDED_BY(send_mutex_) = 0;
  TrafficSum copied_out_;  // added to with send_mutex_
  StepwiseCharge control_charge_ PSD_GUARDED_BY(send_mutex_){kControlUnit, kControlUnit};
};

}  // namespace psd::carrier
