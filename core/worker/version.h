#pragma once

// The version of psd.

namespace psd::worker {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace psd::worker
