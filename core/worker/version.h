#pragma once

// The version of psd that this worker was built from.

namespace psd::worker {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace psd::worker
