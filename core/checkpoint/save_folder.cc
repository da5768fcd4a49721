#include "core/checkpoint/save_folder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/checkpoint/checked_file.h"
#include "core/checkpoint/index_codec.h"
#include "core/checkpoint/xxh128.h"

namespace psd::checkpoint {
namespace {

constexpr uint64_t kMaxLatestBytes = 512;

std::string Join(const std::string& folder, absl::string_view name) {
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

// Creates a file with the contents `text`, and syncs it to the disk.
absl::Status WriteWhole(FileSystem& files, const std::string& path, absl::string_view text) {
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.Create(path));
  PSD_RETURN_IF_ERROR(file->Append(text));
  return file->Sync();
}

std::string NewToken() {
  return absl::StrCat(absl::Hex(NewIncarnation(), absl::kZeroPad16),
                      absl::Hex(NewIncarnation(), absl::kZeroPad16));
}

// Returns the contents of `latest`. The checksum reveals a damaged name, even if there is a save of
// the damaged name.
std::string LatestLine(absl::string_view name) {
  Xxh128 checksum;
  checksum.Add(name);
  return absl::StrCat(name, " ", checksum.Digest(), "\n");
}

// Creates `dir` with its parents. The names of the new folders are synced to the disk, because a
// save in them could not survive a power cut otherwise.
absl::Status MakeFolders(FileSystem& files, const std::string& dir) {
  std::vector<std::string> parents;  // the parents of missing folders, the outermost last
  std::string folder = dir;
  while (folder.size() > 1 && absl::EndsWith(folder, "/")) folder.pop_back();
  while (!files.List(folder).ok()) {
    const size_t slash = folder.rfind('/');
    if (slash == std::string::npos) {
      parents.push_back(".");
      break;
    }
    folder.resize(std::max<size_t>(slash, 1));
    parents.push_back(folder);
    if (folder == "/") break;
  }
  PSD_RETURN_IF_ERROR(files.MakeFolder(dir));
  for (const std::string& parent : parents) PSD_RETURN_IF_ERROR(files.SyncFolder(parent));
  return absl::OkStatus();
}

// Removes all unfinished saves. Requires: `dir` is locked, so that none of them is being written.
absl::Status RemoveLeftovers(FileSystem& files, const std::string& dir) {
  PSD_ASSIGN_OR_RETURN(std::vector<std::string> names, files.List(dir));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, kUnfinishedPrefix))
      PSD_RETURN_IF_ERROR(files.Remove(Join(dir, name)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SaveFolder>> SaveFolder::Begin(std::shared_ptr<FileSystem> files,
                                                              const std::string& dir,
                                                              const std::string& name,
                                                              const std::string& unique,
                                                              uint64_t bytes) {
  if (!IsPlainName(name) || !IsPlainName(unique) || name == kLatestFileName) {
    return absl::InvalidArgumentError(absl::StrCat("a save cannot be called '", name,
                                                   "': letters, digits and . _ - : make a name"));
  }
  PSD_RETURN_IF_ERROR(MakeFolders(*files, dir));
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<FolderLock> lock, files->Lock(dir));
  PSD_RETURN_IF_ERROR(RemoveLeftovers(*files, dir));
  PSD_ASSIGN_OR_RETURN(std::vector<std::string> names, files->List(dir));
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    return WithRemedy(absl::AlreadyExistsError(absl::StrCat(dir, " has a save called ", name)),
                      "choose another name");
  }
  PSD_ASSIGN_OR_RETURN(uint64_t free, files->FreeBytes(dir));
  if (free < bytes) {
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                          "the save needs ", bytes, " bytes, and ", dir, " has ", free, " left")),
                      "make room or use another disk");
  }
  const std::string unfinished = Join(dir, UnfinishedName(unique));
  PSD_RETURN_IF_ERROR(files->MakeFolder(unfinished));
  return std::unique_ptr<SaveFolder>(
      new SaveFolder(std::move(files), dir, name, unfinished, std::move(lock)));
}

SaveFolder::SaveFolder(std::shared_ptr<FileSystem> files, std::string dir, std::string name,
                       std::string unfinished, std::unique_ptr<FolderLock> lock)
    : files_(std::move(files)),
      dir_(std::move(dir)),
      name_(std::move(name)),
      unfinished_(std::move(unfinished)),
      lock_(std::move(lock)),
      memory_(NewPieceMemory()) {}

SaveFolder::~SaveFolder() {
  // Files that cannot be removed now are removed by the next save.
  if (!published_) files_->Remove(unfinished_).IgnoreError();
}

