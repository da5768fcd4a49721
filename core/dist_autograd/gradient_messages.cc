#include "core/dist_autograd/gradient_messages.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/rref/value_codec.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"

namespace psd::dist_autograd {
namespace {

// The tag of the attachment v1::LentBuffers of a request.
constexpr uint32_t kLentBuffersTag = 5;

bool IsLarge(const Tensor& gradient) {
  return gradient.defined() && gradient.NumBytes() > GradientMessages::kMostCopiedBytes;
}

// Returns the device of the first gradient that may be lent or left out; null if there is none.
Device* DeviceOfLarge(const Tensors& gradients) {
  for (const Tensor& gradient : gradients)
    if (IsLarge(gradient) && !gradient.OnHost()) return gradient.device();
  return nullptr;
}

// Makes the large ones of `gradients` on `device` contiguous, and copies the small ones there to
// the host.
absl::Status Prepare(const Device& device, Tensors& gradients) {
  for (Tensor& gradient : gradients) {
    if (!gradient.defined() || gradient.device() != &device) continue;
    if (!IsLarge(gradient)) {
      PSD_ASSIGN_OR_RETURN(gradient, gradient.ToHost());
    } else if (!gradient.IsContiguous()) {
      PSD_ASSIGN_OR_RETURN(gradient, gradient.Contiguous());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Buffer> HostCopy(const Buffer& bytes) {
  PSD_ASSIGN_OR_RETURN(Tensor copy,
                       Tensor::Empty({static_cast<int64_t>(bytes.size())}, DType::kU8));
  PSD_RETURN_IF_ERROR(CopyBytes(nullptr, copy.mutable_raw_data(), bytes.place().device(),
                                bytes.data(), bytes.size()));
  return copy.AsBuffer();
}

// Copies to the host what is left on devices.
absl::Status CopyRest(std::vector<Buffer>& buffers) {
  for (Buffer& buffer : buffers) {
    if (buffer.place().host_readable()) continue;
    PSD_ASSIGN_OR_RETURN(buffer, HostCopy(buffer));
  }
  return absl::OkStatus();
}

// Errors: INVALID_ARGUMENT.
absl::StatusOr<v1::LentBuffers> ParseLent(const std::string& bytes,
                                          const std::vector<Buffer>& buffers) {
  v1::LentBuffers lent;
  if (!lent.ParseFromString(bytes) || lent.blocks_size() == 0 || lent.key().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("autograd.gradient: ", bytes.size(), " bytes name no buffers that are lent"));
  }
  for (int i = 0; i < lent.blocks_size(); ++i) {
    const uint32_t number = lent.blocks(i).number();
    const bool ascends = i == 0 || number > lent.blocks(i - 1).number();
    if (ascends && number < buffers.size() && buffers[number].empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("autograd.gradient: buffer ", number, " is lent as number ", i,
                     "; the numbers must ascend, and name empty buffers among ", buffers.size()));
  }
  return lent;
}

// Returns the size of all buffers that gradients leave out. Errors: INVALID_ARGUMENT.
absl::StatusOr<size_t> BytesLeftOut(const v1::LeftOut& left_out, size_t most_bytes) {
  if (left_out.lent_size() > 0)
    return absl::InvalidArgumentError("autograd.gradient: a gradient is left out and lent");
  size_t bytes = 0;
  for (const uint64_t each : left_out.bytes()) {
    if (each <= GradientMessages::kMostCopiedBytes || each > most_bytes - bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("autograd.gradient: ", each, " bytes are left out after ", bytes,
                       " others; the message has ", most_bytes, " bytes of gradients, and only ",
                       "those of more than ", GradientMessages::kMostCopiedBytes, " are left out"));
    }
    bytes += static_cast<size_t>(each);
  }
  return bytes;
}

absl::Status Stopping() {
  return absl::CancelledError("this worker is stopping");
}

std::vector<uint64_t> LoansOf(const GradientMessage& message) {
  std::vector<uint64_t> loans;
  for (const v1::LentBlock& block : message.lent.blocks()) loans.push_back(block.loan());
  return loans;
}

}  // namespace

absl::StatusOr<GradientMessage> GradientMessages::EncodeCopies(const Tensors& gradients) {
  GradientMessage message;
  PSD_ASSIGN_OR_RETURN(message.payload, rref::EncodeTensorValues(gradients));
  return message;
}

absl::StatusOr<GradientMessage> GradientMessages::Encode(const rpc::PeerInfo& peer,
                                                         Tensors& gradients, bool in_pieces) {
  Device* const device = DeviceOfLarge(gradients);
  if (device == nullptr || uses_.loans == nullptr || uses_.completions == nullptr)
    return EncodeCopies(gradients);
  const std::optional<v1::BorrowOffer> offer = uses_.loans->OfferOf(peer, *device);
  if (!offer.has_value() && (!in_pieces || uses_.pulls == nullptr)) return EncodeCopies(gradients);
  PSD_RETURN_IF_ERROR(Prepare(*device, gradients));
  GradientMessage message;
  PSD_ASSIGN_OR_RETURN(message.payload, rref::EncodeTensorValues(gradients, device));
  // This thread has ordered its stream behind the work that writes the gradients.
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Event> event, CurrentStream(device)->Record());
  message.written = {device, std::move(event)};
  if (offer.has_value()) {
    message.offer = *offer;
    PSD_RETURN_IF_ERROR(Lend(peer, *device, message));
  } else {
    PSD_RETURN_IF_ERROR(LeaveOut(peer, *device, message));
  }
  if (message.whole()) message.written = {};
  return message;
}

absl::Status GradientMessages::Lend(const rpc::PeerInfo& peer, Device& device,
                                    GradientMessage& message) {
  std::vector<Buffer>& buffers = message.payload.buffers;
  const std::vector<v1::LentBlock> blocks = uses_.loans->Lend(message.offer, buffers);
  for (const v1::LentBlock& block : blocks) buffers[block.number()] = Buffer();
  message.lent.mutable_blocks()->Add(blocks.begin(), blocks.end());
  if (const absl::Status copied = CopyRest(buffers); !copied.ok()) {
    Drop(peer, message);
    return copied;
  }
  if (!message.lends()) return absl::OkStatus();
  message.lent.set_identity(device.sharing()->identity());
  message.lent.set_key(message.offer.key());
  uses_.loans->NoteGradientsLent(peer.incarnation, message.offer);
  return absl::OkStatus();
}

absl::Status GradientMessages::LeaveOut(const rpc::PeerInfo& peer, Device& device,
                                        GradientMessage& message) {
  // Pieces are copied as work of the default stream.
  if (Stream& stream = device.default_stream(); CurrentStream(&device) != &stream)
    PSD_RETURN_IF_ERROR(stream.WaitFor(message.written.event));
  std::vector<Buffer>& buffers = message.payload.buffers;
  std::vector<Buffer> kept;
  for (const Buffer& buffer : buffers)
    if (!buffer.place().host_readable()) kept.push_back(buffer);
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Stopping();
  const std::optional<uint64_t> pull = uses_.pulls->Keep(peer.incarnation, device, std::move(kept));
  if (!pull.has_value()) return CopyRest(buffers);
  message.left_out.set_pull(*pull);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].place().host_readable()) continue;
    message.left_out.add_buffers(static_cast<uint32_t>(i));
    message.left_out.add_bytes(buffers[i].size());
    buffers[i] = Buffer();
  }
  return absl::OkStatus();
}

