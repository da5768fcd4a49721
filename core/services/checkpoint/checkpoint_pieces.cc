// Server side of the checkpoint service: transfers in pieces.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rpc/declared_method.h"
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

absl::StatusOr<rpc::Contents> CheckpointService::HoldCopies(rpc::ServerCall& call, GlobalId id,
                                                            Outbound& out) {
  PSD_ASSIGN_OR_RETURN(std::vector<Tensor> arrays, DenseCopies(out));
  PSD_RETURN_IF_ERROR(Keep(call, id, Transfer::Direction::kOut, std::move(arrays)));
  return rpc::Contents{{}, {rpc::FieldsAttachment(out.reply)}};
}

absl::Status CheckpointService::Keep(rpc::ServerCall& call, GlobalId id,
                                     Transfer::Direction direction, std::vector<Tensor> arrays) {
  const GlobalId session = rpc::SessionOf(call);
  PSD_RETURN_IF_ERROR(
      transfers_.Put(session, id, std::make_shared<Transfer>(direction, std::move(arrays))));
  // If the session has ended meanwhile, nobody else would release the transfer.
  if (call.cancelled()) transfers_.Release(session, id);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Tensor>> CheckpointService::TakeFilled(const rpc::ServerCall& call,
                                                                  GlobalId id) {
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Transfer> room, transfers_.Take(rpc::SessionOf(call), id));
  return room->arrays();
}

absl::StatusOr<rpc::Contents> CheckpointService::ServeFetch(const rpc::CallPtr& call,
                                                            v1::PieceRequest request) {
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Transfer> transfer,
                       transfers_.Find(rpc::SessionOf(*call), rpc::IdOf(request)));
  PSD_ASSIGN_OR_RETURN(Buffer piece,
                       transfer->Piece(request.array(), request.first_byte(), request.bytes()));
  v1::PieceReply fields;
  fields.set_steps_accepted(StepsAccepted(uses_.store));
  rpc::Contents reply{rpc::PlainPayload(fields), {}};
  reply.payload.buffers.push_back(std::move(piece));
  return reply;
}

absl::Status CheckpointService::ServeMakeRoom(const rpc::CallPtr& call, v1::RoomRequest request) {
  PSD_RETURN_IF_ERROR(MayUseWorker(*call, rpc::Right::kLoad));
  PSD_ASSIGN_OR_RETURN(std::vector<checkpoint::TensorSpec> specs, DecodeArrays(request));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  PSD_ASSIGN_OR_RETURN(std::vector<Tensor> arrays, Allocate(specs, uses_.store.stats()));
  return Keep(*call, rpc::IdOf(request), Transfer::Direction::kIn, std::move(arrays));
}

absl::Status CheckpointService::ServeFill(const rpc::CallPtr& call, v1::PieceRequest request) {
  if (call->payload().buffers.size() != 1)
    return absl::InvalidArgumentError("checkpoint.fill: one buffer is expected");
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  // The reference is dropped before the answer, after which the caller may import the room.
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Transfer> transfer,
                       transfers_.Find(rpc::SessionOf(*call), rpc::IdOf(request)));
  return transfer->Fill(request.array(), request.first_byte(), call->payload().buffers[0]);
}

absl::Status CheckpointService::ServeRelease(const rpc::CallPtr& call, v1::PieceRequest request) {
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  transfers_.Release(rpc::SessionOf(*call), rpc::IdOf(request));
  return absl::OkStatus();
}

}  // namespace psd::services
