// Server side of the checkpoint service, without transfers in pieces (checkpoint_pieces.cc).
#include "core/services/checkpoint/checkpoint_service.h"

#include <utility>

#include "core/base/status.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rref/value_codec.h"
#include "core/services/checkpoint/checkpoint_codec.h"
#include "core/services/checkpoint/checkpoint_export.h"
#include "core/services/checkpoint/checkpoint_import.h"
#include "core/services/checkpoint/checkpoint_methods.h"
#include "core/services/checkpoint/owner_contents.h"
#include "core/store/value.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {
namespace {

absl::StatusOr<rpc::Contents> EncodeCopies(const Outbound& out) {
  rpc::Contents reply;
  PSD_ASSIGN_OR_RETURN(
      reply.payload,
      rref::EncodeValues(out.values, [](const store::RemoteReference&, rref::ForkData&) {
        return absl::InternalError("only tensors are copied out");
      }));
  reply.attachments.push_back(rpc::FieldsAttachment(out.reply));
  return reply;
}

}  // namespace

CheckpointService::CheckpointService(Uses uses) : uses_(std::move(uses)) {
  rpc::Serve(uses_.agent, kCheckpointDescribe, this, &CheckpointService::ServeDescribe);
  rpc::Serve(uses_.agent, kCheckpointCheck, this, &CheckpointService::ServeCheck);
  rpc::Serve(uses_.agent, kCheckpointExport, this, &CheckpointService::ServeExport);
  rpc::Serve(uses_.agent, kCheckpointImport, this, &CheckpointService::ServeImport);
  rpc::Serve(uses_.agent, kCheckpointFetch, this, &CheckpointService::ServeFetch);
  rpc::Serve(uses_.agent, kCheckpointMakeRoom, this, &CheckpointService::ServeMakeRoom);
  rpc::Serve(uses_.agent, kCheckpointFill, this, &CheckpointService::ServeFill);
  rpc::Serve(uses_.agent, kCheckpointRelease, this, &CheckpointService::ServeRelease);
  uses_.agent.OnSessionEnded([this](const rpc::PeerInfo& peer, uint64_t epoch) {
    transfers_.OnSessionEnded({peer.incarnation, epoch});
  });
}

absl::StatusOr<rpc::Contents> CheckpointService::ServeDescribe(const rpc::CallPtr& call, Unit) {
  PSD_RETURN_IF_ERROR(MayUseWorker(*call, rpc::Right::kInspect));
  OwnerContents contents = DescribeContents(uses_.store);
  contents.writes_files = uses_.writes_files;
  contents.incarnation = uses_.agent.self().incarnation;
  const v1::OwnerContents message = EncodeContents(contents);
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block,
                       uses_.memory.transit()->Allocate(message.ByteSizeLong()));
  message.SerializeToArray(block->data(), static_cast<int>(block->size()));
  rpc::Contents reply;
  reply.payload.buffers.emplace_back(std::move(block));
  return reply;
}

absl::Status CheckpointService::ServeCheck(const rpc::CallPtr& call,
                                           rpc::Bulk<v1::OwnerContents> request) {
  PSD_RETURN_IF_ERROR(MayUseWorker(*call, rpc::Right::kLoad));
  PSD_ASSIGN_OR_RETURN(OwnerContents wanted, DecodeContents(request.message));
  return CheckContents(uses_.store, uses_.optimizers, wanted);
}

absl::Status CheckpointService::ServeExport(const rpc::Answer<rpc::Contents>& answer,
                                            v1::ExportRequest request) {
  const GlobalId held{request.held_incarnation(), request.held_counter()};
  if (held.counter != 0 && request.items_size() != 1)
    return absl::InvalidArgumentError("checkpoint.export: one value is held at a time");
  PSD_ASSIGN_OR_RETURN(
      const std::shared_ptr<Outbound> found,
      FindItems(uses_.agent.access(), uses_.store, *answer.call(), request.items()));
  CopyOut(
      uses_.store, uses_.executor, answer.call(), found,
      [this, answer, held](absl::StatusOr<Outbound*> out) {
        if (!out.ok()) return answer(out.status());
        answer(held.counter != 0 ? HoldCopies(*answer.call(), held, **out) : EncodeCopies(**out));
      });
  return absl::OkStatus();
}

absl::Status CheckpointService::ServeImport(const rpc::Answer<Unit>& answer,
                                            rpc::Beside<v1::ImportRequest> fields) {
  PSD_RETURN_IF_ERROR(AuthorizeImport(*answer.call(), fields.message));
  PSD_ASSIGN_OR_RETURN(store::Values values, ImportedValues(*answer.call(), fields.message));
  PSD_ASSIGN_OR_RETURN(
      std::shared_ptr<Inbound> in,
      DecodeImport(uses_.store, {uses_.agent.self().name, uses_.agent.self().incarnation},
                   fields.message, values));
  std::vector<GlobalId> ids;
  for (const Incoming& item : in->items)
    if (Changes(item)) ids.push_back(item.entry->id);
  for (const Inbound::Restored& each : in->optimizers) AddClaimsOf(each, ids);
  WithWriteClaims(
      uses_.store, uses_.executor, std::move(ids), answer.call(),
      [this, call = answer.call(), in = std::move(in)]() -> absl::Status {
        // This is checked while the claims are held: if the call has ended, the import must not
        // change values that others have claimed since.
        PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
        for (const Incoming& item : in->items) {
          PSD_RETURN_IF_ERROR(Changes(item) ? Replace(uses_.changes, item)
                                            : MakeValue(uses_.changes, uses_.rrefs, item));
        }
        for (const Inbound::Restored& each : in->optimizers) PSD_RETURN_IF_ERROR(Restore(each));
        return absl::OkStatus();
      },
      [this, answer](const absl::Status& imported) {
        uses_.agent.access().NameDropped();  // values that were replaced have lost their names
        answer(imported.ok() ? absl::StatusOr<Unit>(Unit{}) : imported);
      });
  return absl::OkStatus();
}

absl::Status CheckpointService::MayUseWorker(const rpc::ServerCall& call, rpc::Right right) {
  return uses_.agent.access().Authorize(rpc::AskerOf(call), right, uses_.agent.self().name);
}

absl::Status CheckpointService::AuthorizeImport(const rpc::ServerCall& call,
                                                const v1::ImportRequest& request) {
  std::vector<const std::string*> names;
  for (const v1::ImportItem& item : request.items()) {
    names.push_back(&item.name());
    for (const v1::ImportedState& state : item.states()) names.push_back(&state.optimizer());
  }
  for (const v1::RestoredOptimizer& restored : request.optimizers())
    names.push_back(&restored.name());
  return uses_.agent.access().Authorize(rpc::AskerOf(call), rpc::Right::kLoad, GlobalId(),
                                        names.size(), [&](size_t i) { return *names[i]; });
}

absl::StatusOr<store::Values> CheckpointService::ImportedValues(rpc::ServerCall& call,
                                                                const v1::ImportRequest& request) {
  if (request.items_size() != 1 || request.items(0).room_counter() == 0) {
    PSD_ASSIGN_OR_RETURN(dist_autograd::Arguments arguments, uses_.exchange.DecodeRequest(call));
    return std::move(arguments.values);
  }
  PSD_ASSIGN_OR_RETURN(
      std::vector<Tensor> arrays,
      TakeFilled(call, {request.items(0).room_incarnation(), request.items(0).room_counter()}));
  store::Values values;
  for (Tensor& array : arrays) values.emplace_back(std::move(array));
  return values;
}

}  // namespace psd::services
