#pragma once

// Reads a configuration file: YAML with one mapping of names to single values.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/daemon/config.h"

namespace psd::server {

// The most bytes of a configuration. A real one is a page of text.
inline constexpr size_t kMaxConfigBytes = size_t{64} << 10;

// Reads `text` into `builder`, which also collects every problem with its place, "source:line". The
// text is not trusted: its size and nesting are bounded, and anchors, aliases, tags, a second
// document and bytes that are not text are refused.
void AddConfigText(absl::string_view source, absl::string_view text, ConfigBuilder& builder);

// Reads the file at `path` in the same way. A file that cannot be read is added as a problem.
void AddConfigFile(const std::string& path, ConfigBuilder& builder);

}  // namespace psd::server
