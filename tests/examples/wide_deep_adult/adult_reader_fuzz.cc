// An input is a file.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "examples/wide_deep_adult/adult_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto people =
      psd::examples::ParseAdult(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (people.ok() && people->empty()) __builtin_trap();
  return 0;
}
