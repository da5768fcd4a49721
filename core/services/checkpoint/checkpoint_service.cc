// Server side of the checkpoint service, without transfers in pieces (checkpoint_pieces.cc).
#include "core/services/checkpoint/checkpoint_service.h"

#include <utility>

#include "core/base/status.h"
#include "core/rpc/message_io.h"
#include "core/rref/value_codec.h"
#include "core/services/checkpoint/checkpoint_codec.h"
#include "core/services/checkpoint/checkpoint_export.h"
#include "core/services/checkpoint/checkpoint_import.h"
#include "core/services/checkpoint/owner_contents.h"
#include "core/store/value.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {

CheckpointService::CheckpointService(Uses uses) : uses_(std::move(uses)) {
  auto add = [&](const char* name, rpc::MethodKind kind,
                 void (CheckpointService::*serve)(const CallPtr&)) {
    uses_.agent.RegisterMethod({name, kind, rpc::RunsOn::kExecutor,
                                [this, serve](CallPtr call) { (this->*serve)(call); }});
  };
  add("checkpoint.describe", rpc::MethodKind::kRead, &CheckpointService::ServeDescribe);
  add("checkpoint.check", rpc::MethodKind::kRead, &CheckpointService::ServeCheck);
  add("checkpoint.export", rpc::MethodKind::kRead, &CheckpointService::ServeExport);
  add("checkpoint.import", rpc::MethodKind::kMutation, &CheckpointService::ServeImport);
  add("checkpoint.fetch", rpc::MethodKind::kRead, &CheckpointService::ServeFetch);
  add("checkpoint.make_room", rpc::MethodKind::kMutation, &CheckpointService::ServeMakeRoom);
  add("checkpoint.fill", rpc::MethodKind::kMutation, &CheckpointService::ServeFill);
  add("checkpoint.release", rpc::MethodKind::kMutation, &CheckpointService::ServeRelease);
  uses_.agent.OnSessionEnded([this](const rpc::PeerInfo& peer, uint64_t epoch) {
    transfers_.OnSessionEnded({peer.incarnation, epoch});
  });
}

void CheckpointService::ServeDescribe(const CallPtr& call) {
  OwnerContents contents = DescribeContents(uses_.store);
  contents.writes_files = uses_.writes_files;
  contents.incarnation = uses_.agent.self().incarnation;
  const v1::OwnerContents message = EncodeContents(contents);
  auto block = uses_.memory.transit()->Allocate(message.ByteSizeLong());
  if (!block.ok()) return call->Reply(block.status());
  message.SerializeToArray((*block)->data(), static_cast<int>((*block)->size()));
  rpc::Payload payload;
  payload.buffers.emplace_back(*std::move(block));
  call->Reply(std::move(payload));
}

void CheckpointService::ServeCheck(const CallPtr& call) {
  if (call->payload().buffers.size() != 1)
    return call->Reply(absl::InvalidArgumentError("checkpoint.check: one buffer is expected"));
  auto message = rpc::ParseMessage<v1::OwnerContents>(
      std::string(call->payload().buffers[0].view()), call->method());
  if (!message.ok()) return call->Reply(message.status());
  auto wanted = DecodeContents(*message);
  if (!wanted.ok()) return call->Reply(wanted.status());
  absl::Status checked = CheckContents(uses_.store, uses_.optimizers, *wanted);
  if (!checked.ok()) return call->Reply(checked);
  call->Reply(rpc::Payload{});
}

void CheckpointService::ServeExport(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::ExportRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  const GlobalId held{request->held_incarnation(), request->held_counter()};
  if (held.counter != 0 && request->items_size() != 1)
    return call->Reply(
        absl::InvalidArgumentError("checkpoint.export: one value is held at a time"));
  CopyOut(uses_.store, uses_.executor, call, request->items(), nullptr,
          [this, call, held](Outbound& out) {
            if (held.counter != 0) return HoldCopies(call, held, out);
            auto payload =
                rref::EncodeValues(out.values, [](const store::RemoteReference&, rref::ForkData&) {
                  return absl::InternalError("only tensors are copied out");
                });
            call->Reply(std::move(payload), {rpc::FieldsAttachment(out.reply)});
          });
}

void CheckpointService::ServeImport(const CallPtr& call) {
  auto fields = rpc::ParseFields<v1::ImportRequest>(*call);
  if (!fields.ok()) return call->Reply(fields.status());
  auto values = ImportedValues(*call, *fields);
  if (!values.ok()) return call->Reply(values.status());
  auto import = DecodeImport(uses_.store, {uses_.agent.self().name, uses_.agent.self().incarnation},
                             *fields, *values);
  if (!import.ok()) return call->Reply(import.status());
  std::vector<GlobalId> ids;
  for (const Incoming& item : (*import)->items)
    if (Changes(item)) ids.push_back(item.entry->id);
  for (const Inbound::Restored& each : (*import)->optimizers) AddClaimsOf(each, ids);
  WithWriteClaims(
      uses_.store, uses_.executor, std::move(ids), call,
      [this, call, in = *import] {
        // Asked while the claims are held: whatever claims these values after the call has ended
        // is not followed by the import.
        if (!call->BeginApply()) in->status = absl::CancelledError("cancelled before the import");
        for (const Incoming& item : in->items) {
          if (!in->status.ok()) return;
          in->status = Changes(item) ? Replace(item) : MakeValue(uses_.store, uses_.rrefs, item);
        }
        for (const Inbound::Restored& each : in->optimizers)
          if (in->status.ok()) in->status = Restore(each);
      },
      [call, in = *import] {
        if (!in->status.ok()) return call->Reply(in->status);
        call->Reply(rpc::Payload{});
      });
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
