#include "core/checkpoint/checkpoint_root.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/checkpoint/posix_file.h"
#include "core/checkpoint/save_names.h"

namespace psd::checkpoint {
namespace {

constexpr size_t kMaxPartBytes = 255;
constexpr int kFolder = O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

absl::Status NotHere(absl::string_view why) {
  return absl::FailedPreconditionError(why);
}

// Opens the folder `path`, which is relative, beneath `root`. The system resolves the path and
// never leaves the root.
Descriptor OpenBeneath(const Descriptor& root, const std::string& path) {
  open_how how = {};
  how.flags = O_RDONLY | kFolder;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  return Descriptor(
      static_cast<int>(::syscall(SYS_openat2, *root, path.c_str(), &how, sizeof how)));
}

// Does the same as OpenBeneath, folder by folder.
Descriptor Walk(const Descriptor& root, const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  Descriptor at(::openat(*root, ".", O_PATH | kFolder));
  for (size_t i = 0; i < parts.size() && at.open(); ++i) {
    const int how = i + 1 == parts.size() ? O_RDONLY : O_PATH;
    at = Descriptor(::openat(*at, parts[i].c_str(), how | kFolder));
  }
  return at;
}

class PosixFolder : public FoundFolder {
 public:
  PosixFolder(std::string path, Descriptor folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& name) override {
    PSD_ASSIGN_OR_RETURN(std::string path, PathOf(name));
    Descriptor file(::openat(*folder_, name.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!file.open()) return PosixError("cannot create", path, errno);
    return NewPosixWritableFile(std::move(path), std::move(file));
  }

  absl::Status Remove(const std::string& name) override {
    PSD_ASSIGN_OR_RETURN(std::string path, PathOf(name));
    if (::unlinkat(*folder_, name.c_str(), 0) == 0 || errno == ENOENT) return absl::OkStatus();
    return PosixError("cannot remove", path, errno);
  }

  absl::Status Sync() override {
    if (::fsync(*folder_) == 0) return absl::OkStatus();
    return PosixError("cannot bring to disk", path_, errno);
  }

  // Whether the token file holds `token`.
  bool HasToken(const std::string& token) const {
    const Descriptor file(::openat(*folder_, std::string(kTokenFileName).c_str(),
                                   O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status;
    if (!file.open() || ::fstat(*file, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    std::array<char, kTokenDigits + 1> text;
    const ssize_t read = ::pread(*file, text.data(), text.size(), 0);
    return read >= 0 && absl::string_view(text.data(), static_cast<size_t>(read)) == token;
  }

 private:
  absl::StatusOr<std::string> PathOf(const std::string& name) const {
    if (IsPlainName(name)) return absl::StrCat(path_, "/", name);
    return absl::InvalidArgumentError("a file of a save has a plain name");
  }

  const std::string path_;  // for messages
  const Descriptor folder_;
};

bool IsToken(absl::string_view token) {
  return token.size() == kTokenDigits &&
         std::all_of(token.begin(), token.end(), absl::ascii_isxdigit);
}

class PosixRoot : public CheckpointRoot {
 public:
  PosixRoot(std::string path, Descriptor root, bool openat2)
      : path_(std::move(path)),
        root_(std::move(root)),
        openat2_(openat2 && OpenBeneath(root_, ".").open()) {}

  absl::StatusOr<std::unique_ptr<FoundFolder>> Find(const std::string& path,
                                                    const std::string& token) override {
    PSD_ASSIGN_OR_RETURN(std::string beneath, Beneath(path));
    if (!IsToken(token)) return NotHere("the token is not one of a save");
    Descriptor found = openat2_ ? OpenBeneath(root_, beneath) : Walk(root_, beneath);
    if (!found.open()) return NotHere(PosixError("cannot open", path, errno).message());
    auto folder = std::make_unique<PosixFolder>(path, std::move(found));
    if (folder->HasToken(token)) return folder;
    return NotHere(absl::StrCat(path, " is another folder here, or cannot be read"));
  }

 private:
  // Checks `path` and returns its part below the root.
  absl::StatusOr<std::string> Beneath(const std::string& path) const {
    if (path.size() > kMaxPathBytes)
      return NotHere(absl::StrCat("a path of ", path.size(), " bytes is too long"));
    absl::string_view rest = path;
    if (!absl::ConsumePrefix(&rest, path_ == "/" ? "" : path_) || !absl::ConsumePrefix(&rest, "/"))
      return NotHere(absl::StrCat("the folder of the save is not below checkpoint_root, ", path_));
    absl::string_view last;
    for (absl::string_view part : absl::StrSplit(rest, '/')) {
      const bool plain = !part.empty() && part != "." && part != ".." &&
                         part.size() <= kMaxPartBytes && part.find('\0') == part.npos;
      if (!plain) return NotHere("the path of the save is not in its shortest form");
      last = part;
    }
    if (!IsUnfinishedName(last)) return NotHere("the path is not that of an unfinished save");
    return std::string(rest);
  }

  const std::string path_;  // absolute, without symbolic links
  const Descriptor root_;
  const bool openat2_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<CheckpointRoot>> CheckpointRoot::Open(const std::string& path,
                                                                     const Options& options) {
  if (path.empty() || path[0] != '/' || path.size() > kMaxPathBytes)
    return absl::InvalidArgumentError("must be an absolute path");
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  if (error) return PosixError("cannot find", path, error.value());
  Descriptor root(::open(real.c_str(), O_PATH | kFolder));
  if (!root.open() && errno == ENOTDIR)
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a folder"));
  if (!root.open()) return PosixError("cannot open", path, errno);
  if (::faccessat(*root, ".", W_OK | X_OK, AT_EACCESS) != 0)
    return PosixError("cannot write below", path, errno);
  return std::make_shared<PosixRoot>(real, std::move(root), options.openat2);
}

}  // namespace psd::checkpoint
