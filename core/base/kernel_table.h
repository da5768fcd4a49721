#pragma once

// The kernels of one device, by name.

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd {

class Stream;  // core/base/stream.h

// The name of a kernel together with its signature. The signature is a function type whose first
// parameter is the Stream* to which the kernel is added; it is null for the host, whose kernels run
// on the calling thread. The name is that of the operator or optimizer, as errors print it. `slot`
// is the kernel's index in the tables. Each kernel of the program has a slot of its own, so that a
// lookup is one load.
template <typename Signature>
struct KernelName {
  static_assert(std::is_function_v<Signature>);
  const char* name;
  size_t slot;
};

// A value. Thread-compatible: a table is complete before its device is used, and does not change
// then.
class KernelTable {
 public:
  // Requires: the table has no kernel in this slot.
  template <typename Signature>
  void Add(const KernelName<Signature>& name, Signature* kernel) {
    if (name.slot >= slots_.size()) slots_.resize(name.slot + 1);
    PSD_CHECK(slots_[name.slot].kernel == nullptr,
              absl::StrCat("kernels '", name.name, "' and '", slots_[name.slot].name,
                           "' have the same slot ", name.slot));
    slots_[name.slot] = {name.name, reinterpret_cast<Untyped*>(kernel)};
  }
  // Adds the kernels of `other`. Requires: no slot is in both.
  void Add(const KernelTable& other) {
    for (size_t slot = 0; slot < other.slots_.size(); ++slot) {
      const Slot& each = other.slots_[slot];
      if (each.kernel != nullptr) Add(KernelName<Untyped>{each.name, slot}, each.kernel);
    }
  }

  // Returns null if the table has no such kernel.
  template <typename Signature>
  Signature* Find(const KernelName<Signature>& name) const {
    return name.slot < slots_.size() ? reinterpret_cast<Signature*>(slots_[name.slot].kernel)
                                     : nullptr;
  }

  // Returns the names of all kernels, in the order of their slots.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Slot& slot : slots_)
      if (slot.kernel != nullptr) names.emplace_back(slot.name);
    return names;
  }

 private:
  using Untyped = void();
  struct Slot {
    const char* name = "";
    Untyped* kernel = nullptr;  // its true type is that of the KernelName with this slot
  };
  std::vector<Slot> slots_;
};

}  // namespace psd
