#include "core/checkpoint/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::checkpoint {
namespace {

// What is written is on its way to the disk after so many bytes, so that Sync finds little to do.
constexpr uint64_t kWriteBackBytes = uint64_t{16} << 20;

absl::Status Failed(absl::string_view what, const std::string& path, int error) {
  std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(absl::StrCat(text, "; make room or use another disk"));
    case ENOENT:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case EEXIST:
      return absl::AlreadyExistsError(text);
    default:
      return absl::UnavailableError(text);
  }
}

// A file descriptor, closed with its scope.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : number_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  bool open() const { return number_ >= 0; }
  int operator*() const { return number_; }

 private:
  int number_;
};

bool FitsDirectWriting(absl::string_view bytes) {
  return (reinterpret_cast<uintptr_t>(bytes.data()) | bytes.size()) % kDirectAlignment == 0;
}

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(std::string path, Descriptor file)
      : path_(std::move(path)), file_(std::move(file)) {
    SetDirect(true);
  }

  absl::Status Append(absl::string_view bytes) override {
    while (!bytes.empty()) {
      if (direct_ && !FitsDirectWriting(bytes)) SetDirect(false);
      const ssize_t written = ::write(*file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EINVAL && direct_) {  // other alignments are wanted here
        SetDirect(false);
        continue;
      }
      if (written < 0)
        return Failed(absl::StrCat("cannot write byte ", written_, " of"), path_, errno);
      bytes.remove_prefix(static_cast<size_t>(written));
      written_ += static_cast<uint64_t>(written);
    }
    if (!direct_ && written_ - started_ >= kWriteBackBytes) {
      // Only a hint: Sync tells of errors.
      ::sync_file_range(*file_, static_cast<off_t>(started_),
                        static_cast<off_t>(written_ - started_), SYNC_FILE_RANGE_WRITE);
      started_ = written_;
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (::fsync(*file_) == 0) return absl::OkStatus();
    return Failed("cannot bring to disk", path_, errno);
  }

 private:
  // Whether writes pass by the page cache: that takes no copy, and no memory from others. Not all
  // file systems can; those that cannot say so here.
  void SetDirect(bool direct) {
    const int flags = ::fcntl(*file_, F_GETFL);
    direct_ =
        ::fcntl(*file_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 && direct;
  }

  const std::string path_;
  const Descriptor file_;
  bool direct_ = false;
  uint64_t written_ = 0;
  uint64_t started_ = 0;  // written back up to here
};

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(std::string path, Descriptor file, uint64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}

  uint64_t size() const override { return size_; }

  absl::Status Read(uint64_t offset, size_t bytes, std::byte* to) const override {
    while (bytes > 0) {
      const ssize_t read = ::pread(*file_, to, bytes, static_cast<off_t>(offset));
      if (read < 0 && errno == EINTR) continue;
      if (read < 0) return Failed("cannot read", path_, errno);
      if (read == 0) {
        return absl::DataLossError(
            absl::StrCat(path_, " ends at byte ", offset, ", ", bytes, " too early"));
      }
      offset += static_cast<uint64_t>(read);
      bytes -= static_cast<size_t>(read);
      to += read;
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const Descriptor file_;
  const uint64_t size_;
};

class PosixLock : public FolderLock {
 public:
  explicit PosixLock(Descriptor file) : file_(std::move(file)) {}

 private:
  const Descriptor file_;
};

class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    Descriptor file(path, O_WRONLY | O_CREAT | O_EXCL);
    if (!file.open()) return Failed("cannot create", path, errno);
    return std::make_unique<PosixWritableFile>(path, std::move(file));
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    // A pipe or a device would block, or never end.
    Descriptor file(path, O_RDONLY | O_NONBLOCK);
    if (!file.open()) return Failed("cannot open", path, errno);
    struct stat status;
    if (::fstat(*file, &status) != 0) return Failed("cannot look at", path, errno);
    if (!S_ISREG(status.st_mode))
      return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
    // Saves are read from front to back. A hint: the system reads further ahead, three times as
    // fast from a cold disk.
    ::posix_fadvise(*file, 0, 0, POSIX_FADV_SEQUENTIAL);
    return std::make_unique<PosixReadableFile>(path, std::move(file),
                                               static_cast<uint64_t>(status.st_size));
  }

  absl::Status MakeFolder(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (!error && std::filesystem::is_directory(path, error)) return absl::OkStatus();
    return Failed("cannot make the folder", path, error ? error.value() : ENOTDIR);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    std::error_code error;
    std::vector<std::string> names;
    std::filesystem::directory_iterator entry(folder, error), end;
    while (!error && entry != end) {
      names.push_back(entry->path().filename().string());
      entry.increment(error);
    }
    if (error) return Failed("cannot list", folder, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return Failed(absl::StrCat("cannot rename ", from, " to"), to, errno);
  }

  absl::Status Remove(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return error ? Failed("cannot remove", path, error.value()) : absl::OkStatus();
  }

  absl::Status SyncFolder(const std::string& folder) override {
    const Descriptor file(folder, O_RDONLY | O_DIRECTORY);
    if (!file.open()) return Failed("cannot open", folder, errno);
    if (::fsync(*file) == 0) return absl::OkStatus();
    return Failed("cannot bring to disk", folder, errno);
  }

  absl::StatusOr<uint64_t> FreeBytes(const std::string& folder) override {
    struct statvfs status;
    if (::statvfs(folder.c_str(), &status) != 0) return Failed("cannot look at", folder, errno);
    return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  }

  absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string& folder) override {
    Descriptor file(folder, O_RDONLY | O_DIRECTORY);
    if (!file.open()) return Failed("cannot open", folder, errno);
    if (::flock(*file, LOCK_EX | LOCK_NB) == 0) return std::make_unique<PosixLock>(std::move(file));
    if (errno != EWOULDBLOCK) return Failed("cannot lock", folder, errno);
    return absl::FailedPreconditionError(absl::StrCat(
        "another save into ", folder, " is under way; wait for it, or use another folder"));
  }
};

}  // namespace

std::shared_ptr<FileSystem> FileSystem::Posix() {
  return std::make_shared<PosixFileSystem>();
}

absl::StatusOr<std::string> ReadWhole(FileSystem& files, const std::string& path,
                                      uint64_t max_bytes) {
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.Open(path));
  if (file->size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file->size(), " bytes, more than the ", max_bytes, " allowed"));
  }
  std::string text(file->size(), '\0');
  PSD_RETURN_IF_ERROR(file->Read(0, text.size(), reinterpret_cast<std::byte*>(text.data())));
  return text;
}

}  // namespace psd::checkpoint
