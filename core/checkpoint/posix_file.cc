#include "core/checkpoint/posix_file.h"
#include "core/base/remedy.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace psd::checkpoint {
namespace {

// Each time this many bytes have been written, the system is told to begin moving them to the disk,
// so that Sync has little left to do.
constexpr uint64_t kWriteBackBytes = uint64_t{16} << 20;

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
      if (written < 0 && errno == EINVAL && direct_) {  // this file system needs another alignment
        SetDirect(false);
        continue;
      }
      if (written < 0)
        return PosixError(absl::StrCat("cannot write byte ", written_, " of"), path_, errno);
      bytes.remove_prefix(static_cast<size_t>(written));
      written_ += static_cast<uint64_t>(written);
    }
    if (!direct_ && written_ - started_ >= kWriteBackBytes) {
      // This is only a hint. Sync reports errors.
      ::sync_file_range(*file_, static_cast<off_t>(started_),
                        static_cast<off_t>(written_ - started_), SYNC_FILE_RANGE_WRITE);
      started_ = written_;
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (::fsync(*file_) == 0) return absl::OkStatus();
    return PosixError("cannot bring to disk", path_, errno);
  }

 private:
  // Sets whether writes bypass the page cache, which saves a copy and takes no memory from others.
  // Some file systems cannot do that; direct_ stays false then.
  void SetDirect(bool direct) {
    const int flags = ::fcntl(*file_, F_GETFL);
    direct_ =
        ::fcntl(*file_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 && direct;
  }

  const std::string path_;
  const Descriptor file_;
  bool direct_ = false;
  uint64_t written_ = 0;
  uint64_t started_ = 0;  // bytes that the system was told to write to the disk
};

}  // namespace

absl::Status PosixError(absl::string_view what, const std::string& path, int error) {
  std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(text)),
                        "make room or use another disk");
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

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

std::unique_ptr<WritableFile> NewPosixWritableFile(std::string path, Descriptor file) {
  return std::make_unique<PosixWritableFile>(std::move(path), std::move(file));
}

}  // namespace psd::checkpoint
