#pragma once

#include <string>

namespace psd::cli {

// Returns the path of the daemon's program beside this one, or "psd", which is looked up in PATH.
std::string FindPsd();

}  // namespace psd::cli
