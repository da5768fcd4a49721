#include "core/device_pieces/piece_collector.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/device_pieces/piece_methods.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_pieces {
namespace {

absl::Status Malformed(const std::string& sender) {
  return absl::InvalidArgumentError(
      absl::StrCat(sender, " left out buffers that its message does not have"));
}

// Whose pull it is, and how it is asked about.
struct Source {
  rpc::PeerInfo peer;
  uint64_t epoch = 0;  // of our session there, which has the pull; 0: any session
  bool ends = true;    // whether the peer is told that the pull has ended
};

Source SourceOf(const rpc::Reply& reply) {
  return {reply.callee, reply.epoch, /*ends=*/true};
}

template <typename Message, typename ReplyType>
auto AskAbout(rpc::RpcAgent& agent, const rpc::Declared<Message, ReplyType>& method,
              const Source& source, const Message& message, absl::Duration timeout) {
  rpc::Request request;
  request.payload = rpc::PlainPayload(message);
  request.only_epoch = source.epoch;
  rpc::CallOptions options;
  options.timeout = timeout;
  return rpc::Ask(agent, method,
                  {source.peer.name, source.peer.incarnation, /*session_bound=*/true},
                  std::move(request), options);
}

// Tells the owner that the pull has ended. The message has no deadline: it is repeated until the
// owner has received it, or the session ends.
void EndPull(rpc::RpcAgent& agent, const Source& source, uint64_t pull) {
  if (!source.ends) return;
  v1::PullEnd end;
  end.set_pull(pull);
  AskAbout(agent, kValueEndPull, source, end, /*timeout=*/absl::ZeroDuration());
}

// If the answer takes longer, more pieces are asked for at the same time.
constexpr absl::Duration kSlowAnswer = absl::Milliseconds(5);

// Counts one more piece, unless there are the most.
bool CountMore(MorePieces& more) {
  size_t count = more;
  while (count < kMorePieces)
    if (more.compare_exchange_weak(count, count + 1)) return true;
  return false;
}

// Memory for one tensor that was left out.
class Assembly {
 public:
  // Memory that is filled already.
  explicit Assembly(Buffer whole) : buffer_(std::move(whole)), whole_(true) {}
  static absl::StatusOr<Assembly> Create(size_t bytes, Device* device) {
    if (device == nullptr) {
      PSD_ASSIGN_OR_RETURN(Tensor memory, Tensor::Empty({static_cast<int64_t>(bytes)}, DType::kU8));
      std::byte* const data = memory.mutable_raw_data();
      return Assembly(nullptr, memory.AsBuffer(), data);
    }
    PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Block> block, device->memory().Allocate(bytes));
    return Assembly(device, Buffer(block), block->data());
  }

  // Copies `bytes` to `offset`, and waits for the device. Requires: nobody reads them yet.
  absl::Status Fill(uint64_t offset, const Buffer& bytes) const {
    return CopyBytes(device_, data_ + offset, nullptr, bytes.data(), bytes.size());
  }
  const Buffer& buffer() const { return buffer_; }
  bool whole() const { return whole_; }

 private:
  Assembly(Device* device, Buffer buffer, std::byte* data)
      : device_(device), buffer_(std::move(buffer)), data_(data) {}

  Device* device_ = nullptr;
  Buffer buffer_;
  std::byte* data_ = nullptr;
  bool whole_ = false;
};

// One pull. Shared by its pieces under way. Thread-safe.
class Collector : public std::enable_shared_from_this<Collector> {
 public:
  Collector(const PieceCollection& uses, Source source, std::vector<Buffer> buffers,
            v1::LeftOut left_out, Device* device, absl::Time deadline, WorkLabel label)
      : uses_(uses),
        source_(std::move(source)),
        buffers_(std::move(buffers)),
        left_out_(std::move(left_out)),
        device_(device),
        deadline_(deadline),
        label_(label) {}
  ~Collector() {
    for (; next_lent_ < left_out_.lent_size(); ++next_lent_)
      uses_.loans->Decline(source_.peer, left_out_.lent(next_lent_));
  }

