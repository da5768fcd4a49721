#include <utility>

#include "absl/strings/str_cat.h"
#include "client/save_files.h"
#include "core/base/status.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/tensor/tensor.h"

namespace psd {
namespace {

using checkpoint::FileSpec;
using checkpoint::SavedFile;
using checkpoint::TensorFile;

class Streamed : public SaveFiles {
 public:
  Streamed(worker::Runtime& runtime, checkpoint::SaveFolder& folder, std::string owner,
           std::vector<FileSpec> specs, const rpc::CallOptions& call)
      : checkpoints_(runtime.checkpoints()),
        folder_(folder),
        owner_(std::move(owner)),
        specs_(std::move(specs)),
        call_(call) {}

  Future<services::Exported> Copy(const std::vector<services::ExportItem>& items) override {
    return checkpoints_.Export(owner_, items, call_);
  }

  absl::Status Take(const services::ExportItem& asked,
                    const services::ExportedItem& item) override {
    PSD_RETURN_IF_ERROR(Open());
    std::vector<Tensor> arrays = {item.elements};
    for (const services::ExportedState& state : item.states)
      arrays.insert(arrays.end(), state.arrays.begin(), state.arrays.end());
    if (arrays.size() != asked.files.size()) {
      return absl::InternalError(
          absl::StrCat(owner_, " sent ", arrays.size(), " arrays instead of ", asked.files.size()));
    }
    for (size_t i = 0; i < arrays.size(); ++i)
      PSD_RETURN_IF_ERROR(files_[asked.files[i]]->Append(arrays[i]));
    return absl::OkStatus();
  }

  Future<services::FetchedPiece> CopyPiece(GlobalId held, const services::PieceRange& range,
                                           size_t) override {
    return checkpoints_.Fetch(owner_, held, range, call_);
  }

  absl::Status TakePiece(size_t file, const services::FetchedPiece& piece) override {
    PSD_RETURN_IF_ERROR(Open());
    return files_[file]->AppendBytes(piece.bytes.view());
  }

  absl::StatusOr<std::vector<SavedFile>> Finish(
      const std::vector<services::StepCount>& counts) override {
    PSD_RETURN_IF_ERROR(Open());
    for (const services::StepCount& count : counts)
      PSD_RETURN_IF_ERROR(files_[count.file]->Append(Tensor::Scalar(count.steps)));
    std::vector<SavedFile> saved;
    for (std::unique_ptr<TensorFile>& file : files_) {
      PSD_ASSIGN_OR_RETURN(SavedFile each, file->Finish());
      saved.push_back(std::move(each));
    }
    files_.clear();
    return saved;
  }

  std::string Describe() const override { return owner_; }

 private:
  absl::Status Open() {
    if (!files_.empty()) return absl::OkStatus();
    for (const FileSpec& spec : specs_) {
      PSD_ASSIGN_OR_RETURN(std::unique_ptr<TensorFile> file, folder_.Create(spec));
      files_.push_back(std::move(file));
    }
    return absl::OkStatus();
  }

  services::CheckpointService& checkpoints_;
  checkpoint::SaveFolder& folder_;
  const std::string owner_;
  const std::vector<FileSpec> specs_;
  const rpc::CallOptions call_;
  std::vector<std::unique_ptr<TensorFile>> files_;  // empty until something has come
};

}  // namespace

std::unique_ptr<SaveFiles> StreamedFiles(worker::Runtime& runtime, checkpoint::SaveFolder& folder,
                                         std::string owner, std::vector<FileSpec> files,
                                         const rpc::CallOptions& call) {
  return std::make_unique<Streamed>(runtime, folder, std::move(owner), std::move(files), call);
}

}  // namespace psd
