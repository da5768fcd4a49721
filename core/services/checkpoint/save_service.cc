// Server side of the save service.
#include "core/services/checkpoint/save_service.h"

#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/services/checkpoint/checkpoint_codec.h"
#include "core/services/checkpoint/checkpoint_export.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/checkpoint/owner_contents.h"
#include "core/services/checkpoint/save_methods.h"

namespace psd::services {
namespace {

// Returns the index of the file for each of the item's arrays. Errors: INVALID_ARGUMENT.
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

// Runs `append` when the turn of its number has come. `append` appends to the save and returns the
// reply. Errors: those of OwnSave::Do; then `append` does not run.
template <typename ReplyType, typename Append>
absl::Status Do(const rpc::Answer<ReplyType>& answer, const SaveTable::SavePtr& save,
                uint64_t number, Append append) {
  // This runs on the thread of the save, which the save outlives, so a plain pointer is enough.
  return save->Do(number, [answer, to = save.get(),
                           append = absl::AnyInvocable<absl::StatusOr<ReplyType>(OwnSave&)>(
                               std::move(append))](const absl::Status& may) mutable {
    if (may.ok() && answer.call()->cancelled())
      to->Stop(absl::CancelledError("cancelled before the write"));
    answer(may.ok() ? append(*to) : absl::StatusOr<ReplyType>(may));
    append = nullptr;  // frees its memory before the next work begins
  });
}

// Takes the copies out of `out`.
absl::Status AppendCopies(const rpc::Answer<v1::ExportReply>& answer,
                          const SaveTable::SavePtr& save, const v1::WriteSaveRequest& request,
                          Outbound& out) {
  PSD_ASSIGN_OR_RETURN(std::vector<size_t> files, FilesOf(request, out.reply));
  PSD_ASSIGN_OR_RETURN(std::vector<Tensor> arrays, DenseCopies(out));
  out.values.clear();  // `arrays` holds the tensors now
  return Do(answer, save, request.number(),
            [reply = out.reply, files = std::move(files),
             arrays = std::move(arrays)](OwnSave& to) mutable -> absl::StatusOr<v1::ExportReply> {
              for (size_t i = 0; i < arrays.size(); ++i)
                PSD_RETURN_IF_ERROR(to.Append(files[i], arrays[i]));
              arrays.clear();
              return std::move(reply);
            });
}

}  // namespace

SaveService::SaveService(Uses uses) : uses_(std::move(uses)) {
  rpc::Serve(uses_.agent, kSaveOpen, this, &SaveService::ServeOpen);
  rpc::Serve(uses_.agent, kSaveWrite, this, &SaveService::ServeWrite);
  rpc::Serve(uses_.agent, kSaveFinish, this, &SaveService::ServeFinish);
  rpc::Serve(uses_.agent, kSaveClose, this, &SaveService::ServeClose);
  uses_.agent.OnSessionEnded([this](const rpc::PeerInfo& peer, uint64_t epoch) {
    for (SavePtr& save : saves_.TakeAllOf({peer.incarnation, epoch})) Destroy(std::move(save));
  });
}

absl::StatusOr<v1::OpenSaveReply> SaveService::ServeOpen(const rpc::CallPtr& call,
                                                         rpc::Bulk<v1::OpenSaveRequest> request) {
  PSD_ASSIGN_OR_RETURN(OwnFiles files, DecodeOwnFiles(request.message));
  PSD_RETURN_IF_ERROR(uses_.agent.access().Authorize(rpc::AskerOf(*call), rpc::Right::kSave,
                                                     uses_.agent.self().name));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  const Key key(rpc::SessionOf(*call), rpc::IdOf(request.message));
  const absl::StatusOr<uint64_t> opening = OpenHere(key, files);
  const absl::Status& opened = opening.status();
  uses_.logger.Log(LogLevel::kInfo, opened.ok() ? "save_opened" : "save_not_here",
                   opened.ok() ? "writes its own files of a save" : opened.message(),
                   {{"peer", call->caller().name}, {"files", files.files.size()}});
  // If the session ended before the save was registered, nobody else would give the save up. The
  // peer may have opened another save under the same id meanwhile, which stays.
  if (opening.ok() && call->cancelled()) Destroy(saves_.Take(key, *opening));
  v1::OpenSaveReply reply;
  reply.set_here(opened.ok());
  reply.set_why_not(std::string(opened.message()));
  reply.set_steps_accepted(StepsAccepted(uses_.store));
  return reply;
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
  return absl::CancelledError("the worker that asked for the save has given it up meanwhile");
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

absl::Status SaveService::ServeWrite(const rpc::Answer<v1::ExportReply>& answer,
                                     v1::WriteSaveRequest request) {
  PSD_ASSIGN_OR_RETURN(SavePtr save,
                       saves_.Find({rpc::SessionOf(*answer.call()), rpc::IdOf(request)}));
  if (request.has_piece()) return WritePieceHere(answer, save, request);
  return WriteItems(answer, save, request);
}

absl::Status SaveService::WriteItems(const rpc::Answer<v1::ExportReply>& answer,
                                     const SavePtr& save, const v1::WriteSaveRequest& request) {
  PSD_ASSIGN_OR_RETURN(
      const std::shared_ptr<Outbound> found,
      FindItems(uses_.agent.access(), uses_.store, *answer.call(), request.items()));
  found->memory = uses_.memory.transit();
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*answer.call()));
  CopyOut(uses_.store, uses_.executor, answer.call(), found,
          [answer, save, request](absl::StatusOr<Outbound*> out) {
            const absl::Status begun =
                out.ok() ? AppendCopies(answer, save, request, **out) : out.status();
            if (!begun.ok()) answer(begun);
          });
  return absl::OkStatus();
}

