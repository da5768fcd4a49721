#include "core/program/program_sizes.h"

#include <algorithm>

namespace psd::program {

ProgramSizes::ProgramSizes(absl::Span<const Variable> inputs, size_t instructions) {
  inputs_.reserve(inputs.size());
  for (const Variable& input : inputs) inputs_.push_back({input.shape(), input.dtype()});
  sizes_.reserve(instructions);
}

bool ProgramSizes::Fits(absl::Span<const Variable> inputs) const {
  return std::equal(inputs_.begin(), inputs_.end(), inputs.begin(), inputs.end(),
                    [](const Input& known, const Variable& input) {
                      return input.ok() && input.dtype() == known.dtype &&
                             input.shape() == known.shape;
                    });
}

}  // namespace psd::program
