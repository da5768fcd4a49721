#include "core/device_pieces/device_pulls.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/rpc/message_io.h"
#include "core/tensor/dtype.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_pieces {
namespace {

// Returns the bytes that are asked for. Errors: INVALID_ARGUMENT.
absl::StatusOr<Buffer> Asked(const std::vector<Buffer>& buffers,
                             const v1::PullPieceRequest& request) {
  const uint64_t size = request.number() < buffers.size() ? buffers[request.number()].size() : 0;
  const uint64_t bytes = request.bytes();
  if (bytes == 0 || bytes > kPieceBytes || request.offset() > size ||
      bytes > size - request.offset()) {
    return absl::InvalidArgumentError(
        absl::StrCat("value.piece: ", bytes, " bytes from ", request.offset(), " of buffer ",
                     request.number(), ", which has ", size, "; a piece has 1 to ", kPieceBytes));
  }
  return buffers[request.number()].Slice(request.offset(), bytes);
}

// The result is shared by the copies of a callback.
std::shared_ptr<const std::vector<uint64_t>> LoansOf(const std::vector<v1::LentBlock>& lent) {
  auto loans = std::make_shared<std::vector<uint64_t>>();
  loans->reserve(lent.size());
  for (const v1::LentBlock& block : lent) loans->push_back(block.loan());
  return loans;
}

size_t BytesOf(const std::vector<Buffer>& buffers) {
  size_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.size();
  return bytes;
}

rpc::Contents Piece(Buffer bytes) {
  rpc::Contents piece;
  piece.payload.buffers.push_back(std::move(bytes));
  return piece;
}

// Returns a copy in memory that need not be pinned. Waits for the device.
absl::StatusOr<rpc::Contents> CopyNow(Device& device, const Buffer& piece) {
  PSD_ASSIGN_OR_RETURN(Tensor copy,
                       Tensor::Empty({static_cast<int64_t>(piece.size())}, DType::kU8));
  PSD_RETURN_IF_ERROR(device.CopyOut(copy.mutable_raw_data(), piece.data(), piece.size()));
  return Piece(copy.AsBuffer());
}

}  // namespace

class DevicePulls::PinnedPlace {
 public:
  // `count` counts it already.
  explicit PinnedPlace(std::shared_ptr<Count> count) : count_(std::move(count)) {}
  ~PinnedPlace() {
    block.reset();
    --*count_;
  }
  PinnedPlace(const PinnedPlace&) = delete;
  PinnedPlace& operator=(const PinnedPlace&) = delete;

  std::shared_ptr<Block> block;  // the memory; null until it is taken

 private:
  const std::shared_ptr<Count> count_;  // shared by all of the session
};

DevicePulls::DevicePulls(rpc::RpcAgent& agent, CompletionThreads& completions,
                         device_loans::DeviceLoans& loans)
    : completions_(completions), loans_(loans) {
  rpc::Serve(agent, kValuePiece, this, &DevicePulls::ServePiece);
  rpc::Serve(agent, kValueEndPull, this, &DevicePulls::ServeEndPull);
  agent.OnSessionEnded([this](const rpc::PeerInfo& peer, uint64_t epoch) {
    OnSessionEnded({peer.incarnation, epoch});
    loans_.ForgetServed(peer.incarnation);
  });
}

bool DevicePulls::HasRoom(const rpc::ServerCall& call) const {
  MutexLock lock(mutex_);
  const auto session = sessions_.find(rpc::SessionOf(call));
  return session == sessions_.end() || session->second.pulls.size() < kPerSession;
}

std::function<void()> DevicePulls::LeaveOut(rpc::ServerCall& call, rpc::Contents& answer,
                                            const std::vector<Tensor>& tensors,
                                            const v1::BorrowOffer* offer, bool may_lend) {
  v1::LeftOut left_out;
  auto pull = std::make_shared<std::vector<Buffer>>();
  for (size_t i = 0; i < answer.payload.buffers.size(); ++i) {
    Buffer& buffer = answer.payload.buffers[i];
    if (buffer.place().host_readable()) continue;
    left_out.add_buffers(static_cast<uint32_t>(i));
    left_out.add_bytes(buffer.size());
    PSD_CHECK(pull->size() < tensors.size() && tensors[pull->size()].address() == buffer.data(),
              "a buffer on a device belongs to no tensor");
    buffer = Buffer();
    pull->push_back(tensors[pull->size()].AsBuffer());
  }
  if (pull->empty()) return [] {};
  std::function<void()> take_back = [] {};
  std::vector<v1::LentBlock> lent;
  if (offer != nullptr && may_lend) lent = loans_.Lend(*offer, *pull);
  loans_.NoteServed(call.caller().incarnation, offer, lent.size(), pull->size());
  if (!lent.empty()) {
    for (const v1::LentBlock& block : lent) *left_out.add_lent() = block;
    take_back = [this, loans = LoansOf(lent)] { loans_.TakeBack(*loans); };
  }
  const GlobalId session = rpc::SessionOf(call);
  const uint64_t id = Add(session, std::move(pull));
  left_out.set_pull(id);
  take_back = [this, session, id, end_loans = std::move(take_back)] {
    End(session, id);
    end_loans();
  };
  // If the session has ended meanwhile, nobody else would end the pull.
  if (call.cancelled()) {
    take_back();
    left_out.clear_lent();
    loans_.ForgetServed(call.caller().incarnation);
  }
  call.OnAnswerDropped(take_back);
  answer.attachments.push_back({kLeftOutTag, left_out.SerializeAsString()});
  return take_back;
}

