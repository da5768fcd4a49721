#include "core/base/shared_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"

namespace psd {

absl::Status CheckSharedFolder(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  if (path[0] != '/' || path.size() > kMaxSharedFolderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a folder for shared memory is an absolute path of at most ",
                     kMaxSharedFolderBytes, " bytes, which ", Quoted(path), " is not"));
  }
  if (std::none_of(path.begin(), path.end(), absl::ascii_iscntrl)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the path of a folder for shared memory has no control characters, but ",
                   Quoted(path), " has some"));
}

absl::Status CheckSharedFolderIsOwn(const std::string& path) {
  struct stat folder = {};
  if (stat(path.c_str(), &folder) != 0) {
    return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                          "the folder ", path, " cannot be read: ", std::strerror(errno))),
                      "make it, for this user alone, and mount it");
  }
  if (!S_ISDIR(folder.st_mode))
    return WithRemedy(absl::FailedPreconditionError(absl::StrCat(path, " is no folder")),
                      "name a folder");
  const unsigned others = folder.st_mode & (S_IWGRP | S_IWOTH);
  if (folder.st_uid == geteuid() && others == 0) return absl::OkStatus();
  return WithRemedy(absl::FailedPreconditionError(
                        absl::StrCat("the folder ", path, " belongs to user ", folder.st_uid,
                                     others == 0 ? "" : " and may be written by others",
                                     "; this process is of user ", geteuid())),
                    "give it to that user, with mode 0700");
}

}  // namespace psd
