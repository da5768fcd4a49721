#pragma once

// A text by which ranks find out whether they have equal values. Internal to client/.

#include <initializer_list>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "core/checkpoint/xxh128.h"

namespace psd {

// Takes values one after the other. Equal values in the same order give equal texts; otherwise the
// texts differ, unless two hashes happen to be equal. 0 and -0 differ.
// Thread-compatible.
class Digest {
 public:
  void Add(absl::string_view text);
  void Add(std::initializer_list<double> numbers);
  void Add(const std::map<std::string, double>& options);

  std::string Long() const { return sum_.Digest(); }
  // 16 hexadecimal digits, for a label.
  std::string Short() const { return sum_.Digest().substr(0, 16); }

 private:
  checkpoint::Xxh128 sum_;
};

}  // namespace psd
