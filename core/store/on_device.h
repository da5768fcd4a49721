#pragma once

#include "core/store/value.h"

namespace psd::store {

// Whether elements of `value` are on a device, so that reading them may wait for the device.
bool IsOnDevice(const Value& value);

}  // namespace psd::store
