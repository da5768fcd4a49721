// The index of a save from arbitrary text: whatever decodes encodes to a text that decodes to the
// same, and its files stay in the folder.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "core/checkpoint/index_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace psd::checkpoint;  // NOLINT: a fuzz target's one function
  auto index = DecodeIndex({reinterpret_cast<const char*>(data), size});
  if (!index.ok()) return 0;
  for (const SavedFile& file : index->files)
    if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos)
      std::abort();
  const std::string text = EncodeIndex(*index);
  auto again = DecodeIndex(text);
  if (!again.ok() || EncodeIndex(*again) != text) std::abort();
  return 0;
}
