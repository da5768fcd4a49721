#include "core/services/values/piece_collector.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/services/values/value_methods.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {
namespace {

absl::Status Malformed(const rpc::Reply& reply) {
  return absl::InvalidArgumentError(
      absl::StrCat(reply.callee.name, " left out buffers that its answer does not have"));
}

// Parses what was left out, and checks it against the answer. Errors: INVALID_ARGUMENT.
absl::StatusOr<v1::LeftOut> ParseLeftOut(const rpc::Reply& reply) {
  PSD_ASSIGN_OR_RETURN(auto left_out, rpc::ParseMessage<v1::LeftOut>(*reply.attachment(kLeftOutTag),
                                                                     kValueFetch.info.name));
  if (left_out.buffers_size() == 0 || left_out.buffers_size() != left_out.bytes_size())
    return Malformed(reply);
  for (int i = 0; i < left_out.buffers_size(); ++i) {
    if (i > 0 && left_out.buffers(i) <= left_out.buffers(i - 1)) return Malformed(reply);
    if (left_out.buffers(i) >= reply.payload.buffers.size()) return Malformed(reply);
    if (!reply.payload.buffers[left_out.buffers(i)].empty()) return Malformed(reply);
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (left_out.bytes(i) == 0 || left_out.bytes(i) > kMost) return Malformed(reply);
  }
  for (int i = 0; i < left_out.lent_size(); ++i) {
    const v1::LentBlock& lent = left_out.lent(i);
    const auto count = static_cast<uint32_t>(left_out.buffers_size());
    if (i > 0 && lent.number() <= left_out.lent(i - 1).number()) return Malformed(reply);
    if (lent.number() >= count) return Malformed(reply);
    if (lent.bytes() != left_out.bytes(static_cast<int>(lent.number()))) return Malformed(reply);
  }
  return left_out;
}

// Asks about a pull in the session that has it.
template <typename Message, typename ReplyType>
auto AskAbout(rpc::RpcAgent& agent, const rpc::Declared<Message, ReplyType>& method,
              const rpc::Reply& fetched, const Message& message, absl::Duration timeout) {
  rpc::Request request;
  request.payload = rpc::PlainPayload(message);
  request.only_epoch = fetched.epoch;
  rpc::CallOptions options;
  options.timeout = timeout;
  return rpc::Ask(agent, method,
                  {fetched.callee.name, fetched.callee.incarnation, /*session_bound=*/true},
                  std::move(request), options);
}

// Tells the owner that the pull has ended. The message has no deadline: it is repeated until the
// owner has received it, or the session ends.
void EndPull(rpc::RpcAgent& agent, const rpc::Reply& fetched, uint64_t pull) {
  v1::PullEnd end;
  end.set_pull(pull);
  AskAbout(agent, kValueEndPull, fetched, end, /*timeout=*/absl::ZeroDuration());
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
  Collector(const PieceCollection& uses, rpc::Reply reply, v1::LeftOut left_out, Device* device,
            absl::Time deadline)
      : uses_(uses),
        reply_(std::move(reply)),
        left_out_(std::move(left_out)),
        device_(device),
        deadline_(deadline) {}
  ~Collector() {
    for (; next_lent_ < left_out_.lent_size(); ++next_lent_)
      uses_.loans->Decline(reply_.callee, left_out_.lent(next_lent_));
  }

  Future<rpc::Reply> Start() {
    // The memory is charged as that of the executor's tasks.
    OnExecutor([](Collector& self) { return self.Begin(); });
    return whole_.future();
  }

 private:
  struct Piece {
    int number = 0;  // in left_out_
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  // Runs `step`, whose error ends the pull, while the worker exists.
  template <typename Step>
  void OnExecutor(Step step) {
    const absl::Status queued = uses_.executor.Submit([self = shared_from_this(), step] {
      const rref::Gate::Entry entry(*self->uses_.gate);
      if (!entry.open()) return;  // dropping the promise tells the caller
      if (absl::Status done = step(*self); !done.ok()) self->End(done);
    });
    if (!queued.ok()) End(queued);
  }

  absl::Status Begin() PSD_EXCLUDES(mutex_) {
    for (int i = 0; i < left_out_.buffers_size(); ++i) {
      if (std::optional<Buffer> borrowed = Borrow(i)) {
        assemblies_.emplace_back(*std::move(borrowed));
        continue;
      }
      PSD_ASSIGN_OR_RETURN(Assembly assembly, Assembly::Create(left_out_.bytes(i), device_));
      assemblies_.push_back(std::move(assembly));
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
      if (device_ != nullptr) uses_.loans->NoteCopied(reply_.callee, *device_);
      return std::nullopt;
    }
    const v1::LentBlock& block = left_out_.lent(next_lent_++);
    if (device_ == nullptr) {
      uses_.loans->Decline(reply_.callee, block);
      return std::nullopt;
    }
    absl::StatusOr<Buffer> borrowed = uses_.loans->Borrow(reply_.callee, *device_, block);
    if (!borrowed.ok()) return std::nullopt;  // logged, or the loan was recalled
    return *std::move(borrowed);
  }

  // Asks for the next piece, if there is one.
  void AskNext() PSD_EXCLUDES(mutex_) {
    Piece piece;
    {
      MutexLock lock(mutex_);
      while (next_.number < left_out_.bytes_size() && Assembled(next_.number)) ++next_.number;
      if (ended_ || next_.number == left_out_.bytes_size()) return;
      piece = next_;
      const uint64_t left = left_out_.bytes(next_.number) - next_.offset;
      piece.bytes = std::min<uint64_t>(left, kPieceBytes);
      next_.offset += piece.bytes;
      if (piece.bytes == left) next_ = {next_.number + 1};
      ++under_way_;
    }
    v1::PullPieceRequest request;
    request.set_pull(left_out_.pull());
    request.set_number(static_cast<uint32_t>(piece.number));
    request.set_offset(piece.offset);
    request.set_bytes(static_cast<uint32_t>(piece.bytes));
    absl::Duration timeout = absl::ZeroDuration();  // none
    if (deadline_ != absl::InfiniteFuture())
      timeout = std::max(deadline_ - uses_.clock.Now(), absl::Nanoseconds(1));
    AskAbout(uses_.agent, kValuePiece, reply_, request, timeout)
        .OnReady([self = shared_from_this(), piece](const absl::StatusOr<rpc::Reply>& answer) {
          const rref::Gate::Entry entry(*self->uses_.gate);
          if (!entry.open()) return;
          if (!answer.ok()) return self->End(answer.status());
          self->OnExecutor([piece, buffers = answer->payload.buffers](Collector& collector) {
            return collector.Store(piece, buffers);
          });
        });
  }

  bool Assembled(int number) const { return assemblies_[static_cast<size_t>(number)].whole(); }

  absl::Status Store(const Piece& piece, const std::vector<Buffer>& buffers) PSD_EXCLUDES(mutex_) {
    if (buffers.size() != 1 || buffers[0].size() != piece.bytes)
      return absl::InvalidArgumentError(
          absl::StrCat(reply_.callee.name, " sent a piece of another size than was asked for"));
    PSD_RETURN_IF_ERROR(
        assemblies_[static_cast<size_t>(piece.number)].Fill(piece.offset, buffers[0]));
    bool all = false;
    {
      MutexLock lock(mutex_);
      while (next_.number < left_out_.bytes_size() && Assembled(next_.number)) ++next_.number;
      all = --under_way_ == 0 && next_.number == left_out_.bytes_size();
    }
    if (all) {
      End(absl::OkStatus());
    } else {
      AskNext();
    }
    return absl::OkStatus();
  }

  // Ends the pull. Only the first call counts. Requires: the worker exists.
  void End(const absl::Status& status) PSD_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (std::exchange(ended_, true)) return;
    }
    EndPull(uses_.agent, reply_, left_out_.pull());
    if (!status.ok()) return static_cast<void>(whole_.Set(status));
    for (int i = 0; i < left_out_.buffers_size(); ++i)
      reply_.payload.buffers[left_out_.buffers(i)] = assemblies_[static_cast<size_t>(i)].buffer();
    whole_.Set(std::move(reply_));
  }

