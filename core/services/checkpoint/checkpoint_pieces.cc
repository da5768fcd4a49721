// Server side of the checkpoint service: transfers in pieces.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rpc/message_io.h"
#include "core/services/checkpoint/checkpoint_codec.h"
#include "core/services/checkpoint/checkpoint_export.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/checkpoint/owner_contents.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {
namespace {

// Allocates memory for `specs`. It is zeroed, so that a peer cannot read old contents of parts that
// it did not fill. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<std::vector<Tensor>> Allocate(const std::vector<checkpoint::TensorSpec>& specs,
                                             const store::Store::Stats& stats) {
  uint64_t left = stats.limit_bytes == 0 ? UINT64_MAX : stats.limit_bytes;
  for (const checkpoint::TensorSpec& spec : specs) {
    if (spec.bytes() > left) {
      return WithRemedy(
          absl::ResourceExhaustedError(absl::StrCat("room was asked for an array of ", spec.bytes(),
                                                    " bytes, ", left, " of the memory budget of ",
                                                    stats.limit_bytes, " bytes are left to it")),
          "raise the budget, or load elsewhere");
    }
    left -= spec.bytes();
  }
  std::vector<Tensor> arrays;
  for (const checkpoint::TensorSpec& spec : specs) {
    PSD_ASSIGN_OR_RETURN(Tensor array, Tensor::Zeros(spec.shape, spec.dtype));
    arrays.push_back(std::move(array));
  }
  return arrays;
}

}  // namespace

void CheckpointService::HoldCopies(const CallPtr& call, GlobalId id, Outbound& out) {
  auto arrays = DenseCopies(out);
  if (!arrays.ok()) return call->Reply(arrays.status());
  absl::Status kept = Keep(call, id, Transfer::Direction::kOut, *std::move(arrays));
  if (!kept.ok()) return call->Reply(kept);
  call->Reply(rpc::Payload{}, {rpc::FieldsAttachment(out.reply)});
}

absl::Status CheckpointService::Keep(const CallPtr& call, GlobalId id,
                                     Transfer::Direction direction, std::vector<Tensor> arrays) {
  const GlobalId session = rpc::SessionOf(*call);
  PSD_RETURN_IF_ERROR(
      transfers_.Put(session, id, std::make_shared<Transfer>(direction, std::move(arrays))));
  // The session may have ended meanwhile, and nobody would release it.
  if (call->cancelled()) transfers_.Release(session, id);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Tensor>> CheckpointService::TakeFilled(const rpc::ServerCall& call,
                                                                  GlobalId id) {
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Transfer> room, transfers_.Take(rpc::SessionOf(call), id));
  return room->arrays();
}

void CheckpointService::ServeFetch(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::PieceRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto transfer = transfers_.Find(rpc::SessionOf(*call), rpc::IdOf(*request));
  if (!transfer.ok()) return call->Reply(transfer.status());
  auto piece = (*transfer)->Piece(request->array(), request->first_byte(), request->bytes());
  if (!piece.ok()) return call->Reply(piece.status());
  v1::PieceReply reply;
  reply.set_steps_accepted(StepsAccepted(uses_.store));
  rpc::Payload payload = rpc::PlainPayload(reply);
  payload.buffers.push_back(*std::move(piece));
  call->Reply(std::move(payload));
}

void CheckpointService::ServeMakeRoom(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::RoomRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto specs = DecodeArrays(*request);
  if (!specs.ok()) return call->Reply(specs.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before the import"));
  auto arrays = Allocate(*specs, uses_.store.stats());
  if (!arrays.ok()) return call->Reply(arrays.status());
  absl::Status kept = Keep(call, rpc::IdOf(*request), Transfer::Direction::kIn, *std::move(arrays));
  if (!kept.ok()) return call->Reply(kept);
  call->Reply(rpc::Payload{});
}

void CheckpointService::ServeFill(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::PieceRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  if (call->payload().buffers.size() != 1)
    return call->Reply(absl::InvalidArgumentError("checkpoint.fill: one buffer is expected"));
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before the import"));
  auto transfer = transfers_.Find(rpc::SessionOf(*call), rpc::IdOf(*request));
  if (!transfer.ok()) return call->Reply(transfer.status());
  const absl::Status filled =
      (*transfer)->Fill(request->array(), request->first_byte(), call->payload().buffers[0]);
  transfer->reset();  // must happen before the answer, after which the caller may import the room
  if (!filled.ok()) return call->Reply(filled);
  call->Reply(rpc::Payload{});
}

void CheckpointService::ServeRelease(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::PieceRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before the release"));
  transfers_.Release(rpc::SessionOf(*call), rpc::IdOf(*request));
  call->Reply(rpc::Payload{});
}

}  // namespace psd::services
