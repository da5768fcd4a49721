#pragma once

// A base class for objects that are visited one after the other by the thousand.

#include <cstddef>

#include "core/base/small_memory.h"

namespace psd {

// `new` takes objects of derived classes from small memory, where those that are made one after the
// other mostly lie side by side. A visit to all of them then waits less for memory. A derived class
// that is deleted through a base class needs a virtual destructor, as always.
class SmallObject {
 public:
  static void* operator new(size_t bytes) { return TakeSmallMemory(bytes); }
  static void operator delete(void* object, size_t bytes) { GiveSmallMemory(object, bytes); }
};

}  // namespace psd