  const PieceCollection uses_;
  rpc::Reply reply_;
  const v1::LeftOut left_out_;
  Device* const device_;  // null is the host
  const absl::Time deadline_;
  const Promise<rpc::Reply> whole_;
  // One for each buffer. Made before the first piece is asked for, as is next_lent_.
  std::vector<Assembly> assemblies_;
  int next_lent_ = 0;                  // the next loan to be borrowed or declined
  Mutex mutex_;                        // leaf
  Piece next_ PSD_GUARDED_BY(mutex_);  // the next piece to ask for; its size is not known yet
  size_t under_way_ PSD_GUARDED_BY(mutex_) = 0;
  bool ended_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace

bool LeavesOut(const rpc::Reply& reply) {
  return reply.attachment(kLeftOutTag) != nullptr;
}

Future<rpc::Reply> CollectPieces(const PieceCollection& uses, const rpc::Reply& reply,
                                 Device* device, absl::Time deadline) {
  absl::StatusOr<v1::LeftOut> left_out = ParseLeftOut(reply);
  if (!left_out.ok()) return Future<rpc::Reply>::Ready(left_out.status());
  return std::make_shared<Collector>(uses, reply, *std::move(left_out), device, deadline)->Start();
}

void GiveUpPieces(const PieceCollection& uses, const rpc::Reply& reply) {
  if (!LeavesOut(reply)) return;
  const absl::StatusOr<v1::LeftOut> left_out = ParseLeftOut(reply);
  if (!left_out.ok()) return;
  for (const v1::LentBlock& block : left_out->lent()) uses.loans->Decline(reply.callee, block);
  EndPull(uses.agent, reply, left_out->pull());
}

}  // namespace psd::services
