// Decodes arbitrary text with its right checksum as the index of a save. An index that decodes must
// encode to a text that decodes to the same index, and its file names must not leave the folder.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/checkpoint/index_codec.h"
#include "core/checkpoint/index_seal.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace psd::checkpoint;  // NOLINT: a fuzz target's one function
  const absl::string_view members(reinterpret_cast<const char*>(data), size);
  auto index = DecodeIndex(SealIndex(absl::StrCat(members, "\n}")));
  if (!index.ok()) return 0;
  for (const SavedFile& file : index->files)
    if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos)
      std::abort();
  const std::string text = EncodeIndex(*index);
  auto again = DecodeIndex(text);
  if (!again.ok() || EncodeIndex(*again) != text) std::abort();
  return 0;
}
