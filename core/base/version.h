#pragma once

// The version of psd.

namespace psd {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace psd
