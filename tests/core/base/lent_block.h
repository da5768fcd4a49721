#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/base/buffer.h"

namespace psd::testing {

// Memory as a carrier gets it from another process, which may change it at any time: the test takes
// that process's part and writes to data().
class LentBlock : public Block {
 public:
  static std::shared_ptr<LentBlock> Of(absl::string_view bytes) {
    auto memory = *NewHeapAllocator()->Allocate(bytes.size());
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(memory->data()));
    return std::shared_ptr<LentBlock>(new LentBlock(std::move(memory)));
  }

 private:
  explicit LentBlock(std::shared_ptr<Block> memory)
      : Block(memory->data(), memory->size(), kForeignPlace), memory_(std::move(memory)) {}

  const std::shared_ptr<Block> memory_;  // not shared
};

}  // namespace psd::testing
