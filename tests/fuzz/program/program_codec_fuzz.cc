#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/strings/string_view.h"
#include "core/autograd/operators.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/program/program_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* operators =
      new std::shared_ptr<const psd::OperatorRegistry>(psd::OperatorRegistry::Builtin());
  psd::program::ProgramLimits limits;
  auto program = psd::program::DecodeProgram({reinterpret_cast<const char*>(data), size}, limits);
  if (!program.ok()) return 0;
  auto again = psd::program::DecodeProgram(psd::program::EncodeProgram(*program), limits);
  if (!again.ok() ||
      !(psd::program::FingerprintOf(*again) == psd::program::FingerprintOf(*program))) {
    abort();
  }
  psd::program::CheckedProgram::Create(*program, **operators, limits).IgnoreError();
  return 0;
}
