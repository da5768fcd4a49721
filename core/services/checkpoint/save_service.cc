// Server side of the save service.
#include "core/services/checkpoint/save_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/rpc/message_io.h"
#include "core/services/checkpoint/checkpoint_codec.h"
#include "core/services/checkpoint/checkpoint_export.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/checkpoint/owner_contents.h"

namespace psd::services {
namespace {

// Returns the number of the file for each of the item's arrays. Errors: INVALID_ARGUMENT.
absl::StatusOr<std::vector<size_t>> FilesOf(const v1::ExportItem& asked,
                                            const v1::ExportedItem& item) {
  size_t arrays = 1;
  for (uint32_t count : item.state_arrays()) arrays += count;
  if (static_cast<size_t>(asked.files_size()) == arrays)
    return std::vector<size_t>(asked.files().begin(), asked.files().end());
  return absl::InvalidArgumentError(absl::StrCat("save.write: ", asked.files_size(),
                                                 " files for a value of ", arrays, " arrays"));
}

absl::StatusOr<std::vector<size_t>> FilesOf(const v1::WriteSaveRequest& request,
                                            const v1::ExportReply& reply) {
  std::vector<size_t> files;
  for (int i = 0; i < request.items_size(); ++i) {
    PSD_ASSIGN_OR_RETURN(std::vector<size_t> each, FilesOf(request.items(i), reply.items(i)));
    files.insert(files.end(), each.begin(), each.end());
  }
  return files;
}

}  // namespace

SaveService::SaveService(Uses uses) : uses_(std::move(uses)) {
  auto add = [&](const char* name, void (SaveService::*serve)(const CallPtr&)) {
    uses_.agent.RegisterMethod({name, rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor,
                                [this, serve](CallPtr call) { (this->*serve)(call); }});
  };
  add("save.open", &SaveService::ServeOpen);
  add("save.write", &SaveService::ServeWrite);
  add("save.finish", &SaveService::ServeFinish);
  add("save.close", &SaveService::ServeClose);
  uses_.agent.OnSessionEnded([this](const rpc::PeerInfo& peer, uint64_t epoch) {
    for (SavePtr& save : saves_.TakeAllOf({peer.incarnation, epoch})) Destroy(std::move(save));
  });
}

void SaveService::ServeOpen(const CallPtr& call) {
  if (call->payload().buffers.size() != 1)
    return call->Reply(absl::InvalidArgumentError("save.open: one buffer is expected"));
  auto request = rpc::ParseMessage<v1::OpenSaveRequest>(
      std::string(call->payload().buffers[0].view()), call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto files = DecodeOwnFiles(*request);
  if (!files.ok()) return call->Reply(files.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before the save"));
  const Key key(rpc::SessionOf(*call), rpc::IdOf(*request));
  const absl::StatusOr<uint64_t> opening = OpenHere(key, *files);
  const absl::Status& opened = opening.status();
  uses_.logger.Log(LogLevel::kInfo, opened.ok() ? "save_opened" : "save_not_here",
                   opened.ok() ? "writes its own files of a save" : opened.message(),
                   {{"peer", call->caller().name}, {"files", files->files.size()}});
  // The session may have ended before the save was registered, and nobody would give it up. The
  // peer may have opened another save under the same id meanwhile, which stays.
  if (opening.ok() && call->cancelled()) Destroy(saves_.Take(key, *opening));
  v1::OpenSaveReply reply;
  reply.set_here(opened.ok());
  reply.set_why_not(std::string(opened.message()));
  reply.set_steps_accepted(StepsAccepted(uses_.store));
  call->Reply(rpc::PlainPayload(reply));
}

absl::StatusOr<uint64_t> SaveService::OpenHere(const Key& key, const OwnFiles& files) {
  PSD_ASSIGN_OR_RETURN(const uint64_t opening, saves_.Reserve(key));
  absl::StatusOr<SavePtr> save = MakeFiles(files);
  if (!save.ok()) {
    saves_.Take(key, opening);
    return save.status();
  }
  if (saves_.Fill(key, opening, *save)) return opening;
  Destroy(*std::move(save));
  return absl::CancelledError("whoever asked for the save has given it up meanwhile");
}

absl::StatusOr<SaveService::SavePtr> SaveService::MakeFiles(const OwnFiles& files) {
  const auto& root = uses_.root;
  if (root == nullptr) return absl::FailedPreconditionError("there is no checkpoint_root");
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<checkpoint::FoundFolder> folder,
                       root->Find(files.folder, files.token));
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<OwnSave> save,
                       OwnSave::Start(std::move(folder), uses_.agent.self().name, files.files,
                                      uses_.memory.transit()));
  return SavePtr(std::move(save));
}

void SaveService::ServeWrite(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::WriteSaveRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto save = saves_.Find({rpc::SessionOf(*call), rpc::IdOf(*request)});
  if (!save.ok()) return call->Reply(save.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before the write"));
  if (request->has_piece()) return WritePieceHere(call, *save, *request);
  WriteItems(call, *save, *request);
}

void SaveService::WriteItems(const CallPtr& call, const SavePtr& save,
                             const v1::WriteSaveRequest& request) {
  CopyOut(uses_.store, uses_.executor, call, request.items(), uses_.memory.transit(),
          [this, call, save, request](Outbound& out) {
            auto files = FilesOf(request, out.reply);
            if (!files.ok()) return call->Reply(files.status());
            auto arrays = DenseCopies(out);
            if (!arrays.ok()) return call->Reply(arrays.status());
            out.values.clear();  // `arrays` holds the tensors now
            Do(call, save, request.number(),
               [reply = out.reply, files = *std::move(files),
                arrays = *std::move(arrays)](OwnSave& to) mutable -> absl::StatusOr<rpc::Payload> {
                 for (size_t i = 0; i < arrays.size(); ++i)
                   PSD_RETURN_IF_ERROR(to.Append(files[i], arrays[i]));
                 arrays.clear();
                 return rpc::PlainPayload(reply);
               });
          });
}

void SaveService::WritePieceHere(const CallPtr& call, const SavePtr& save,
                                 const v1::WriteSaveRequest& request) {
  const v1::PieceRequest& range = request.piece();
  auto held = uses_.transfers.Find(rpc::SessionOf(*call), rpc::IdOf(range));
  if (!held.ok()) return call->Reply(held.status());
  auto piece = (*held)->Piece(range.array(), range.first_byte(), range.bytes());
  if (!piece.ok()) return call->Reply(piece.status());
  Do(call, save, request.number(),
     [this, piece = *std::move(piece),
      file = request.piece_file()](OwnSave& to) -> absl::StatusOr<rpc::Payload> {
       PSD_RETURN_IF_ERROR(to.AppendBytes(file, piece.view()));
       v1::ExportReply reply;
       reply.set_steps_accepted(StepsAccepted(uses_.store));
       return rpc::PlainPayload(reply);
     });
}

void SaveService::ServeFinish(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::FinishSaveRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  if (request->count_files_size() != request->counts_size())
    return call->Reply(absl::InvalidArgumentError("save.finish: counts without a file"));
  auto save = saves_.Find({rpc::SessionOf(*call), rpc::IdOf(*request)});
  if (!save.ok()) return call->Reply(save.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before the end"));
  std::vector<StepCount> counts;
  for (int i = 0; i < request->counts_size(); ++i)
    counts.push_back({request->count_files(i), request->counts(i)});
  Do(call, *save, request->number(),
     [counts = std::move(counts)](OwnSave& to) -> absl::StatusOr<rpc::Payload> {
       PSD_ASSIGN_OR_RETURN(std::vector<checkpoint::SavedFile> files, to.Finish(counts));
       return rpc::PlainPayload(EncodeFinished(files));
     });
}

void SaveService::ServeClose(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::WriteSaveRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before the end"));
  Destroy(saves_.Take({rpc::SessionOf(*call), rpc::IdOf(*request)}));
  call->Reply(rpc::Payload{});
}

void SaveService::Do(const CallPtr& call, const SavePtr& save, uint64_t number, Append append) {
  // This runs on the thread of the save, which the save outlives, so a plain pointer is enough.
  const absl::Status queued = save->Do(
      number, [call, to = save.get(), append = std::move(append)](const absl::Status& may) mutable {
        if (may.ok() && call->cancelled())
          to->Stop(absl::CancelledError("cancelled before the write"));
        call->Reply(may.ok() ? append(*to) : absl::StatusOr<rpc::Payload>(may));
        append = nullptr;  // frees its memory before the next work begins
      });
  if (!queued.ok()) call->Reply(queued);
}

void SaveService::Destroy(SavePtr save) {
  if (save == nullptr) return;
  save->Stop(absl::CancelledError("the save was given up"));
  // If the executor refuses the task, because it is full or shutting down, the save is destroyed
  // here.
  uses_.executor.Submit([save = std::move(save)] {}).IgnoreError();
}

}  // namespace psd::services
