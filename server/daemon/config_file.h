#pragma once

// A configuration file: YAML, one mapping of names to single values.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/daemon/config.h"

namespace psd::server {

// A configuration is a page of text; what is larger is something else.
inline constexpr size_t kMaxConfigBytes = size_t{64} << 10;

// Reads `text` into `builder`. Every problem is kept there with its line as "source:line". The
// text is not trusted: size and nesting are bounded, anchors, aliases, tags, a second document and
// bytes that are no text are refused.
void AddConfigText(absl::string_view source, absl::string_view text, ConfigBuilder& builder);

// The same for a file. A file that cannot be read is a problem like the others.
void AddConfigFile(const std::string& path, ConfigBuilder& builder);

}  // namespace psd::server
