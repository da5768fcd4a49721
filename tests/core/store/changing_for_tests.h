#pragma once

// Lets a test change the contents of a store, a parameter or a table of rows without the function
// that applies described changes.

#include "core/store/changing.h"

namespace psd::store {

struct ChangingForTests {
  static Changing Make() { return {}; }
};

}  // namespace psd::store
