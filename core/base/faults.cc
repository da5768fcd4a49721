#include "core/base/faults.h"

#ifdef PSD_FAULTS

#include <cstdlib>
#include <string>

namespace psd {

bool FaultOn(const char* name) {
  static const std::string* const chosen = [] {
    const char* value = std::getenv("PSD_FAULT");
    return new std::string(value == nullptr ? "" : value);  // lives as long as the process
  }();
  return *chosen == name;
}

}  // namespace psd

#endif
