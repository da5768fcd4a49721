#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/save_files.h"
#include "core/base/status.h"
#include "core/services/checkpoint/save_service.h"

namespace psd {
namespace {

using checkpoint::FileSpec;
using checkpoint::SavedFile;

// Files that the owner writes itself. This object tells the owner what to write next.
class Own : public SaveFiles {
 public:
  Own(worker::Runtime& runtime, checkpoint::SaveFolder& folder, std::string owner, GlobalId id,
      std::vector<FileSpec> specs, const rpc::CallOptions& call)
      : saves_(runtime.saves()),
        folder_(folder),
        owner_(std::move(owner)),
        id_(id),
        specs_(std::move(specs)),
        call_(call) {}
  // If this message is lost, the owner gives the files up when our session there ends.
  ~Own() override { saves_.Close(owner_, id_, call_); }

  Future<services::Exported> Copy(const std::vector<services::ExportItem>& items) override {
    return saves_.Write(owner_, id_, next_++, items, call_);
  }
  absl::Status Take(const services::ExportItem&, const services::ExportedItem&) override {
    return absl::OkStatus();
  }

  Future<services::FetchedPiece> CopyPiece(GlobalId held, const services::PieceRange& range,
                                           size_t file) override {
    return saves_.WritePiece(owner_, id_, next_++, held, range, file, call_);
  }
  absl::Status TakePiece(size_t, const services::FetchedPiece&) override {
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<SavedFile>> Finish(
      const std::vector<services::StepCount>& counts) override {
    const auto answer = saves_.Finish(owner_, id_, next_++, counts, call_);
    const auto& saved = answer.Wait();
    if (!saved.ok()) return saved.status();
    PSD_RETURN_IF_ERROR(Check(*saved));
    return *saved;
  }

  std::string Describe() const override {
    return absl::StrCat(owner_, ", which writes ", specs_[0].name,
                        specs_.size() > 1 ? " and others itself" : " itself");
  }

 private:
  // Compares the files that the owner reports with the plan, and with what this worker sees in the
  // folder.
  absl::Status Check(const std::vector<SavedFile>& saved) const {
    if (saved.size() != specs_.size()) {
      return absl::InternalError(
          absl::StrCat(owner_, " wrote ", saved.size(), " files instead of ", specs_.size()));
    }
    for (size_t i = 0; i < saved.size(); ++i) {
      PSD_ASSIGN_OR_RETURN(const uint64_t bytes, checkpoint::FileBytes(specs_[i]));
      if (saved[i].name != specs_[i].name || saved[i].bytes != bytes) {
        return absl::InternalError(absl::StrCat(owner_, " wrote ", saved[i].bytes, " bytes of ",
                                                saved[i].name, " instead of ", bytes, " of ",
                                                specs_[i].name));
      }
      PSD_RETURN_IF_ERROR(folder_.Look(saved[i].name, bytes));
    }
    return absl::OkStatus();
  }

  services::SaveService& saves_;
  checkpoint::SaveFolder& folder_;
  const std::string owner_;
  const GlobalId id_;
  const std::vector<FileSpec> specs_;
  const rpc::CallOptions call_;
  uint64_t next_ = 0;  // number of a write
};

// Checks that this worker sees the files that the owner has made. It may not see them: the owner's
// folder of the same name may be another one, or the files may be unreadable here.
absl::Status LookAtAll(checkpoint::SaveFolder& folder, const std::vector<FileSpec>& files) {
  for (const FileSpec& file : files) PSD_RETURN_IF_ERROR(folder.Look(file.name, 0));
  return absl::OkStatus();
}

// An owner that was asked to make its files.
struct Asked {
  size_t owner = 0;  // its index in the plan
  GlobalId id;
  Future<services::SaveService::Opened> opened;
};

class Opener {
 public:
  Opener(worker::Runtime& runtime, checkpoint::SaveFolder& folder, const rpc::CallOptions& call)
      : runtime_(runtime), folder_(folder), call_(call) {}

