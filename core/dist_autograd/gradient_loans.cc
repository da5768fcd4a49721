#include "core/dist_autograd/gradient_loans.h"

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
  return gradient.defined() && gradient.NumBytes() > GradientLoans::kMostCopiedBytes;
}

// Returns the device of the first gradient that may be lent; null if there is none.
Device* DeviceToLendOn(const Tensors& gradients) {
  for (const Tensor& gradient : gradients)
    if (IsLarge(gradient) && !gradient.OnHost()) return gradient.device();
  return nullptr;
}

// Makes those of `gradients` contiguous that are to be lent on `device`, and copies the small ones
// there to the host.
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

std::vector<uint64_t> LoansOf(const GradientMessage& message) {
  std::vector<uint64_t> loans;
  for (const v1::LentBlock& block : message.lent.blocks()) loans.push_back(block.loan());
  return loans;
}

}  // namespace

absl::StatusOr<GradientMessage> GradientLoans::EncodeCopies(const Tensors& gradients) {
  GradientMessage message;
  PSD_ASSIGN_OR_RETURN(message.payload, rref::EncodeTensorValues(gradients));
  return message;
}

absl::StatusOr<GradientMessage> GradientLoans::Encode(const rpc::PeerInfo& peer,
                                                      Tensors& gradients) {
  Device* const device = DeviceToLendOn(gradients);
  if (device == nullptr || uses_.loans == nullptr || uses_.completions == nullptr)
    return EncodeCopies(gradients);
  const std::optional<v1::BorrowOffer> offer = uses_.loans->OfferOf(peer, *device);
  if (!offer.has_value()) return EncodeCopies(gradients);
  PSD_RETURN_IF_ERROR(Prepare(*device, gradients));
  GradientMessage message;
  message.offer = *offer;
  PSD_ASSIGN_OR_RETURN(message.payload, rref::EncodeTensorValues(gradients, device));
  PSD_RETURN_IF_ERROR(Lend(peer, *device, message));
  return message;
}

absl::Status GradientLoans::Lend(const rpc::PeerInfo& peer, Device& device,
                                 GradientMessage& message) {
  // This thread has ordered its stream behind the work that writes the gradients.
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Event> event, CurrentStream(&device)->Record());
  std::vector<Buffer>& buffers = message.payload.buffers;
  const std::vector<v1::LentBlock> blocks = uses_.loans->Lend(message.offer, buffers);
  for (const v1::LentBlock& block : blocks) buffers[block.number()] = Buffer();
  message.lent.mutable_blocks()->Add(blocks.begin(), blocks.end());
  if (const absl::Status copied = CopyRest(buffers); !copied.ok()) {
    TakeBack(message);
    return copied;
  }
  if (!message.lends()) return absl::OkStatus();
  message.lent.set_identity(device.sharing()->identity());
  message.lent.set_key(message.offer.key());
  message.written = {&device, std::move(event)};
  uses_.loans->NoteGradientsLent(peer.incarnation, message.offer);
  return absl::OkStatus();
}

rpc::Attachment GradientLoans::AttachmentOf(const GradientMessage& message) {
  return {kLentBuffersTag, message.lent.SerializeAsString()};
}

void GradientLoans::WhenWritten(const DeviceEvent& written, CompletionThreads::Then then) {
  const rref::Gate::Entry entry(gate_);
  if (!entry.open()) return std::move(then)(absl::CancelledError("this worker is stopping"));
  uses_.completions->OnPassed(written, std::move(then));
}

void GradientLoans::TakeBack(const GradientMessage& message) {
  uses_.loans->TakeBack(LoansOf(message));
}

void GradientLoans::OnAnswered(const rpc::PeerInfo& peer, const GradientMessage& message,
                               const absl::Status& answered, const absl::Status& refused) {
  if (answered.ok() && refused.ok()) return;
  // After a refusal too: the peer may have borrowed some of them before it met one that it could
  // not borrow.
  uses_.loans->Recall(peer, LoansOf(message));
  if (refused.ok() || absl::IsResourceExhausted(refused) || absl::IsAborted(refused)) return;
  uses_.loans->NoteGradientsRefused(peer, refused);
}

bool GradientLoans::Lends(const rpc::ServerCall& call) {
  return call.attachment(kLentBuffersTag) != nullptr;
}

absl::StatusOr<ArrivedGradients> GradientLoans::Decode(rpc::ServerCall& call) const {
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
