#pragma once

// Faults that can be switched on, one at a time, to see that a test notices: `tools/conformance
// --mutate`. docs/conformance/faults.tsv tells what each does. They exist only in a build with
// --config=mutate; in any other there is nothing to switch.

namespace psd {

#ifdef PSD_FAULTS
// Whether the environment variable PSD_FAULT is `name`.
bool FaultOn(const char* name);
#else
constexpr bool FaultOn(const char* /*name*/) {
  return false;
}
#endif

}  // namespace psd