  absl::StatusOr<ChosenFiles> Choose(const std::vector<OwnerPlan>& owners) {
    ChosenFiles chosen;
    for (const OwnerPlan& owner : owners) {
      chosen.files.push_back(StreamedFiles(runtime_, folder_, owner.owner, owner.files, call_));
    }
    PSD_ASSIGN_OR_RETURN(const std::vector<Asked> asked, AskAll(owners));
    if (asked.empty()) return chosen;
    absl::Status status;
    for (const Asked& each : asked) {
      const OwnerPlan& owner = owners[each.owner];
      if (status.ok()) {
        status = TakeAnswer(owner, each, chosen);
      } else {  // the save fails; the owner must give its files up
        each.opened.Wait();
        runtime_.saves().Close(owner.owner, each.id, call_);
      }
    }
    PSD_RETURN_IF_ERROR(status);
    PSD_RETURN_IF_ERROR(folder_.RemoveToken());
    return chosen;
  }

 private:
  absl::Status TakeAnswer(const OwnerPlan& owner, const Asked& asked, ChosenFiles& chosen) {
    const auto& opened = asked.opened.Wait();
    if (!opened.ok()) {
      // If only the owner's answer was lost, the owner has opened the files.
      runtime_.saves().Close(owner.owner, asked.id, call_);
      return Annotate(opened.status(), absl::StrCat("saving ", owner.owner));
    }
    PSD_ASSIGN_OR_RETURN(std::unique_ptr<SaveFiles> own, Take(owner, asked.id, *opened, chosen));
    if (own == nullptr) return absl::OkStatus();
    chosen.files[asked.owner] = std::move(own);
    chosen.steps_accepted[asked.owner] = opened->steps_accepted;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Asked>> AskAll(const std::vector<OwnerPlan>& owners) {
    std::vector<Asked> asked;
    services::OwnFiles wanted;
    for (size_t i = 0; i < owners.size(); ++i) {
      if (!owners[i].writes_files) continue;
      if (asked.empty()) {
        PSD_ASSIGN_OR_RETURN(wanted.folder, folder_.RealPath());
        PSD_ASSIGN_OR_RETURN(wanted.token, folder_.PlaceToken());
      }
      wanted.files = owners[i].files;
      const GlobalId id = runtime_.ids().Next();
      asked.push_back({i, id, runtime_.saves().Open(owners[i].owner, id, wanted, call_)});
    }
    return asked;
  }

  // Returns null if the owner's values are to be streamed, after adding the reason to `chosen`.
  absl::StatusOr<std::unique_ptr<SaveFiles>> Take(const OwnerPlan& owner, GlobalId id,
                                                  const services::SaveService::Opened& opened,
                                                  ChosenFiles& chosen) {
    std::string why_not = opened.why_not;
    if (opened.here) {
      const absl::Status seen = LookAtAll(folder_, owner.files);
      if (seen.ok())
        return std::make_unique<Own>(runtime_, folder_, owner.owner, id, owner.files, call_);
      why_not = std::string(seen.message());
      // The owner's files must be gone before this worker creates files of the same names.
      PSD_RETURN_IF_ERROR(runtime_.saves().Close(owner.owner, id, call_).Wait().status());
      for (const FileSpec& file : owner.files) PSD_RETURN_IF_ERROR(folder_.Remove(file.name));
    }
    chosen.streamed.push_back(absl::StrCat(owner.owner, ": ", why_not));
    return nullptr;
  }

  worker::Runtime& runtime_;
  checkpoint::SaveFolder& folder_;
  const rpc::CallOptions call_;
};

}  // namespace

absl::StatusOr<ChosenFiles> ChooseFiles(worker::Runtime& runtime, checkpoint::SaveFolder& folder,
                                        const std::vector<OwnerPlan>& owners,
                                        const rpc::CallOptions& call) {
  return Opener(runtime, folder, call).Choose(owners);
}

}  // namespace psd