absl::StatusOr<std::unique_ptr<TensorFile>> SaveFolder::Create(const FileSpec& spec) {
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_->Create(PathOf(spec.name)));
  return TensorFile::Start(std::move(file), spec, memory_);
}

absl::StatusOr<std::string> SaveFolder::RealPath() {
  return files_->RealPath(unfinished_);
}

absl::StatusOr<std::string> SaveFolder::PlaceToken() {
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_->Create(PathOf(kTokenFileName)));
  std::string token = NewToken();
  PSD_RETURN_IF_ERROR(file->Append(token));
  return token;
}

absl::Status SaveFolder::RemoveToken() {
  return files_->Remove(PathOf(kTokenFileName));
}

absl::Status SaveFolder::Look(const std::string& file_name, uint64_t least_bytes) {
  auto file = files_->Open(PathOf(file_name));
  if (file.ok() && (*file)->size() >= least_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(file.ok() ? absl::StrCat(PathOf(file_name), " has ",
                                                                (*file)->size(), " of ",
                                                                least_bytes, " bytes here")
                                                 : file.status().message());
}

absl::Status SaveFolder::Remove(const std::string& file_name) {
  return files_->Remove(PathOf(file_name));
}

absl::StatusOr<std::string> SaveFolder::Publish(const CheckpointIndex& index) {
  const std::string text = EncodeIndex(index);
  if (text.size() > kMaxIndexBytes) {
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                          "the index of ", Join(dir_, name_), " would have ", text.size(),
                          " bytes, and a load reads at most ", kMaxIndexBytes)),
                      "save fewer parameters, or some owners at a time");
  }
  PSD_RETURN_IF_ERROR(WriteWhole(*files_, PathOf(kIndexFileName), text));
  PSD_RETURN_IF_ERROR(files_->SyncFolder(unfinished_));
  const std::string final = Join(dir_, name_);
  PSD_RETURN_IF_ERROR(files_->Rename(unfinished_, final));
  published_ = true;
  if (absl::Status named = NameLatest(); !named.ok()) return Unpublish(final, named);
  PSD_RETURN_IF_ERROR(files_->SyncFolder(dir_));
  return final;
}

absl::Status SaveFolder::NameLatest() {
  // The new name must be on the disk before `latest` names it.
  PSD_RETURN_IF_ERROR(files_->SyncFolder(dir_));
  // The new `latest` is written under the hidden name, so that the next save removes it if it is
  // left behind.
  PSD_RETURN_IF_ERROR(WriteWhole(*files_, unfinished_, LatestLine(name_)));
  return files_->Rename(unfinished_, Join(dir_, kLatestFileName));
}

absl::Status SaveFolder::Unpublish(const std::string& final, const absl::Status& why) {
  files_->Remove(unfinished_).IgnoreError();  // it may be a part of `latest`
  published_ = !files_->Rename(final, unfinished_).ok();
  if (!published_) return why;
  return WithRemedy(Annotate(why, absl::StrCat("the save ", final,
                                               " is complete, but `latest` does not name "
                                               "it")),
                    "load it by its name, or remove the folder");
}

std::string SaveFolder::PathOf(absl::string_view file_name) const {
  return Join(unfinished_, file_name);
}

absl::StatusOr<std::string> FindSave(FileSystem& files, const std::string& dir) {
  auto latest = ReadWhole(files, Join(dir, kLatestFileName), kMaxLatestBytes);
  if (latest.ok()) {
    const absl::string_view name = absl::string_view(*latest).substr(0, latest->find(' '));
    if (IsPlainName(name) && *latest == LatestLine(name)) return Join(dir, name);
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(Join(dir, kLatestFileName),
                                                " does not hold the name of a save, its checksum ",
                                                "and the end of the line")),
        "give the folder of the save itself");
  }
  if (!absl::IsNotFound(latest.status())) return latest.status();
  if (files.Open(Join(dir, kIndexFileName)).ok()) return dir;
  return absl::NotFoundError(absl::StrCat("there is no save in ", dir, ": it has neither '",
                                          kLatestFileName, "' nor '", kIndexFileName, "'"));
}

absl::StatusOr<CheckpointIndex> ReadIndex(FileSystem& files, const std::string& folder) {
  const std::string path = Join(folder, kIndexFileName);
  PSD_ASSIGN_OR_RETURN(std::string text, ReadWhole(files, path, kMaxIndexBytes));
  auto index = DecodeIndex(text);
  if (!index.ok()) return Annotate(index.status(), path);
  return index;
}

}  // namespace psd::checkpoint
