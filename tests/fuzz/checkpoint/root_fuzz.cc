// Appends arbitrary bytes to the path of a root and to the path of a save in it. A folder that is
// found there must be below the root.

#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/checkpoint/save_names.h"

namespace psd::checkpoint {
namespace {

const std::string kToken(kTokenDigits, 'a');

// A tree with a save in <dir>/root, another one in <dir>/out, and links between the two.
class Tree {
 public:
  Tree() {
    const char* temp = getenv("TEST_TMPDIR");
    dir_ = absl::StrCat(temp == nullptr ? "/tmp" : temp, "/rootXXXXXX");
    if (mkdtemp(dir_.data()) == nullptr) abort();
    dir_ = std::filesystem::canonical(dir_).string();
    for (const char* save : {"/root/a/.saving-1", "/out/.saving-1"}) {
      std::filesystem::create_directories(dir_ + save);
      std::ofstream(absl::StrCat(dir_, save, "/", kTokenFileName)) << kToken;
    }
    std::filesystem::create_symlink(dir_ + "/out", dir_ + "/root/b");
    std::filesystem::create_symlink(dir_ + "/out/.saving-1", dir_ + "/root/.saving-2");
    for (const bool openat2 : {false, true}) {
      CheckpointRoot::Options options;
      options.openat2 = openat2;
      roots_[openat2] = *CheckpointRoot::Open(dir_ + "/root", options);
    }
  }
  ~Tree() { std::filesystem::remove_all(dir_); }

  void Look(const std::string& path) const {
    const std::string full = dir_ + path;
    const bool found = roots_[0]->Find(full, kToken).ok();
    if (found != roots_[1]->Find(full, kToken).ok()) abort();
    if (found && full != dir_ + "/root/a/.saving-1") abort();
  }

 private:
  std::string dir_;
  std::shared_ptr<CheckpointRoot> roots_[2];
};

}  // namespace
}  // namespace psd::checkpoint

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const psd::checkpoint::Tree tree;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const char* before : {"", "/root", "/root/", "/root/a/", "/root/b/", "/root/a/.saving-1"})
    tree.Look(before + bytes);
  return 0;
}