  Future<std::vector<Buffer>> Start() {
    // The memory is charged as that of the executor's tasks.
    OnExecutor([](Collector& self) { return self.Begin(); });
    return whole_.future();
  }

  // Ends the pull with CANCELLED, unless it has ended.
  void GiveUp() {
    const rref::Gate::Entry entry(*uses_.gate);
    if (entry.open()) End(absl::CancelledError("the caller has given up"));
  }

 private:
  struct Piece {
    int number = 0;  // in left_out_
    uint64_t offset = 0;
    uint64_t bytes = 0;
    absl::Time asked = absl::InfinitePast();
  };

  // Runs `step`, whose error ends the pull, while the worker exists.
  template <typename Step>
  void OnExecutor(Step step) {
    const absl::Status queued = uses_.executor.SubmitAs(label_, [self = shared_from_this(), step] {
      const rref::Gate::Entry entry(*self->uses_.gate);
      if (!entry.open()) return;  // dropping the promise tells the caller
      if (absl::Status done = step(*self); !done.ok()) self->End(done);
    });
    if (!queued.ok()) End(queued);
  }

  absl::Status Begin() PSD_EXCLUDES(mutex_) {
    std::vector<Assembly> assemblies;
    for (int i = 0; i < left_out_.buffers_size(); ++i) {
      if (std::optional<Buffer> borrowed = Borrow(i)) {
        assemblies.emplace_back(*std::move(borrowed));
        continue;
      }
      PSD_ASSIGN_OR_RETURN(Assembly assembly, Assembly::Create(left_out_.bytes(i), device_));
      assemblies.push_back(std::move(assembly));
    }
    {
      MutexLock lock(mutex_);
      if (ended_) return absl::OkStatus();
      assemblies_ = std::move(assemblies);
    }
    for (size_t i = 0; i < kPiecesUnderWay; ++i) AskNext();
    bool nothing_left = false;
    {
      MutexLock lock(mutex_);
      nothing_left = under_way_ == 0 && next_.number == left_out_.bytes_size();
    }
    if (nothing_left) End(absl::OkStatus());
    return absl::OkStatus();
  }

  // Returns the bytes of the buffer with this number if they are read where the owner has them.
  // Requires: it was called for all smaller numbers.
  std::optional<Buffer> Borrow(int number) {
    const bool lent = next_lent_ < left_out_.lent_size() &&
                      left_out_.lent(next_lent_).number() == static_cast<uint32_t>(number);
    if (!lent) {
      if (device_ != nullptr) uses_.loans->NoteCopied(source_.peer, *device_);
      return std::nullopt;
    }
    const v1::LentBlock& block = left_out_.lent(next_lent_++);
    if (device_ == nullptr) {
      uses_.loans->Decline(source_.peer, block);
      return std::nullopt;
    }
    absl::StatusOr<Buffer> borrowed = uses_.loans->Borrow(source_.peer, *device_, block);
    if (!borrowed.ok()) return std::nullopt;  // logged, or the loan was recalled
    return *std::move(borrowed);
  }