std::optional<uint64_t> DevicePulls::Keep(Incarnation receiver, const Device& device,
                                          std::vector<Buffer> buffers) {
  const size_t bytes = BytesOf(buffers);
  auto pull = std::make_shared<const std::vector<Buffer>>(std::move(buffers));
  MutexLock lock(mutex_);
  const size_t most = device.budget_bytes() / kKeptFraction;
  size_t& kept = kept_[&device];
  if (bytes > most || kept > most - bytes) return std::nullopt;
  const auto own = sessions_.find(AnySessionOf(receiver));
  if (own != sessions_.end() && own->second.pulls.size() >= kPerSession) return std::nullopt;
  kept += bytes;
  sessions_[AnySessionOf(receiver)].pulls.emplace(++last_id_, std::move(pull));
  return last_id_;
}

void DevicePulls::EndKept(Incarnation receiver, const Device& device, uint64_t pull) {
  std::map<uint64_t, Pull>::node_type ended;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  ended = Take(AnySessionOf(receiver), pull);
  if (!ended.empty()) kept_[&device] -= BytesOf(*ended.mapped());
}

absl::Status DevicePulls::ServePiece(const rpc::Answer<rpc::Contents>& answer,
                                     v1::PullPieceRequest request) {
  PSD_ASSIGN_OR_RETURN(const Found found, Find(rpc::SessionOf(*answer.call()), request.pull()));
  PSD_ASSIGN_OR_RETURN(const Buffer piece, Asked(*found.pull, request));
  Device& device = *piece.place().device();
  if (found.place != nullptr) {
    absl::StatusOr<std::shared_ptr<Block>> pinned = device.pinned_memory().Allocate(piece.size());
    if (pinned.ok()) found.place->block = *std::move(pinned);
  }
  if (found.place == nullptr || found.place->block == nullptr) {
    answer(CopyNow(device, piece));
    return absl::OkStatus();
  }
  // It is ordered behind the work that writes the tensor: by the pin of a version, or by the caller
  // of Keep.
  Stream& stream = device.default_stream();
  PSD_RETURN_IF_ERROR(stream.CopyOut(found.place->block->data(), piece.data(), piece.size()));
  absl::StatusOr<std::shared_ptr<Event>> copied = stream.Record();
  if (!copied.ok()) {
    // The copy may still write into the pinned memory.
    PSD_RETURN_IF_ERROR(device.Synchronize());
    return copied.status();
  }
  // Holds `piece`, and with it the tensor, until the copy is done.
  completions_.OnPassed({&device, *std::move(copied)},
                        [answer, place = found.place, piece](const absl::Status& done) {
                          if (!done.ok()) return answer(done);
                          const Block& block = *place->block;
                          answer(Piece(Buffer(place, block.data(), block.size(), &block)));
                        });
  return absl::OkStatus();
}

uint64_t DevicePulls::Add(GlobalId session, Pull pull) {
  MutexLock lock(mutex_);
  sessions_[session].pulls.emplace(++last_id_, std::move(pull));
  return last_id_;
}

absl::StatusOr<DevicePulls::Found> DevicePulls::Find(GlobalId session, uint64_t id) {
  MutexLock lock(mutex_);
  for (const GlobalId owner : {session, AnySessionOf(session.incarnation)})
    if (std::optional<Found> found = FindIn(owner, id)) return *std::move(found);
  return WithRemedy(absl::NotFoundError(absl::StrCat("no pull ", id,
                                                     " of this session is under "
                                                     "way here")),
                    "the session may have ended: fetch again");
}

std::optional<DevicePulls::Found> DevicePulls::FindIn(GlobalId session, uint64_t id) {
  const auto known = sessions_.find(session);
  if (known == sessions_.end()) return std::nullopt;
  const OfSession& own = known->second;
  const auto pull = own.pulls.find(id);
  if (pull == own.pulls.end()) return std::nullopt;
  // Pieces that are sent meanwhile only make room.
  if (*own.pinned >= kPinnedPerSession) return Found{pull->second, nullptr};
  ++*own.pinned;
  return Found{pull->second, std::make_shared<PinnedPlace>(own.pinned)};
}

absl::Status DevicePulls::ServeEndPull(const rpc::CallPtr& call, v1::PullEnd request) {
  End(rpc::SessionOf(*call), request.pull());
  return absl::OkStatus();
}

std::map<uint64_t, DevicePulls::Pull>::node_type DevicePulls::Take(GlobalId session,
                                                                   uint64_t pull) {
  const auto known = sessions_.find(session);
  if (known == sessions_.end()) return {};
  OfSession& own = known->second;
  std::map<uint64_t, Pull>::node_type taken = own.pulls.extract(pull);
  // A worker cannot begin its count of pieces anew by ending its pulls.
  if (own.pulls.empty() && *own.pinned == 0) sessions_.erase(known);
  return taken;
}

void DevicePulls::End(GlobalId session, uint64_t pull) {
  std::map<uint64_t, Pull>::node_type ended;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  ended = Take(session, pull);
}

void DevicePulls::OnSessionEnded(GlobalId session) {
  Sessions::node_type ended;
  MutexLock lock(mutex_);
  ended = sessions_.extract(session);
  // Requests that are under way end their pulls themselves.
  const auto any = sessions_.find(AnySessionOf(session.incarnation));
  if (any != sessions_.end() && any->second.pulls.empty()) sessions_.erase(any);
}

}  // namespace psd::device_pieces