std::vector<rpc::Attachment> GradientMessages::AttachmentsOf(const GradientMessage& message) {
  std::vector<rpc::Attachment> attachments;
  if (message.lends()) attachments.push_back({kLentBuffersTag, message.lent.SerializeAsString()});
  if (message.leaves_out())
    attachments.push_back({device_pieces::kLeftOutTag, message.left_out.SerializeAsString()});
  return attachments;
}

void GradientMessages::WhenWritten(const DeviceEvent& written, CompletionThreads::Then then) {
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return std::move(then)(Stopping());
  uses_.completions->OnPassed(written, std::move(then));
}

void GradientMessages::EndPull(const rpc::PeerInfo& peer, const GradientMessage& message) {
  if (!message.leaves_out()) return;
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return;
  uses_.pulls->EndKept(peer.incarnation, *message.written.device, message.left_out.pull());
}

void GradientMessages::Drop(const rpc::PeerInfo& peer, const GradientMessage& message) {
  EndPull(peer, message);
  if (message.lends()) uses_.loans->TakeBack(LoansOf(message));
}

void GradientMessages::OnAnswered(const rpc::PeerInfo& peer, const GradientMessage& message,
                                  const absl::Status& answered, const absl::Status& refused) {
  EndPull(peer, message);
  if (!message.lends() || (answered.ok() && refused.ok())) return;
  // After a refusal too: the peer may have borrowed some of them before it met one that it could
  // not borrow.
  uses_.loans->Recall(peer, LoansOf(message));
  if (refused.ok() || absl::IsResourceExhausted(refused) || absl::IsAborted(refused)) return;
  uses_.loans->NoteGradientsRefused(peer, refused);
}