  // Asks for the next piece, if there is one.
  void AskNext() PSD_EXCLUDES(mutex_) {
    Piece piece;
    {
      MutexLock lock(mutex_);
      if (ended_) return;
      SkipWhole();
      if (next_.number == left_out_.bytes_size()) return;
      piece = next_;
      const uint64_t left = left_out_.bytes(next_.number) - next_.offset;
      piece.bytes = std::min<uint64_t>(left, kPieceBytes);
      next_.offset += piece.bytes;
      if (piece.bytes == left) next_ = {next_.number + 1};
      ++under_way_;
    }
    piece.asked = uses_.clock.Now();
    v1::PullPieceRequest request;
    request.set_pull(left_out_.pull());
    request.set_number(static_cast<uint32_t>(piece.number));
    request.set_offset(piece.offset);
    request.set_bytes(static_cast<uint32_t>(piece.bytes));
    absl::Duration timeout = absl::ZeroDuration();  // none
    if (deadline_ != absl::InfiniteFuture())
      timeout = std::max(deadline_ - uses_.clock.Now(), absl::Nanoseconds(1));
    AskAbout(uses_.agent, kValuePiece, source_, request, timeout)
        .OnReady([self = shared_from_this(), piece](const absl::StatusOr<rpc::Reply>& answer) {
          const rref::Gate::Entry entry(*self->uses_.gate);
          if (!entry.open()) return;
          if (!answer.ok()) return self->End(answer.status());
          const bool slow = self->uses_.clock.Now() - piece.asked > kSlowAnswer;
          self->OnExecutor([piece, slow, buffers = answer->payload.buffers](Collector& collector) {
            return collector.Store(piece, buffers, slow);
          });
        });
  }

  // Skips tensors of which no piece is wanted. Requires: !ended_.
  void SkipWhole() PSD_REQUIRES(mutex_) {
    while (next_.number < left_out_.bytes_size() &&
           assemblies_[static_cast<size_t>(next_.number)].whole()) {
      ++next_.number;
    }
  }

  // Asks for the next piece, and if this one was `slow`, for one more.
  absl::Status Store(const Piece& piece, const std::vector<Buffer>& buffers, bool slow)
      PSD_EXCLUDES(mutex_) {
    if (buffers.size() != 1 || buffers[0].size() != piece.bytes)
      return absl::InvalidArgumentError(
          absl::StrCat(source_.peer.name, " sent a piece of another size than was asked for"));
    std::optional<Assembly> assembly;  // shares the memory, which the end of the pull drops
    {
      MutexLock lock(mutex_);
      if (ended_) return absl::OkStatus();
      assembly = assemblies_[static_cast<size_t>(piece.number)];
    }
    PSD_RETURN_IF_ERROR(assembly->Fill(piece.offset, buffers[0]));
    bool all = false, more = false;
    {
      MutexLock lock(mutex_);
      if (ended_) return absl::OkStatus();
      SkipWhole();
      all = --under_way_ == 0 && next_.number == left_out_.bytes_size();
      more = slow && next_.number < left_out_.bytes_size() && CountMore(*uses_.more);
      if (more) ++more_;
    }
    if (all) {
      End(absl::OkStatus());
      return absl::OkStatus();
    }
    AskNext();
    if (more) AskNext();
    return absl::OkStatus();
  }

  // Ends the pull. Only the first call counts. Requires: the worker exists.
  void End(const absl::Status& status) PSD_EXCLUDES(mutex_) {
    std::vector<Assembly> assemblies;  // destroyed after the lock is released
    {
      MutexLock lock(mutex_);
      if (std::exchange(ended_, true)) return;
      assemblies.swap(assemblies_);
      *uses_.more -= std::exchange(more_, 0);
    }
    EndPull(uses_.agent, source_, left_out_.pull());
    if (!status.ok()) return static_cast<void>(whole_.Set(status));
    for (int i = 0; i < left_out_.buffers_size(); ++i)
      buffers_[left_out_.buffers(i)] = assemblies[static_cast<size_t>(i)].buffer();
    whole_.Set(std::move(buffers_));
  }

