#pragma once

// How much memory a protobuf message takes once it is parsed.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <cstddef>

#include "absl/strings/string_view.h"

namespace psd::rpc {

// Returns a bound on the memory that a message of `type` takes besides its bytes, without parsing
// it. A few bytes may become many: an empty string in a list has two bytes, and takes 64 in memory.
// Malformed bytes are counted up to the first error, because a parser keeps what it has read until
// then.
size_t ParseCost(const google::protobuf::Descriptor& type,
                 google::protobuf::io::ZeroCopyInputStream& bytes);
size_t ParseCost(const google::protobuf::Descriptor& type, absl::string_view bytes);

}  // namespace psd::rpc
