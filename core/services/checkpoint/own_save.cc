#include "core/services/checkpoint/own_save.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/executor.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"
#include "core/checkpoint/save_names.h"

namespace psd::services {
namespace {

using checkpoint::FileSpec;
using checkpoint::FoundFolder;
using checkpoint::SavedFile;
using checkpoint::TensorFile;
using Files = std::vector<std::unique_ptr<TensorFile>>;

// The most bytes that are written before the thread checks again whether the save was stopped.
constexpr size_t kStepBytes = size_t{8} << 20;

absl::Status CheckNames(absl::string_view owner, const std::vector<FileSpec>& files) {
  if (files.size() > OwnSave::kMaxFiles) {
    return absl::InvalidArgumentError(absl::StrCat(files.size(), " files for one owner; it writes ",
                                                   OwnSave::kMaxFiles, " at most"));
  }
  for (const FileSpec& file : files) {
    if (!checkpoint::IsFileOf(owner, file.name))
      return absl::InvalidArgumentError(absl::StrCat("a file that is not of ", owner));
  }
  return absl::OkStatus();
}

absl::Status Make(FoundFolder& folder, std::vector<FileSpec> specs,
                  const std::shared_ptr<Allocator>& memory, Files& files) {
  for (FileSpec& spec : specs) {
    PSD_ASSIGN_OR_RETURN(auto file, folder.Create(spec.name));
    std::string name = spec.name;
    auto started = TensorFile::Start(std::move(file), std::move(spec), memory);
    if (!started.ok()) folder.Remove(name).IgnoreError();
    PSD_RETURN_IF_ERROR(started.status());
    files.push_back(*std::move(started));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnSave>> OwnSave::Start(std::unique_ptr<FoundFolder> folder,
                                                        absl::string_view owner,
                                                        std::vector<FileSpec> specs,
                                                        std::shared_ptr<Allocator> memory) {
  PSD_RETURN_IF_ERROR(CheckNames(owner, specs));
  Files files;
  const absl::Status made = Make(*folder, std::move(specs), memory, files);
  if (!made.ok()) {
    for (const auto& file : files) folder->Remove(file->name()).IgnoreError();
    return made;
  }
  std::unique_ptr<OwnSave> save(new OwnSave(std::move(folder), std::move(files)));
  auto thread = StartThread("a thread for a save", [raw = save.get()] { raw->Run(); });
  if (!thread.ok()) {
    for (const auto& file : save->files_) save->folder_->Remove(file->name()).IgnoreError();
    return thread.status();
  }
  save->thread_ = *std::move(thread);
  return save;
}

OwnSave::OwnSave(std::unique_ptr<FoundFolder> folder, Files files)
    : folder_(std::move(folder)), files_(std::move(files)) {}

OwnSave::~OwnSave() {
  Stop(absl::CancelledError("the save was given up"));
  ScopedBlocking blocking;
  if (thread_.joinable()) thread_.join();
}

absl::Status OwnSave::Do(uint64_t number, Work work) {
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(status_);
  if (number < next_ || number - next_ >= kMaxAhead || waiting_.count(number) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("write ", number, " of a save is not expected: the next is ", next_));
  }
  waiting_.emplace(number, std::move(work));
  changed_.NotifyAll();
  return absl::OkStatus();
}

void OwnSave::Stop(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (status_.ok()) status_ = why;
  changed_.NotifyAll();
}

absl::Status OwnSave::status() const {
  MutexLock lock(mutex_);
  return status_;
}

void OwnSave::Run() {
  while (true) {
    Work work;
    absl::Status status;
    {
      MutexLock lock(mutex_);
      const auto ready = [this]() PSD_REQUIRES(mutex_) {
        return !waiting_.empty() && (!status_.ok() || waiting_.begin()->first == next_);
      };
      while (status_.ok() && !ready()) changed_.Wait(mutex_);
      if (!ready()) return;
      work = std::move(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
      ++next_;
      status = status_;
    }
    work(status);
  }
}

absl::Status OwnSave::Stopping(absl::Status failed) {
  if (!failed.ok()) Stop(failed);
  return failed;
}

absl::StatusOr<TensorFile*> OwnSave::File(size_t file) {
  if (file < files_.size()) return files_[file].get();
  return absl::InvalidArgumentError(
      absl::StrCat("file ", file, " of a save that has ", files_.size(), " of this owner"));
}

absl::Status OwnSave::Append(size_t number, const Tensor& tensor) {
  auto file = File(number);
  const absl::Status fits = file.ok() ? (*file)->Check(tensor) : file.status();
  if (!fits.ok()) return Stopping(fits);
  return AppendBytes(number, tensor.AsBuffer().view());
}

absl::Status OwnSave::AppendBytes(size_t number, absl::string_view bytes) {
  auto file = File(number);
  absl::Status appended = file.status();
  while (appended.ok() && !bytes.empty()) {
    const absl::string_view step = bytes.substr(0, kStepBytes);
    appended = status();
    if (appended.ok()) appended = (*file)->AppendBytes(step);
    bytes.remove_prefix(step.size());
  }
  return Stopping(appended);
}

absl::StatusOr<std::vector<SavedFile>> OwnSave::Finish(const std::vector<StepCount>& counts) {
  for (const StepCount& count : counts)
    PSD_RETURN_IF_ERROR(Append(count.file, Tensor::Scalar(count.steps)));
  std::vector<SavedFile> saved;
  for (std::unique_ptr<TensorFile>& file : files_) {
    PSD_RETURN_IF_ERROR(status());
    auto finished = file->Finish();
    if (!finished.ok()) return Stopping(finished.status());
    saved.push_back(*std::move(finished));
  }
  files_.clear();
  PSD_RETURN_IF_ERROR(Stopping(folder_->Sync()));
  Stop(absl::FailedPreconditionError("the files of the save are finished"));
  return saved;
}

}  // namespace psd::services
