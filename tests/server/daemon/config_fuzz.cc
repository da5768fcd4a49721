// Reads arbitrary bytes as a configuration file.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "server/daemon/config.h"
#include "server/daemon/config_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using psd::server::ConfigBuilder;
  ConfigBuilder builder;
  psd::server::AddConfigText("fuzz", {reinterpret_cast<const char*>(data), size}, builder);
  auto config = builder.Build();
  if (!config.ok()) return 0;
  // An accepted configuration is printed as a file that reads back to the same configuration.
  const std::string text = psd::server::FormatConfig(*config);
  ConfigBuilder again_builder;
  psd::server::AddConfigText("again", text, again_builder);
  auto again = again_builder.Build();
  if (!again.ok() || psd::server::FormatConfig(*again) != text) std::abort();
  return 0;
}
