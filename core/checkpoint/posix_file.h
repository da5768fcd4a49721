#pragma once

// Files by descriptor. Used by code that opens files by path and by code that opens them beneath a
// folder.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/checkpoint/file_system.h"

namespace psd::checkpoint {

// Returns an error such as "cannot create /a/b: No such file or directory", with the code that
// FileSystem promises.
absl::Status PosixError(absl::string_view what, const std::string& path, int error);

// Owns a file descriptor and closes it.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  bool open() const { return number_ >= 0; }
  int operator*() const { return number_; }

 private:
  int number_;
};

// Returns a WritableFile for `file`, which must be new and empty. `path` is used in messages.
std::unique_ptr<WritableFile> NewPosixWritableFile(std::string path, Descriptor file);

}  // namespace psd::checkpoint