absl::Status SaveService::WritePieceHere(const rpc::Answer<v1::ExportReply>& answer,
                                         const SavePtr& save, const v1::WriteSaveRequest& request) {
  const v1::PieceRequest& range = request.piece();
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Transfer> held,
                       uses_.transfers.Find(rpc::SessionOf(*answer.call()), rpc::IdOf(range)));
  PSD_ASSIGN_OR_RETURN(Buffer piece, held->Piece(range.array(), range.first_byte(), range.bytes()));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*answer.call()));
  return Do(answer, save, request.number(),
            [this, piece = std::move(piece),
             file = request.piece_file()](OwnSave& to) -> absl::StatusOr<v1::ExportReply> {
              PSD_RETURN_IF_ERROR(to.AppendBytes(file, piece.view()));
              v1::ExportReply reply;
              reply.set_steps_accepted(StepsAccepted(uses_.store));
              return reply;
            });
}

absl::Status SaveService::ServeFinish(const rpc::Answer<v1::FinishSaveReply>& answer,
                                      v1::FinishSaveRequest request) {
  if (request.count_files_size() != request.counts_size())
    return absl::InvalidArgumentError("save.finish: counts without a file");
  PSD_ASSIGN_OR_RETURN(SavePtr save,
                       saves_.Find({rpc::SessionOf(*answer.call()), rpc::IdOf(request)}));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*answer.call()));
  std::vector<StepCount> counts;
  for (int i = 0; i < request.counts_size(); ++i)
    counts.push_back({request.count_files(i), request.counts(i)});
  return Do(answer, save, request.number(),
            [counts = std::move(counts)](OwnSave& to) -> absl::StatusOr<v1::FinishSaveReply> {
              PSD_ASSIGN_OR_RETURN(std::vector<checkpoint::SavedFile> files, to.Finish(counts));
              return EncodeFinished(files);
            });
}

absl::Status SaveService::ServeClose(const rpc::CallPtr& call, v1::WriteSaveRequest request) {
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  Destroy(saves_.Take({rpc::SessionOf(*call), rpc::IdOf(request)}));
  return absl::OkStatus();
}

void SaveService::Destroy(SavePtr save) {
  if (save == nullptr) return;
  save->Stop(absl::CancelledError("the save was given up"));
  // If the executor refuses the task, because it is full or shutting down, the save is destroyed
  // here.
  uses_.executor.Submit([save = std::move(save)] {}).IgnoreError();
}

}  // namespace psd::services