  const PieceCollection uses_;
  const Source source_;
  std::vector<Buffer> buffers_;  // of the message
  const v1::LeftOut left_out_;
  Device* const device_;  // null is the host
  const absl::Time deadline_;
  const WorkLabel label_;
  const Promise<std::vector<Buffer>> whole_;
  // The next loan to be borrowed or declined. Used before the first piece is asked for.
  int next_lent_ = 0;
  Mutex mutex_;  // leaf
  // One for each buffer, made before the first piece is asked for; none after the end.
  std::vector<Assembly> assemblies_ PSD_GUARDED_BY(mutex_);
  Piece next_ PSD_GUARDED_BY(mutex_);  // the next piece to ask for; its size is not known yet
  size_t under_way_ PSD_GUARDED_BY(mutex_) = 0;
  size_t more_ PSD_GUARDED_BY(mutex_) = 0;  // its part of uses_.more
  bool ended_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace

bool LeavesOut(const rpc::Reply& reply) {
  return reply.attachment(kLeftOutTag) != nullptr;
}

absl::StatusOr<v1::LeftOut> ParseLeftOut(const std::string& sender, const std::string& attachment,
                                         const std::vector<Buffer>& buffers) {
  PSD_ASSIGN_OR_RETURN(auto left_out,
                       rpc::ParseMessage<v1::LeftOut>(attachment, "buffers that are left out"));
  if (left_out.buffers_size() == 0 || left_out.buffers_size() != left_out.bytes_size())
    return Malformed(sender);
  for (int i = 0; i < left_out.buffers_size(); ++i) {
    if (i > 0 && left_out.buffers(i) <= left_out.buffers(i - 1)) return Malformed(sender);
    if (left_out.buffers(i) >= buffers.size()) return Malformed(sender);
    if (!buffers[left_out.buffers(i)].empty()) return Malformed(sender);
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (left_out.bytes(i) == 0 || left_out.bytes(i) > kMost) return Malformed(sender);
  }
  for (int i = 0; i < left_out.lent_size(); ++i) {
    const v1::LentBlock& lent = left_out.lent(i);
    const auto count = static_cast<uint32_t>(left_out.buffers_size());
    if (i > 0 && lent.number() <= left_out.lent(i - 1).number()) return Malformed(sender);
    if (lent.number() >= count) return Malformed(sender);
    if (lent.bytes() != left_out.bytes(static_cast<int>(lent.number()))) return Malformed(sender);
  }
  return left_out;
}

Future<rpc::Reply> CollectPieces(const PieceCollection& uses, const rpc::Reply& reply,
                                 Device* device, absl::Time deadline) {
  absl::StatusOr<v1::LeftOut> left_out =
      ParseLeftOut(reply.callee.name, *reply.attachment(kLeftOutTag), reply.payload.buffers);
  if (!left_out.ok()) return Future<rpc::Reply>::Ready(left_out.status());
  return std::make_shared<Collector>(uses, SourceOf(reply), reply.payload.buffers,
                                     *std::move(left_out), device, deadline,
                                     WorkLabel{WorkLabel::Kind::kOwn, {}})
      ->Start()
      .Then([whole = reply](const absl::StatusOr<std::vector<Buffer>>& buffers) mutable
            -> absl::StatusOr<rpc::Reply> {
        if (!buffers.ok()) return buffers.status();
        whole.payload.buffers = *buffers;
        return std::move(whole);
      });
}

void GiveUpPieces(const PieceCollection& uses, const rpc::Reply& reply) {
  if (!LeavesOut(reply)) return;
  const absl::StatusOr<v1::LeftOut> left_out =
      ParseLeftOut(reply.callee.name, *reply.attachment(kLeftOutTag), reply.payload.buffers);
  if (!left_out.ok()) return;
  for (const v1::LentBlock& block : left_out->lent()) uses.loans->Decline(reply.callee, block);
  EndPull(uses.agent, SourceOf(reply), left_out->pull());
}

Future<std::vector<Buffer>> CollectRequestPieces(const PieceCollection& uses,
                                                 const std::shared_ptr<rpc::ServerCall>& call,
                                                 const v1::LeftOut& left_out, Device* device) {
  const auto collector = std::make_shared<Collector>(
      uses, Source{call->caller(), /*epoch=*/0, /*ends=*/false}, call->payload().buffers, left_out,
      device, call->deadline(), rpc::LabelOf(WorkLabel::Kind::kOwn, *call));
  Future<std::vector<Buffer>> whole = collector->Start();
  call->OnCancel([weak = std::weak_ptr<Collector>(collector)] {
    if (const auto self = weak.lock()) self->GiveUp();
  });
  return whole;
}

}  // namespace psd::device_pieces
