#pragma once

// Permission to change what an owner hosts.

namespace psd::change {
class Changes;
}

namespace psd::store {

// Every function that changes hosted contents takes one of these. Only the class that applies
// described changes (core/change/changes.h) can make one, so every change of named contents goes
// through that class. It has no state and costs nothing to pass on.
class Changing {
 private:
  friend class change::Changes;
  friend struct ChangingForTests;  // tests of a single class
  Changing() {}                    // not defaulted: that would let anybody write Changing{}
};

}  // namespace psd::store
