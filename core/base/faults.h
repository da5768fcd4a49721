#pragma once

// Deliberate faults, switched on one at a time by `tools/conformance --mutate` to check that some
// test notices each. docs/conformance/faults.tsv describes them. They exist only in builds with
// --config=mutate.

namespace psd {

#ifdef PSD_FAULTS
// Whether the environment variable PSD_FAULT equals `name`. The variable is read once.
bool FaultOn(const char* name);
#else
constexpr bool FaultOn(const char* /*name*/) {
  return false;
}
#endif

}  // namespace psd