bool GradientMessages::Lends(const rpc::ServerCall& call) {
  return call.attachment(kLentBuffersTag) != nullptr;
}

bool GradientMessages::LeavesOut(const rpc::ServerCall& call) {
  return call.attachment(device_pieces::kLeftOutTag) != nullptr;
}

bool GradientMessages::Reserve(Device* device, size_t bytes) {
  if (device == nullptr) return false;
  const size_t used = device->used_bytes();
  MutexLock lock(mutex_);
  size_t& reserved = reserved_[device];
  const size_t taken = used + reserved;
  if (device->budget_bytes() <= taken) return false;
  if ((device->budget_bytes() - taken) / kRoomOnDevice < bytes) return false;
  reserved += bytes;
  return true;
}

void GradientMessages::Unreserve(Device* device, size_t bytes) {
  if (device == nullptr) return;
  MutexLock lock(mutex_);
  reserved_[device] -= bytes;
}

absl::Status GradientMessages::Fetch(const std::shared_ptr<rpc::ServerCall>& call, Device* device,
                                     size_t most_bytes,
                                     std::function<void(const absl::Status&)> then) {
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Stopping();
  if (!WantsPieces())
    return absl::FailedPreconditionError("autograd.gradient: this worker fetches no pieces");
  PSD_ASSIGN_OR_RETURN(const v1::LeftOut left_out,
                       device_pieces::ParseLeftOut(call->caller().name,
                                                   *call->attachment(device_pieces::kLeftOutTag),
                                                   call->payload().buffers));
  PSD_ASSIGN_OR_RETURN(const size_t bytes, BytesLeftOut(left_out, most_bytes));
  if (!Reserve(device, bytes)) device = nullptr;
  const device_pieces::PieceCollection uses{*uses_.agent, *uses_.executor, *uses_.clock,
                                            gate_,        uses_.loans,     more_pieces_};
  device_pieces::CollectRequestPieces(uses, call, left_out, device)
      .OnReady([this, call, device, bytes,
                then = std::move(then)](const absl::StatusOr<std::vector<Buffer>>& buffers) {
        Unreserve(device, bytes);
        if (buffers.ok()) call->payload().buffers = *buffers;
        then(buffers.status());
      });
  return absl::OkStatus();
}

absl::StatusOr<ArrivedGradients> GradientMessages::Decode(rpc::ServerCall& call) const {
  ArrivedGradients arrived;
  const std::string* const attachment = call.attachment(kLentBuffersTag);
  if (attachment == nullptr) {
    PSD_ASSIGN_OR_RETURN(arrived.gradients, rref::DecodeTensorValues(call.payload()));
    return arrived;
  }
  rpc::Payload payload = call.payload();
  PSD_ASSIGN_OR_RETURN(const v1::LentBuffers lent, ParseLent(*attachment, payload.buffers));
  Device* const device = uses_.loans == nullptr ? nullptr : uses_.loans->OwnDevice(lent.identity());
  if (device == nullptr) {
    arrived.refused = absl::FailedPreconditionError(
        absl::StrCat("this worker shares no device '", lent.identity(), "'"));
    return arrived;
  }
  for (const v1::LentBlock& block : lent.blocks()) {
    absl::StatusOr<Buffer> borrowed =
        uses_.loans->Borrow(call.caller(), *device, block, lent.key());
    if (!borrowed.ok()) {
      arrived.refused = borrowed.status();
      return arrived;
    }
    payload.buffers[block.number()] = *std::move(borrowed);
  }
  PSD_ASSIGN_OR_RETURN(arrived.gradients, rref::DecodeTensorValues(payload));
  return arrived;
}

}  // namespace psd::dist_autograd
